"""An asynchronous run whose order was recorded is executed again in one process, bit for bit."""

import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from launching import run_ranks, train

from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

CONFIG = Path(__file__).with_name("small.toml")
EVERYTHING = [
    "topology.servers=2",
    "log.apply_order=true",
    "learner.pipeline=1",
    "learner.pull_period_updates=2",
    "learner.outlier_deviations=1.0",
    "learner.outlier_window_updates=20",
    "learning.virtual_delay=0:1, 4:1",
    "server.staleness_bound_updates=5",
    "learning.learning_rate_final=1e-4",
    "learning.learning_rate_decay=frames",
    "learning.learning_rate_decay_length=1000",
    "learning.target_period_updates=20",
    "learning.double=true",
    "network.dueling=true",
    "replay.sampling=prioritized",
    "replay.n_step=3",
    "exploration.ladder_alpha=3.0",
    "actor.sync_period_steps=3",
]
"""Two bundles, and whatever makes the result depend on the order."""


def retrace(run_dir):
    return run_ranks(0, ["-m", "hpcrl", "retrace", run_dir])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("recorded")
    done = train(4, CONFIG, run_dir, "run.total_updates=120", *EVERYTHING)
    assert done.returncode == 0, done.stderr
    return run_dir


def test_the_parameters_are_the_same_bit_for_bit(recorded):
    done = retrace(recorded)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bit for bit" in done.stdout
    order = read_runlog(recorded, "order")
    assert set(order["event"]) == {0, 1, 2}
    assert set(order["accepted"][order["event"] == 2]) == {0, 1}
    for learner in (0, 1):  # what is recorded is asynchronous: both learn at the same time, and wait for nobody
        whose = order["learner"][(order["event"] == 2) & (order["shard"] == 0)]
        assert (whose == learner).sum() > 20
    assert set(read_runlog(recorded, "gradients")["fate"]) >= {0, 2, 3}


def test_another_order_gives_other_parameters_or_none(recorded, tmp_path):
    run_dir = tmp_path / "tampered"
    shutil.copytree(recorded, run_dir)
    with h5py.File(run_dir / "runlog-000.h5", "r+") as file:
        order = file["order"]
        event, shard, learner, accepted = (order[name][:] for name in ("event", "shard", "learner", "accepted"))
        judged = np.flatnonzero((event == 2) & (shard == 0) & (accepted == 1))[20:]
        first = next(k for k in range(len(judged)) if learner[judged[k]] != learner[judged[k + 1]])
        one, other = judged[first], judged[first + 1]
        for name in ("learner", "sequence"):
            values = order[name][:]
            values[[one, other]] = values[[other, one]]
            order[name][:] = values
    done = retrace(run_dir)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "parameters differ" in done.stdout or "the contrary" in done.stderr or "are left" in done.stderr
