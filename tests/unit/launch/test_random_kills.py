"""A serial run killed at random times and resumed: a verified checkpoint is always left, and no announced one lost."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from hpcrl.storage import checkpoint as checkpoints

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "tests" / "mpi" / "small.toml"
OVERRIDES = ('topology.layout="serial"', "checkpoint.period_seconds=0.2", "checkpoint.keep_last=2")


def start(run_dir):
    sets = [part for override in OVERRIDES for part in ("--set", override)]
    command = [sys.executable, "-m", "hpcrl", "train", str(CONFIG), "--run-dir", str(run_dir), *sets]
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def announced(run_dir):
    """Updates of the checkpoints that the events tell of, in order."""
    return [int(n) for n in re.findall(r"checkpoint of update (\d+) written", events(run_dir))]


def events(run_dir):
    path = run_dir / "events.log"
    return path.read_text() if path.exists() else ""


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 5), *(pytest.param(seed, 25, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_killed_at_random_times_and_resumed_each_time(tmp_path, seed, kills):
    run_dir, rng = tmp_path / "run", np.random.default_rng(seed)
    number = update = 0
    for kill in range(kills):
        before = len(announced(run_dir))
        process = start(run_dir)
        deadline = time.monotonic() + 300
        while len(announced(run_dir)) == before:  # every start gets as far as its first checkpoint, so the run goes on
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(rng.uniform(0, 0.6))  # the next ones are under way, or between two
        process.send_signal(signal.SIGKILL)
        err = process.communicate()[1]
        assert process.returncode == -signal.SIGKILL, err
        if kill:
            assert "skipped checkpoint" not in err
        newest, skipped = checkpoints.latest(run_dir)
        assert not skipped
        told = announced(run_dir)
        assert newest.number >= max(len(told), number + 1)
        assert newest.global_update >= max(told[-1], update)
        number, update = newest.number, newest.global_update
    assert number >= kills
    checkpoints.clean(run_dir)
    left = {path.name for path in (run_dir / "checkpoints").iterdir()}
    assert all(re.fullmatch(r"step-\d{12}", name) for name in left)
    assert len(left) <= 3
