"""Every algorithm learns catch, and runs in every layout that it is allowed in."""

import numpy as np
import pytest
from launching import train
from members import CELLS, CONFIG, MEMBERS, PAGE, page

from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

LEARNED = 0.9
"""mean return of 40 greedy episodes; a random player has about -0.6, the best 1"""
LEARNING = [
    "topology.evaluators=1",
    "run.evaluation_period_updates=125",
    "run.evaluation_episodes=40",
    "run.total_frames=6500",
    "exploration.decay_length=4000",
    "exploration.evaluation_epsilon=0.0",
    "learning.learning_rate=2e-3",
    "learning.target_period_updates=50",
]
ONCE = {"A2C", "IMPALA", "GA3C"}
"""Members that use each step once, and need many times the frames."""
OFTEN = {"QR-DQN", "epsilon-Rainbow", "PQN"}
"""Members that the short suite trains; that DQN learns is seen in test_learning too."""


@pytest.mark.parametrize(
    "member",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.long) for name in MEMBERS if name not in ONCE],
)
def test_learns_catch(member, tmp_path):
    done = train(0, CONFIG, tmp_path / "run", *MEMBERS[member], *LEARNING, timeout=300)
    assert done.returncode == 0, done.stderr
    rows = read_runlog(tmp_path / "run", "evaluations")
    assert rows["mean_return"].max() >= LEARNED, rows["mean_return"]


CARTPOLE = {
    "DQN": (),
    "C51": ("network.atoms=51", "network.support=[0.0, 100.0]"),
    "epsilon-Rainbow": ("network.atoms=51", "network.support=[0.0, 100.0]"),
    "PQN": (
        *("policy.horizon_steps=32", "policy.epochs=4", "learning.learning_rate=1e-3"),
        *("exploration.decay_length=30_000", "run.total_frames=150_000"),
    ),
}
"""What each needs besides its own keys, where a return is up to 100."""


@pytest.mark.long
@pytest.mark.parametrize("member", CARTPOLE)
def test_learns_cartpole(member, tmp_path):
    alone = ["topology.layout=serial", "topology.evaluators=1", "run.evaluation_period_updates=500"]
    alone += ["run.evaluation_episodes=20", "run.total_frames=60_000"]
    config = CONFIG.with_name("cartpole_bundled.toml")
    done = train(0, config, tmp_path / "run", *alone, *MEMBERS[member], *CARTPOLE[member], timeout=600)
    assert done.returncode == 0, done.stderr
    rows = read_runlog(tmp_path / "run", "evaluations")
    assert rows["mean_return"].max() >= 475, rows["mean_return"]


@pytest.mark.long
@pytest.mark.parametrize(("member", "way"), CELLS, ids=[f"{member}-{way}" for member, way in CELLS])
def test_runs_in_this_layout(member, way, tmp_path):
    end = ["run.total_updates=60", "replay.learning_starts_steps=100", "actor.report_period_seconds=0.05"]
    done = train(way.ranks, CONFIG, tmp_path / "run", *MEMBERS[member], *way.overrides, *end)
    assert done.returncode == 0, done.stderr
    rows = read_runlog(tmp_path / "run", "progress")
    assert rows["global_update"][-1] == 60
    assert np.isfinite(rows["loss"]).any()


def test_the_page_of_algorithms_is_up_to_date():
    """Its tables; how a refusal is worded may change."""
    found, expected = ([row for row in text.splitlines() if row.startswith("|")] for text in (PAGE.read_text(), page()))
    assert found == expected, "python tests/mpi/members.py > docs/algorithms.md"
