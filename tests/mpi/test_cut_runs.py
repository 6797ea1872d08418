"""A run that time limits and a failed node have cut into many pieces is the run that was never cut."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT, environment, rank_pids, start_training, train, updates_of
from test_exact_resume import COMMON, assert_same_at

from hpcrl.errors import EXIT_STOPPED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import list_segments, read_runlog

pytestmark = [pytest.mark.long, pytest.mark.one_mpi]

CONFIG = Path(__file__).with_name("small.toml")
CUTS, FAILURE = 10, 6
"""Time limits, and after how many of them a node fails."""
JOB_SECONDS = 40.0
"""From a start to the end of its job, in every fifth start; the others have a time limit of their own."""


def cut(ranks, run_dir, *overrides):
    """Start the run and cut it by a time limit, ten times, and kill it once in between; its last global update."""
    for number in range(CUTS):
        if number % 5 == 2:
            done = train(ranks, CONFIG, run_dir, *overrides, HPCRL_END_TIME=f"{time.time() + JOB_SECONDS}")
            assert "the job is ended in" in done.stderr
        else:
            done = train(ranks, CONFIG, run_dir, *overrides, "run.time_limit_seconds=1.5")
            assert "run.time_limit_seconds reached" in done.stderr
        assert done.returncode == EXIT_STOPPED, done.stderr
        if number == FAILURE:
            fail(ranks, run_dir, *overrides)
    assert len(list_segments(run_dir)[0]) == CUTS + 1
    return latest(run_dir)[0].global_update


def fail(ranks, run_dir, *overrides):
    """Start the run and kill all of it once it has written a checkpoint and gone on."""
    before = latest(run_dir)[0]
    if ranks:
        job = start_training(ranks, CONFIG, run_dir, *overrides)
    else:
        sets = [f"--set={override}" for override in overrides]
        command = [sys.executable, "-m", "hpcrl", "train", CONFIG, "--run-dir", run_dir, *sets]
        job = subprocess.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while latest(run_dir)[0].number == before.number:
        assert job.poll() is None, job.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(0.7)
    for pid in rank_pids(job) if ranks else [job.pid]:
        os.kill(pid, signal.SIGKILL)
    job.communicate()


def test_in_the_serial_layout_bit_for_bit(tmp_path):
    overrides = (*COMMON, "checkpoint.period_seconds=1.0")
    end = cut(0, tmp_path / "cut", *overrides) + 100
    for name, seconds in (("cut", 1.0), ("whole", 300.0)):
        last = (f"run.total_updates={end}", f"checkpoint.period_seconds={seconds}")
        done = train(0, CONFIG, tmp_path / name, *overrides, *last, timeout=600)
        assert done.returncode == 0, done.stderr
    assert_same_at(end, tmp_path / "cut", tmp_path / "whole")


def test_on_three_ranks_with_the_same_counters(tmp_path):
    """Acting follows learning (`learning.training_ratio`), so that frames and updates go together."""
    run_dir = tmp_path / "cut"
    overrides = ("checkpoint.period_seconds=1.0",)
    end = cut(3, run_dir, *overrides) + 500
    for name in ("cut", "whole"):
        done = train(3, CONFIG, tmp_path / name, *overrides, f"run.total_updates={end}", timeout=600)
        assert done.returncode == 0, done.stderr
    frames = [latest(tmp_path / name)[0].attributes["total_frames"] for name in ("cut", "whole")]
    updates = [latest(tmp_path / name)[0].global_update for name in ("cut", "whole")]
    assert updates == [end, end]
    assert frames[0] == pytest.approx(frames[1], rel=0.01)
    rows = read_runlog(run_dir, "progress")
    assert updates_of(run_dir) == updates[0]
    assert rows["global_update"][-1] == updates[0]
    resumed = re.findall(r"resuming \S+ at update (\d+)", (run_dir / "events.log").read_text())
    assert len(resumed) == CUTS + 1
    assert (np.diff([int(update) for update in resumed]) > 0).all()
