"""Many learners: synchronous ones equal one with a larger batch, and jobs of them train, stop and resume."""

import os
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT, run_ranks, train

from hpcrl.errors import TopologyError
from hpcrl.launch.resume import load_shard
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

RANKS = Path(__file__).with_name("ranks")
CONFIG = Path(__file__).with_name("small.toml")
WAYS_TO_SUM = ("mpi", "gloo", "mpi+overlap", "gloo+overlap")
SYNCHRONOUS = ["topology.layout=sampler_learner", "learning.update=allreduce", "learner.verify_period_updates=10"]


def output(ranks: int, program: str, *arguments, timeout: float = 120) -> str:
    done = run_ranks(ranks, ["-m", "mpi4py", RANKS / program, *arguments], timeout=timeout)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.long), 3])
def test_learners_equal_one_with_all_their_minibatches(ranks):
    """For SGD, RMSProp and Adam, also where some refuse their gradient or have one that is not finite."""
    said = output(ranks, "averaging.py", *WAYS_TO_SUM)
    assert said.split() == [word for way in WAYS_TO_SUM for word in (way, "equal")]


@pytest.mark.one_mpi
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
    done = train(2, CONFIG, tmp_path, *SYNCHRONOUS, "run.total_updates=90", "learner.reduce_overlap=true")
    assert done.returncode == 0, done.stderr
    assert latest(tmp_path)[0].global_update == 90


@pytest.mark.long
@pytest.mark.one_mpi
def test_learners_whose_steps_are_compiled_train(tmp_path):
    """Under MPI, which must not be forked; parameters are compared every ten updates."""
    done = train(2, CONFIG, tmp_path, *SYNCHRONOUS, "learner.compile=true", "run.total_updates=60", timeout=600)
    assert done.returncode == 0, done.stderr
    assert latest(tmp_path)[0].global_update == 60


@pytest.mark.one_mpi
def test_nccl_without_a_gpu_is_a_clear_error(tmp_path):
    done = train(2, CONFIG, tmp_path, *SYNCHRONOUS, "learner.reduce=nccl")
    assert done.returncode == 2, done.stderr
    assert "expected 'auto', 'mpi' or 'gloo', because NCCL needs a GPU" in done.stderr


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    "update", ["allreduce", *(pytest.param(update, marks=pytest.mark.long) for update in ("server", "store"))]
)
def test_networks_that_differ_between_ranks_end_the_job_with_a_clear_error(update, tmp_path):
    options = [*SYNCHRONOUS[:1], f"learning.update={update}", "network.kind=uneven:make"]
    done = train(3, CONFIG, tmp_path, *options, PYTHONPATH=f"{ROOT}{os.pathsep}{RANKS}", timeout=60)
    assert done.returncode == TopologyError.exit_code, done.stderr
    assert "makes another network than rank 0" in done.stderr
    assert "its parameter 0 has shape [9, 50], not [8, 50]" in done.stderr


@pytest.mark.one_mpi
@pytest.mark.parametrize(
    ("learners", "period"),
    [(1, 4), (3, 4), *(pytest.param(*more, marks=pytest.mark.long) for more in ((1, 0), (1, 1), (1, 24), (3, 1)))],
)
def test_stored_parameters_are_those_of_all_gradients_in_their_order(learners, period):
    """A learner alone equals plain Adam and RMSProp for every sync period; period 0 is the rule on each chunk."""
    said = output(2 + learners, "storing.py", learners, period)
    assert "adam equal" in said
    assert period or "rmsprop equal" in said


@pytest.mark.parametrize(
    ("locking", "increments", "chunks"),
    [
        ("word", 600, 3),
        ("mpi", 60, 1),
        pytest.param("word", 10_000, 3, marks=pytest.mark.long),
        pytest.param("mpi", 10_000, 1, marks=pytest.mark.long),
    ],
)
def test_no_increment_of_a_locked_chunk_is_lost(locking, increments, chunks):
    said = output(4, "incrementing.py", locking, increments, chunks, timeout=600)
    assert f"each {increments} " in said, said


STORE = ["topology.layout=sampler_learner", "learning.update=store"]


@pytest.mark.one_mpi
@pytest.mark.parametrize("case", ["store", pytest.param("every fourth, split", marks=pytest.mark.long)])
def test_learners_that_share_a_store_train(case, tmp_path):
    more, ranks = ["learner.sync_period_updates=4", "topology.servers=2"], 5
    if "split" in case:
        more, ranks = [*more, "topology.layout=split", "topology.learners=2"], 6
    done = train(ranks, CONFIG, tmp_path, *STORE, *more, "run.total_updates=80")
    assert done.returncode == 0, done.stderr
    checkpoint, skipped = latest(tmp_path)
    assert not skipped
    assert 80 <= checkpoint.global_update < 80 + 4 * 3
    # The last of a learner finds that others have ended the run.
    assert set(read_runlog(tmp_path, "gradients")["fate"]) <= {0, 2}
    done = train(2, CONFIG, tmp_path, *STORE, "run.total_updates=120")
    assert done.returncode == 0, done.stderr
    assert 120 <= latest(tmp_path)[0].global_update < 124


@pytest.mark.long
@pytest.mark.one_mpi
def test_alone_a_learner_makes_the_same_parameters_in_each_way_of_updating(tmp_path):
    """With RMSProp, whose rule is the same: parameter for parameter, over several targets."""
    shards = []
    for update in ("server", "store", "allreduce"):
        options = ["topology.layout=serial", f"learning.update={update}", "run.total_updates=120"]
        options += ["learning.optimizer=rmsprop", "learning.target_period_updates=25"]
        done = train(0, CONFIG, tmp_path / update, *options)
        assert done.returncode == 0, done.stderr
        checkpoint, _ = latest(tmp_path / update)
        assert checkpoint.global_update == 120
        size = checkpoint.attributes["shard_bounds"][-1]
        shards.append(load_shard(checkpoint, 0, size, size))
    for shard in shards[1:]:
        np.testing.assert_array_equal(shard["params"], shards[0]["params"])
        np.testing.assert_array_equal(shard["target"], shards[0]["target"])
