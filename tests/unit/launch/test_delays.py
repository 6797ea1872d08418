"""The distribution of virtual delays, written and recorded."""

import pytest

from hpcrl.errors import ConfigError
from hpcrl.launch.delays import delay_distribution
from hpcrl.storage import schema
from hpcrl.storage.runlog import RunLog


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ([0], [1.0])),
        ("30", ([30], [1.0])),
        ("0:1, 10:2.5,100 : 1e-3", ([0, 10, 100], [1.0, 2.5, 1e-3])),
        ("5,7", ([5, 7], [1.0, 1.0])),
    ],
)
def test_as_written(text, expected):
    assert delay_distribution(text) == expected


def test_as_recorded_by_all_learners_of_a_run(tmp_path):
    log = RunLog(tmp_path, {})
    row = dict.fromkeys(schema.TABLES["gradients"], 0)
    for learner, fate, delay, count in ((0, 0, 2, 5), (1, 0, 2, 3), (0, 1, 4, 1), (1, 2, 9, 1), (0, 3, -1, 50)):
        log.append("gradients", row | {"learner": learner, "fate": fate, "delay_updates": delay, "count": count})
    log.close()
    assert delay_distribution(str(tmp_path)) == ([2, 4, 9], [8.0, 1.0, 1.0])


@pytest.mark.parametrize("text", ["-3", "3:x", "1:0", "1:1e400", "no/such/run", "1,,2", "2:--1"])
def test_anything_else_is_a_config_error(text):
    with pytest.raises(ConfigError, match=r"learning.virtual_delay: expected \"30\""):
        delay_distribution(text)


def test_a_run_without_gradients_has_no_distribution(tmp_path):
    RunLog(tmp_path, {}).close()
    with pytest.raises(ConfigError, match="no gradients in its run log"):
        delay_distribution(str(tmp_path))
