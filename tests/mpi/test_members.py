"""Every algorithm learns catch, and runs in every layout that it is allowed in."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from launching import first_good_evaluation, train
from members import CELLS, CONFIG, MEMBERS, PAGE, page

from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

EVALUATED = ["topology.evaluators=1", "exploration.evaluation_epsilon=0.0", "policy.evaluation=mode"]
ONCE = (
    *("run.evaluation_period_updates=25", "run.total_frames=80_000", "env.simulators=16", "policy.horizon_steps=8"),
    *("learning.optimizer=adam", "learning.learning_rate=3e-3"),
)
"""Of members that learn from each step once, and need many times the frames, but not the time."""
CATCH = {
    "all": (
        *("run.evaluation_period_updates=125", "run.evaluation_episodes=40", "run.total_frames=6500"),
        *("exploration.decay_length=4000", "learning.learning_rate=2e-3", "learning.target_period_updates=50"),
    ),
    **dict.fromkeys(MEMBERS, ()),
    **dict.fromkeys(("A2C", "IMPALA"), ONCE),
    "GA3C": (*ONCE, "learning.max_gradient_norm=40.0"),
}
FIFTY = ("network.atoms=26", "network.support=[0.0, 50.0]", "learning.discount=0.98")
"""Returns of CartPole at this discount are from 0 to 50."""
CARTPOLE = {
    "all": (
        *("topology.layout=serial", "run.evaluation_period_updates=1000", "run.evaluation_episodes=16"),
        "run.total_frames=60_000",
    ),
    "DQN": (),
    "C51": (*FIFTY, "learning.learning_rate=1e-3"),
    "epsilon-Rainbow": FIFTY,
    "PQN": (
        *("env.simulators=32", "policy.horizon_steps=32", "policy.epochs=4", "policy.minibatches=8"),
        *("learning.learning_rate=1e-3", "learning.discount=0.98", "exploration.decay_length=50_000"),
        *("run.total_frames=300_000", "run.evaluation_period_updates=500"),
    ),
}
TASKS = {  # keys that members need besides their own, configuration, greedy mean return that counts as good
    "catch": (CATCH, CONFIG, 0.9),  # a random player has about -0.6, the best 1
    "cartpole": (CARTPOLE, CONFIG.with_name("cartpole_bundled.toml"), 475.0),
}
LEARNERS = [
    pytest.param(task, member, id=f"{task}-{member}")
    for task, (keys, _, _) in TASKS.items()
    for member in keys
    if member != "all"
]


@pytest.fixture(scope="module")
def learned(request, tmp_path_factory):
    """What each run that is asked for comes to; each takes one core, and two are made at a time."""

    def learn(task, member):
        keys, config, good = TASKS[task]
        overrides = [*MEMBERS[member], *EVALUATED, *keys["all"], *keys[member]]
        return first_good_evaluation(1, config, tmp_path_factory.mktemp("learned") / "run", *overrides, good=good)

    asked = [item.callspec.params for item in request.session.items if item.originalname == "test_learns"]
    with ThreadPoolExecutor(2) as pool:
        runs = {(one["task"], one["member"]): pool.submit(learn, one["task"], one["member"]) for one in asked}
        yield {key: run.result for key, run in runs.items()}


@pytest.mark.parametrize(("task", "member"), LEARNERS)
def test_learns(task, member, learned):
    row = learned[task, member]()
    print(f"{task}, {member}: {row['mean_return']:.2f}, {row['total_frames']:,} frames, {row['wall_seconds']:.0f} s")


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
