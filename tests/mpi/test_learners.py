"""Many learners: synchronous ones equal one with a larger batch, and jobs of them train, stop and resume."""

from pathlib import Path

import numpy as np
import pytest
from launching import run_ranks, train

from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

RANKS = Path(__file__).with_name("ranks")
CONFIG = Path(__file__).with_name("small.toml")
SYNCHRONOUS = ["topology.layout=sampler_learner", "learning.update=allreduce", "learner.verify_period_updates=10"]


def output(ranks: int, program: str, *arguments, **extra: str) -> str:
    done = run_ranks(ranks, ["-m", "mpi4py", RANKS / program, *arguments], timeout=120, **extra)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_learners_equal_one_with_all_their_minibatches(ranks):
    """For SGD, RMSProp and Adam, also where some refuse their gradient or have one that is not finite."""
    said = output(ranks, "averaging.py", "mpi", "gloo")
    assert said.split() == ["mpi", "equal", "gloo", "equal"]


def test_a_synchronous_job_trains_stops_and_goes_on_in_other_layouts(tmp_path):
    done = train(3, CONFIG, tmp_path, *SYNCHRONOUS, "run.total_updates=60", "log.period_seconds=0.2")
    assert done.returncode == 0, done.stderr
    checkpoint, skipped = latest(tmp_path)
    assert (checkpoint.global_update, skipped) == (60, [])
    assert {"parameter_server-0", "learner-2", "actor-2", "replay-2"} <= set(checkpoint.owners)
    last = {name: column[-1] for name, column in read_runlog(tmp_path, "progress").items()}
    assert (last["global_update"], last["gradients_accepted"]) == (60, 60)
    # Three learners of 32 transitions each for every update, 8 trained per step, after 64 steps of each memory
    assert last["total_steps"] >= 3 * (64 + 59 * 4)
    assert np.isfinite(last["loss"])
    assert set(read_runlog(tmp_path, "episodes")["actor"]) == {0, 1, 2}
    gradients = read_runlog(tmp_path, "gradients")
    assert set(gradients["fate"]) == {0}
    assert gradients["count"].sum() >= 3 * 60 - 2 * 3
    # As bundles with a server, and synchronously again.
    done = train(3, CONFIG, tmp_path, "run.total_updates=80")
    assert done.returncode == 0, done.stderr
    assert "resuming" in done.stderr
    done = train(2, CONFIG, tmp_path, *SYNCHRONOUS, "run.total_updates=90")
    assert done.returncode == 0, done.stderr
    assert latest(tmp_path)[0].global_update == 90


@pytest.mark.one_mpi
def test_nccl_without_a_gpu_is_a_clear_error(tmp_path):
    done = train(2, CONFIG, tmp_path, *SYNCHRONOUS, "learner.reduce=nccl")
    assert done.returncode == 2, done.stderr
    assert "expected 'auto', 'mpi' or 'gloo', because NCCL needs a GPU" in done.stderr
