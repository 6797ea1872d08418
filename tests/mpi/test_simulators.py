"""Jobs whose environments run on ranks of their own, and actors whose rollouts go to learners elsewhere."""

import contextlib
import os
import signal
from pathlib import Path

import numpy as np
import pytest
from launching import rank_pids, train, training_job

from hpcrl.errors import EXIT_FINISHED, EXIT_STALLED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

CONFIG = Path(__file__).with_name("small.toml")
CREW = ["topology.layout=sampler_learner", "topology.simulator_ranks=2", "env.simulators=8", "policy.horizon_steps=9"]
SPLIT = ["topology.layout=split", "learning.update=server", "env.simulators=4", "policy.horizon_steps=9"]
CASES = {
    "ppo, synchronous": (3, [*CREW, "learning.algorithm=ppo", "learning.update=allreduce", "policy.groups=2"]),
    "ppo, two learners": (6, [*CREW, "learning.algorithm=ppo", "learning.update=allreduce", "policy.groups=2"]),
    "a3c": (7, [*CREW, "learning.algorithm=a2c", "learning.update=server"]),
    "appo": (7, [*CREW, "learning.algorithm=ppo", "learning.update=store", "policy.groups=2"]),
    "ga3c": (3, [*CREW, "learning.algorithm=ga3c", "learning.update=allreduce"]),
    "ga3c, server, two shares": (4, [*CREW, "learning.algorithm=ga3c", "learning.update=server", "policy.groups=2"]),
    "impala, central": (4, [*CREW, "learning.algorithm=impala", "learning.update=server", "policy.rollouts=2"]),
    "impala": (4, [*SPLIT, "learning.algorithm=impala", "policy.rollouts=2"]),
    "impala, two of each": (7, [*SPLIT, "learning.algorithm=impala", "topology.servers=2", "topology.learners=2"]),
}
QUICK = {"ppo, synchronous", "impala"}


def actors_of(case: str) -> set[int]:
    """Actors of a case: one for each learner, but for the split layout."""
    ranks, sets = CASES[case]
    if SPLIT[0] in sets:
        return set(range(3 if "two" in case else 2))
    return {0, 1} if ranks > 4 else {0}


@pytest.mark.parametrize("case", [pytest.param(c, marks=() if c in QUICK else pytest.mark.long) for c in CASES])
def test_a_job_ends_and_goes_on(case, tmp_path):
    ranks, sets = CASES[case]
    for updates in (40, 80):
        done = train(ranks, CONFIG, tmp_path / "run", *sets, f"run.total_updates={updates}", timeout=300)
        assert done.returncode == EXIT_FINISHED, done.stderr
        checkpoint, skipped = latest(tmp_path / "run")
        assert not skipped
        assert checkpoint.global_update == updates
        assert not any("simulator" in owner for owner in checkpoint.owners)
    policies = read_runlog(tmp_path / "run", "policies")
    learned = ~np.isnan(policies["entropy"])
    assert 0 < np.median(policies["entropy"][learned]) <= np.log(3) + 1e-6
    assert (policies["lag"][learned] >= 0).all()
    episodes = read_runlog(tmp_path / "run", "episodes")
    assert set(episodes["actor"]) <= actors_of(case)  # where nobody waits, one may do it all
    assert set(episodes["length_steps"]) == {9}
    assert set(episodes["episode_return"]) == {-1.0, 1.0}
    simulators = 8 if CREW[1] in sets else 4
    assert set(episodes["simulator"]) == set(range(simulators))


@contextlib.contextmanager
def stopped(pids):
    """Processes that are stopped, and go on in the end if they still exist."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


LIMITS = ["run.heartbeat_seconds=2", "run.stall_seconds=5"]


@pytest.mark.parametrize(
    ("case", "which", "names"),
    [
        ("ppo, synchronous", [2], ["rank 2 (simulator 1)"]),
        # of two learners each is without one of its simulators
        pytest.param("a3c", [3, 5], ["rank 3 (simulator 1)", "rank 5 (simulator 2)"], marks=pytest.mark.long),
        pytest.param("ga3c", [1, 2], ["rank 1 (simulator 0)", "rank 2 (simulator 1)"], marks=pytest.mark.long),
    ],
)
def test_stopped_simulators_are_named_and_end_the_job_if_no_learner_can_go_on(case, which, names, tmp_path):
    ranks, sets = CASES[case]
    with training_job(ranks, CONFIG, tmp_path / "run", *sets, *LIMITS) as job:
        pids = rank_pids(job)
        with stopped([pids[rank] for rank in which]):
            _, err = job.communicate(timeout=60)
    assert job.returncode == EXIT_STALLED, err
    assert "run.stall_seconds" in err
    for name in names:
        assert name in err


@pytest.mark.long
@pytest.mark.parametrize("case", ["a3c", "ga3c"])
def test_where_others_can_go_on_they_do(case, tmp_path):
    ranks, sets = CASES[case]
    job_to_end = training_job(ranks, CONFIG, tmp_path / "run", *sets, *LIMITS, "run.total_frames=60000")
    with job_to_end as job, stopped(rank_pids(job)[-1:]):
        _, err = job.communicate(timeout=200)
    assert job.returncode == EXIT_FINISHED, err
    assert f"rank {ranks - 1} (simulator" in err
    assert f"the job ends without rank {ranks - 1}" in err
    assert read_runlog(tmp_path / "run", "progress")["total_frames"][-1] >= 60_000
