"""SIGKILL at every point of a checkpoint: a verified one is left, nothing announced is lost, nothing stale remains."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import dying
import numpy as np
import pytest

from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage import fault
from hpcrl.storage.best import read_best
from hpcrl.storage.replay import ReplayFile
from hpcrl.storage.statefile import read_state

ROOT = Path(__file__).parents[3]


def start(run_dir, point=""):
    """Run until killed; the numbers of the checkpoints that were finished."""
    command = [sys.executable, str(Path(dying.__file__)), str(run_dir)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), fault.VARIABLE: point}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60)
    return done, [int(number) for number in done.stdout.split()]


def check_newest(run_dir):
    """The newest checkpoint, whose every file holds what was written at its update."""
    newest, skipped = checkpoints.latest(run_dir)
    assert not skipped
    for owner in dying.OWNERS[:2]:
        arrays, _ = read_state(checkpoints.state_path(newest.path, owner), owner.rpartition("-")[0])
        np.testing.assert_array_equal(arrays["value"], newest.global_update)
    with ReplayFile(checkpoints.state_path(newest.path, "replay-0")) as file:
        assert len(file.outcomes(0)) == 150
        for _, frames in file.frames(0):
            np.testing.assert_array_equal(frames, newest.global_update)
    return newest


def stale(run_dir):
    return [path.name for path in (run_dir / "checkpoints").iterdir() if path.suffix in (".tmp", ".old")]


PASSAGES = [(point, {"replaced": 1, "pruning": 1, "replay_chunk": 23}.get(point, 3)) for point in fault.POINTS]
"""Each is passed often enough that a checkpoint was finished before."""


@pytest.mark.parametrize(("point", "passage"), PASSAGES, ids=fault.POINTS)
def test_a_kill_at_every_point_loses_no_finished_checkpoint(tmp_path, point, passage):
    run_dir = tmp_path / "run"
    done, finished = start(run_dir, f"{point} {passage}")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert finished
    checkpoints.clean(run_dir)  # as the next start does before anything else
    assert not stale(run_dir)
    newest = check_newest(run_dir)
    assert newest.number >= finished[-1]
    best = read_best(run_dir)
    assert best is not None
    assert best.path(run_dir).is_dir()
    dying.run(run_dir)
    assert check_newest(run_dir).number == newest.number + 4
    assert not stale(run_dir)
    names = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert len(names) == 3  # the last two and the label of the best, which is the last


def test_every_point_is_passed(tmp_path):
    """The list and the code name the same points."""
    sources = [path for path in (ROOT / "hpcrl").rglob("*.py") if path.name != "fault.py"]
    texts = "".join(path.read_text() for path in sources)
    assert {point for point in fault.POINTS if f'fault_point("{point}")' in texts} == set(fault.POINTS)
    assert texts.count('fault_point("') == len(fault.POINTS)
