"""How two learners of catch learn in each way of updating, and with rarer visits to the store; prints tables.

    python docs/learners.py ways runs/learners       # server, store and allreduce at equal frames
    python docs/learners.py periods runs/learners    # the store, visited every 1, 4, 16 and 64 updates

Runs that are there already are not made again. Needs mpiexec beside this Python.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from hpcrl.storage.runlog import read_runlog

CONFIG = Path(__file__).parents[1] / "configs" / "catch_bundled.toml"
SEEDS = (1, 2)
TOTAL_FRAMES, STRETCH_FRAMES = 16_000, 1_000
GOOD = 0.8
"""mean training return over a stretch, with epsilon 0.05 still to come off"""
COMMON = [f"run.total_frames={TOTAL_FRAMES}", "log.period_seconds=0.5", "exploration.decay_length=3000"]
WAYS = {
    "server": (3, []),
    "store": (3, ["learning.update=store"]),
    # Each update is of both learners' minibatches: of half the size, so that all ways make as many updates per frame.
    "allreduce": (
        2,
        ["topology.layout=sampler_learner", "learning.update=allreduce", "learning.batch_size=16"],
    ),
}
PERIODS = {f"n = {n}": (3, ["learning.update=store", f"learner.sync_period_updates={n}"]) for n in (1, 4, 16, 64)}


def train(run_dir: Path, ranks: int, *overrides: str) -> None:
    if (run_dir / "checkpoints").exists():
        return
    command = [Path(sys.executable).with_name("mpiexec"), "-n", ranks]
    command += [sys.executable, "-m", "hpcrl", "train", CONFIG, "--run-dir", run_dir]
    command += [part for override in overrides for part in ("--set", override)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(list(map(str, command)), check=True, env=environment, stdout=subprocess.DEVNULL, timeout=300)


def summary(run_dir: Path) -> tuple[str, float, float, float]:
    """Frames until a stretch is good, mean return of the last three, frames and updates per second."""
    episodes, progress = (read_runlog(run_dir, table) for table in ("episodes", "progress"))
    ends = np.arange(STRETCH_FRAMES, TOTAL_FRAMES + 1, STRETCH_FRAMES)
    stretch = np.searchsorted(ends, episodes["total_frames"])
    returns = np.array([episodes["episode_return"][stretch == k].mean() for k in range(len(ends))])
    good = np.flatnonzero(returns >= GOOD)
    seconds = progress["wall_seconds"][-1] - progress["wall_seconds"][0]
    rates = [(progress[name][-1] - progress[name][0]) / seconds for name in ("total_frames", "global_update")]
    return f"{ends[good[0]]:,}" if len(good) else "never", float(np.nanmean(returns[-3:])), *rates


def table(root: Path, names) -> None:
    print("| | good after [frames] | return at the end | steps/s | updates/s |")
    print("|---|---|---|---|---|")
    for name in names:
        found = [summary(root / f"{name}, seed {seed}") for seed in SEEDS]
        when, last, steps, updates = zip(*found, strict=True)
        ends = ", ".join(f"{value:.2f}" for value in last)
        print(f"| {name} | {', '.join(when)} | {ends} | {np.mean(steps):,.0f} | {np.mean(updates):,.0f} |")


if __name__ == "__main__":
    runs, root = {"ways": WAYS, "periods": PERIODS}[sys.argv[1]], Path(sys.argv[2])
    for name, (ranks, overrides) in runs.items():
        for seed in SEEDS:
            train(root / f"{name}, seed {seed}", ranks, f"run.seed={seed}", *COMMON, *overrides)
    table(root, runs)
