"""The best checkpoint by evaluation is labelled, and outlives pruning."""

import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage.best import Best, mark_best, read_best
from hpcrl.storage.statefile import write_state


def write(run_dir, update):
    directory = checkpoints.begin(run_dir, update)
    write_state(checkpoints.state_path(directory, "learner-0"), "learner", {"x": np.zeros(2)}, {})
    checkpoints.finish(directory, ["learner-0"], [], {})


def updates(run_dir):
    return [found.global_update for found in checkpoints.list_checkpoints(run_dir)[0]]


def test_an_evaluation_counts_for_the_first_checkpoint_with_its_parameters(tmp_path):
    write(tmp_path, 100)
    assert read_best(tmp_path) is None
    assert not mark_best(tmp_path, 150, 3.0, 10)  # none has them yet
    for update in (200, 300):
        write(tmp_path, update)
    assert mark_best(tmp_path, 150, 3.0, 10)
    assert read_best(tmp_path) == Best("step-000000000200", 150, 3.0, 10)
    assert mark_best(tmp_path, 300, 2.9, 10)  # settled: it is not better
    assert mark_best(tmp_path, 300, 3.0, 10)
    assert read_best(tmp_path).checkpoint == "step-000000000200"
    assert mark_best(tmp_path, 300, 3.1, 10)
    assert read_best(tmp_path).checkpoint == "step-000000000300"


def test_the_best_is_not_pruned(tmp_path):
    for update in (100, 200, 300, 400):
        write(tmp_path, update)
        if update == 200:
            mark_best(tmp_path, 150, 5.0, 10)
        checkpoints.prune(tmp_path, keep_last=1, keep_every=0, best=best_path(tmp_path))
    assert updates(tmp_path) == [200, 400]
    mark_best(tmp_path, 400, 6.0, 10)
    write(tmp_path, 500)
    checkpoints.prune(tmp_path, keep_last=1, keep_every=0, best=best_path(tmp_path))
    assert updates(tmp_path) == [400, 500]


def best_path(run_dir):
    best = read_best(run_dir)
    return best.path(run_dir) if best else None


@pytest.mark.parametrize(
    "text", ["", "[]", '{"file_type": "best", "version": 99}', '{"file_type": "manifest", "version": 1}']
)
def test_a_label_that_cannot_be_read_is_as_none(tmp_path, text):
    write(tmp_path, 100)
    mark_best(tmp_path, 100, 1.0, 10)
    (tmp_path / "checkpoints" / "best.json").write_text(text)
    assert read_best(tmp_path) is None
    assert mark_best(tmp_path, 100, 0.5, 10)
    assert read_best(tmp_path).mean_return == 0.5


def test_a_label_names_nothing_outside(tmp_path):
    write(tmp_path, 100)
    mark_best(tmp_path, 100, 1.0, 10)
    label = tmp_path / "checkpoints" / "best.json"
    label.write_text(label.read_text().replace("step-000000000100", "../../elsewhere"))
    assert read_best(tmp_path) is None


def test_an_unwritable_label_is_a_storage_error(tmp_path):
    write(tmp_path, 100)
    (tmp_path / "checkpoints" / "best.json.tmp").mkdir()
    with pytest.raises(StorageError, match="cannot write .*best.json"):
        mark_best(tmp_path, 100, 1.0, 10)
