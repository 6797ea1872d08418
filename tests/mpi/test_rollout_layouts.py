"""Policy gradients by several ranks: averaged by all learners, or applied by a server as they come; and resumed."""

from pathlib import Path

import numpy as np
import pytest
from launching import train

from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

CONFIG = Path(__file__).with_name("small.toml")
COMMON = ["topology.layout=sampler_learner", "env.simulators=4", "policy.horizon_steps=9", "policy.groups=2"]
CASES = {
    "ppo, synchronous": (2, ["learning.algorithm=ppo", "learning.update=allreduce", "policy.epochs=2"]),
    "a3c": (3, ["learning.algorithm=a2c", "learning.update=server"]),
}


@pytest.mark.parametrize("case", ["ppo, synchronous", pytest.param("a3c", marks=pytest.mark.long)])
def test_learners_with_simulators_of_their_own(case, tmp_path):
    ranks, sets = CASES[case]
    for updates in (40, 80):
        done = train(ranks, CONFIG, tmp_path / "run", *COMMON, *sets, f"run.total_updates={updates}", timeout=300)
        assert done.returncode == 0, done.stderr
        checkpoint, skipped = latest(tmp_path / "run")
        assert not skipped
        assert checkpoint.global_update == updates
    assert {"actor-0", "actor-1", "learner-0", "learner-1"} <= set(checkpoint.owners)
    policies = read_runlog(tmp_path / "run", "policies")
    assert set(policies["learner"]) == {0, 1}
    learned = ~np.isnan(policies["entropy"])
    assert 0 < np.median(policies["entropy"][learned]) <= np.log(3) + 1e-6
    assert (policies["lag"][learned] >= 0).all()
    episodes = read_runlog(tmp_path / "run", "episodes")
    assert set(episodes["actor"]) == {0, 1}
    assert set(episodes["simulator"]) <= {0, 1, 2, 3}
