"""Where the training ratio is only reported, one actor slowed ten times leaves everyone else's rate."""

from pathlib import Path

import numpy as np
import pytest
from launching import train

from hpcrl.storage.runlog import read_runlog

CONFIG = Path(__file__).with_name("small.toml")
RANKS = Path(__file__).with_name("ranks")


def rates(run_dir, slow_rank):
    """Steps per second of both actors and updates per second, by the run log, after the first second."""
    options = ["topology.layout=split", "learning.training_ratio=report", "run.time_limit_seconds=8.0"]
    options += ["env.id=slow_env:make", f"env.kwargs={{seconds = 0.004, slow_rank = {slow_rank}}}", "env.simulators=1"]
    done = train(4, CONFIG, run_dir, *options, PYTHONPATH=f"{RANKS}:{RANKS.parents[2]}")
    assert done.returncode == 85, done.stderr
    episodes, progress = read_runlog(run_dir, "episodes"), read_runlog(run_dir, "progress")
    steps = []
    for actor in (0, 1):
        mine = (episodes["actor"] == actor) & (episodes["wall_seconds"] > 1.0)
        steps.append(episodes["length_steps"][mine].sum() / (episodes["wall_seconds"].max() - 1.0))
    intensity = progress["training_intensity"]
    return *steps, float(np.median(progress["updates_per_second"][1:])), float(np.nanmedian(intensity[1:]))


@pytest.mark.long
def test_one_actor_slowed_ten_times_leaves_everyone_elses_rate(tmp_path):
    first, second, updates, intensity = rates(tmp_path / "even", slow_rank=-1)
    slowed_first, slowed_second, slowed_updates, slowed_intensity = rates(tmp_path / "slowed", slow_rank=3)
    print(
        f"steps/s {first:.0f} and {second:.0f}, updates/s {updates:.0f}, intensity {intensity:.1f}; with the second "
        f"actor slowed: {slowed_first:.0f} and {slowed_second:.0f}, {slowed_updates:.0f}, {slowed_intensity:.1f}"
    )
    assert slowed_second < 0.2 * second
    assert slowed_first > 0.7 * first
    assert slowed_updates > 0.5 * updates  # the learner shares cores with whatever else runs
    assert slowed_intensity > 1.3 * intensity  # reported, not held
