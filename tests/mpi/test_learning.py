"""The shipped small configurations learn, as greedy evaluations by a rank of its own tell."""

from pathlib import Path

import pytest
from launching import first_good_evaluation

from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

CONFIGS = Path(__file__).parents[2] / "configs"
CASES = [  # configuration, greedy mean return that counts as good, ranks with an evaluator
    pytest.param("cartpole_bundled.toml", 475.0, 4, marks=pytest.mark.long),
    ("catch_bundled.toml", 0.95, 4),
    ("cartpole_ppo.toml", 475.0, 1),
    pytest.param("cartpole_a2c.toml", 400.0, 1, marks=pytest.mark.long),
    pytest.param("cartpole_a3c.toml", 400.0, 4, marks=pytest.mark.long),
    pytest.param("cartpole_appo.toml", 400.0, 4, marks=pytest.mark.long),
    pytest.param("cartpole_impala.toml", 400.0, 5, marks=pytest.mark.long),
    pytest.param("cartpole_ga3c.toml", 400.0, 3, marks=pytest.mark.long),
    pytest.param("pendulum_ppo.toml", -200.0, 1, marks=pytest.mark.long),
    *(
        pytest.param(name, 0.95, 5, marks=pytest.mark.long)
        for name in ("apex_small.toml", "catch_parallel_actors.toml", "catch_many_learners.toml")
    ),
]
PERIODS = {"cartpole_a2c.toml": 200, "cartpole_impala.toml": 100, "cartpole_ga3c.toml": 100}
"""Updates between two evaluations, where 500 are most of a run."""
SEEDS = [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3, 4, 5))]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("config", "good", "ranks"), CASES)
def test_reaches_a_good_greedy_evaluation(config, good, ranks, seed, tmp_path):
    run_dir = tmp_path / "run"
    overrides = ["topology.evaluators=1", "exploration.evaluation_epsilon=0.0", "run.evaluation_episodes=20"]
    overrides += [
        f"run.evaluation_period_updates={PERIODS.get(config, 500)}",
        f"run.seed={seed}",
    ]
    row = first_good_evaluation(ranks, CONFIGS / config, run_dir, *overrides, good=good)
    episodes = set(read_runlog(run_dir, "evaluations")["episodes"])
    assert episodes <= {20, 24, 32}  # the same number on each of the simulators
    assert len(read_runlog(run_dir, "episodes")["episode_return"]) > 0
    print(
        f"{config} seed {seed}: {row['mean_return']:.2f} at update {row['global_update']:,}, "
        f"{row['total_frames']:,} frames, {row['wall_seconds']:.0f} s"
    )
