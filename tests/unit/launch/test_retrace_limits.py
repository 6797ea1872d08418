"""What cannot be retraced is refused; `tests/mpi/test_retrace.py` retraces a run."""

import pytest

from hpcrl.config import from_dict
from hpcrl.errors import ConfigError, StorageError
from hpcrl.launch.retrace import Retrace
from hpcrl.roles.metrics import ACTED, JUDGED
from hpcrl.storage import schema
from hpcrl.storage.runlog import RunLog


def config(layout="bundled", place="local"):
    return from_dict(
        {
            "topology": {"layout": layout},
            "env": {"id": "catch", "simulators": 1},
            "network": {"kind": "mlp", "hidden": [4]},
            "replay": {"place": place, "capacity_steps": 100, "learning_starts_steps": 50},
        }
    )


def record(run_dir, *events):
    log = RunLog(run_dir, {})
    for event in events:
        log.append("order", dict.fromkeys(schema.TABLES["order"], 0) | event)
    log.close()


def test_a_run_that_recorded_no_order(tmp_path):
    record(tmp_path)
    with pytest.raises(ConfigError, match="run it anew with log.apply_order = true"):
        Retrace(config(), tmp_path)


@pytest.mark.parametrize(("layout", "place"), [("split", "local"), ("bundled", "global")])
def test_a_memory_that_others_write(layout, place, tmp_path):
    record(tmp_path, {"event": ACTED})
    with pytest.raises(ConfigError, match=f"with local replay, got {layout} with {place}"):
        Retrace(config(layout, place), tmp_path)


def test_a_resumed_run(tmp_path):
    record(tmp_path, {"event": ACTED})
    record(tmp_path, {"event": ACTED})
    with pytest.raises(ConfigError, match="was resumed"):
        Retrace(config(), tmp_path)


def test_a_gradient_that_nobody_computed(tmp_path):
    record(tmp_path, {"event": ACTED, "sequence": 1}, {"event": JUDGED, "sequence": 3, "accepted": 1})
    with pytest.raises(StorageError, match="1 recorded events are left that nothing leads to"):
        Retrace(config(), tmp_path).run()
