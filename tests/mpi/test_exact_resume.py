"""A serial run that was stopped, or killed, and resumed is bit for bit the one that never was: everything in its last
checkpoint, replay and random numbers included, and every row of its log that carries no time."""

import signal
from pathlib import Path

import h5py
import numpy as np
import pytest
from launching import run_ranks, train

from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

CONFIG = Path(__file__).with_name("small.toml")
COMMON = [
    "topology.layout=serial",
    "topology.evaluators=1",
    "run.evaluation_period_updates=33",
    "run.evaluation_episodes=4",
    "replay.capacity_steps=300",  # full, and overwritten, at the end
    "learning.target_period_updates=30",
]
CASES = {
    "catch": [
        "env.stack=2",
        "replay.n_step=3",
        "replay.sampling=prioritized",
        "actor.sync_period_steps=5",
        "learner.pull_period_updates=4",
        "learner.outlier_deviations=2.0",
        "learner.outlier_window_updates=20",
    ],
    "allreduce": [
        "learning.update=allreduce",
        "learning.training_intensity=16.0",  # a gradient after each step, whenever a checkpoint is cut
        "learning.optimizer=rmsprop",
        "learning.learning_rate_final=1e-4",
        "learning.learning_rate_decay=frames",
        "learning.learning_rate_decay_length=3000",
    ],
    "store": ["learning.update=store", "learning.optimizer=rmsprop"],
    "ppo": [
        "learning.algorithm=ppo",
        "env.simulators=4",
        "policy.horizon_steps=15",
        "policy.groups=2",
        "policy.epochs=3",
    ],
    "ale": [
        "env.id=ALE/Pong-v5",
        "env.exact=true",
        "env.sticky_probability=0.25",
        "env.noop_max=10",
        "env.max_episode_frames=200",
        "env.kwargs={img_height=42, img_width=42}",
        "env.frame_skip=4",
        "env.stack=4",
        "learning.batch_size=16",
    ],
}


def start(run_dir, case, updates, *overrides):
    done = train(0, CONFIG, run_dir, *COMMON, *CASES[case], f"run.total_updates={updates}", *overrides)
    assert done.returncode == 0, done.stderr
    return done


def contents(run_dir, updates) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint, and every column of the log but the time."""
    checkpoint, skipped = latest(run_dir)
    assert not skipped
    assert checkpoint.global_update == updates
    assert any(owner.startswith(("replay-", "learner-")) for owner in checkpoint.owners)
    found = {"total_frames": np.array(checkpoint.attributes["total_frames"])}
    for path in sorted(checkpoint.path.glob("*.h5")):
        with h5py.File(path) as file:
            file.visititems(
                lambda name, item, owner=path.stem: (
                    found.__setitem__(f"{owner}/{name}", item[()]) if isinstance(item, h5py.Dataset) else None
                )
            )
    for table in ("episodes", "evaluations"):
        rows = read_runlog(run_dir, table)
        assert len(rows["wall_seconds"]) > 0
        found |= {f"{table}/{name}": column for name, column in rows.items() if name != "wall_seconds"}
    return found


def assert_same_at(updates, run_dir, expected_dir):
    """Two runs that both ended after so many updates are the same."""
    found, expected = contents(run_dir, updates), contents(expected_dir, updates)
    assert found.keys() == expected.keys()
    different = [name for name, value in expected.items() if value.tobytes() != found[name].tobytes()]
    assert different == []


HURRIED = """
import sys
from hpcrl import cli
from hpcrl.roles import monitor
monitor.TICK_SECONDS = 0.01
cli.main()
"""
"""hpcrl whose monitor looks more often whether a checkpoint is due, since these runs are short."""


@pytest.mark.parametrize(
    "case", ["catch", "ale", *(pytest.param(case, marks=pytest.mark.long) for case in ("allreduce", "store", "ppo"))]
)
def test_stopped_and_killed_and_resumed(case, tmp_path):
    run_dir = tmp_path / "stopped"
    start(run_dir, case, 100)
    sets = [*COMMON, *CASES[case], "run.total_updates=200", "checkpoint.period_seconds=0.02"]
    arguments = ["-c", HURRIED, "train", CONFIG, "--run-dir", run_dir, *(f"--set={key}" for key in sets)]
    killed = run_ranks(0, arguments, HPCRL_FAULT_POINT="all_written 4")  # three checkpoints done, one half done
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(list((run_dir / "checkpoints").glob("*.tmp"))) == 1
    assert 100 < latest(run_dir)[0].global_update < 200
    again = start(run_dir, case, 200)
    assert "resuming" in again.stderr
    assert (np.diff(read_runlog(run_dir, "progress")["total_frames"]) > 0).all()
    start(tmp_path / "whole", case, 200)
    assert_same_at(200, run_dir, tmp_path / "whole")
