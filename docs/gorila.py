"""How learning of catch depends on the number of bundles and on the age of gradients; the figures of gorila.md.

    python docs/gorila.py bundles runs/gorila      # serial, 1, 2 and 4 bundles at equal total frames
    python docs/gorila.py delays runs/gorila       # one learner with virtual delays of 0, 10, 30 and 100 updates
    python docs/gorila.py plot runs/gorila docs/gorila.png

Runs that are there already are not made again. Needs mpiexec beside this Python and matplotlib for the plot.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from hpcrl.storage.runlog import read_runlog

CONFIG = Path(__file__).parents[1] / "configs" / "catch_bundled.toml"
SEEDS = (1, 2, 3)
TOTAL_FRAMES = 20_000
STRETCH_FRAMES = 1_000
GOOD = 0.9
"""mean training return over a stretch, with epsilon 0.05 still to come off"""
BUNDLES = {"serial": 0, "1 bundle": 1, "2 bundles": 2, "4 bundles": 4}
DELAYS = {"delay 0": "0", "delay 10": "10", "delay 30": "30", "delay 100": "100"}


def train(run_dir: Path, ranks: int, *overrides: str) -> None:
    if (run_dir / "checkpoints").exists():
        return
    command = [sys.executable, "-m", "hpcrl", "train", CONFIG, "--run-dir", run_dir]
    command += [part for override in overrides for part in ("--set", override)]
    if ranks:
        command = [Path(sys.executable).with_name("mpiexec"), "-n", ranks, *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(list(map(str, command)), check=True, env=environment, stdout=subprocess.DEVNULL, timeout=600)


def common(seed: int) -> list[str]:
    return [f"run.seed={seed}", f"run.total_frames={TOTAL_FRAMES}", "log.period_seconds=1.0"]


def bundles(root: Path) -> None:
    for name, count in BUNDLES.items():
        for seed in SEEDS:
            # All bundles together wait for, and remember, as much as the serial one alone.
            share = max(count, 1)
            memory = [f"replay.learning_starts_steps={600 // share}", f"replay.capacity_steps={12_000 // share}"]
            # Exploration ends early, so that it does not decide when a run is good.
            options = ["exploration.decay_length=3000", *(["topology.layout=serial"] if count == 0 else [])]
            train(root / f"{name}, seed {seed}", count + 1 if count else 0, *common(seed), *memory, *options)


def delays(root: Path) -> None:
    for name, delay in DELAYS.items():
        for seed in SEEDS:
            train(
                root / f"{name}, seed {seed}",
                0,
                *common(seed),
                "topology.layout=serial",
                f"learning.virtual_delay={delay}",
            )


def curve(run_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """Mean training return in each stretch of frames, and the wall time at its end [s]."""
    episodes, progress = (read_runlog(run_dir, table) for table in ("episodes", "progress"))
    ends = np.arange(STRETCH_FRAMES, TOTAL_FRAMES + 1, STRETCH_FRAMES)
    stretch = np.searchsorted(ends, episodes["total_frames"])
    returns = np.array([episodes["episode_return"][stretch == k].mean() for k in range(len(ends))])
    return returns, np.interp(ends, progress["total_frames"], progress["wall_seconds"])


def gradients(root: Path, name: str) -> list[np.ndarray]:
    """Delay, count and fate of the gradients of all seeds, rows that add up."""
    rows = [read_runlog(root / f"{name}, seed {seed}", "gradients") for seed in SEEDS]
    return [np.concatenate([row[column] for row in rows]) for column in ("delay_updates", "count", "fate")]


def table(root: Path, names) -> None:
    for name in names:
        found = [curve(root / f"{name}, seed {seed}") for seed in SEEDS]
        when, seconds, last = [], [], []
        for returns, wall in found:
            good = np.flatnonzero(returns >= GOOD)
            when.append(f"{STRETCH_FRAMES * (good[0] + 1):,}" if len(good) else "never")
            seconds.append(f"{wall[good[0]]:.1f}" if len(good) else "-")
            last.append(f"{returns[-3:].mean():.2f}")
        delay, count, fate = gradients(root, name)
        share = count[fate > 0].sum() / count.sum()
        print(
            f"| {name} | {', '.join(when)} | {', '.join(seconds)} | {', '.join(last)} | "
            f"{np.average(delay, weights=count):.2f} | {100 * share:.1f} % |"
        )


def plot(root: Path, output: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6.4), layout="constrained", dpi=110)
    axes = figure.subplots(2, 2).ravel()
    frames = np.arange(STRETCH_FRAMES, TOTAL_FRAMES + 1, STRETCH_FRAMES)
    for where, names, over in ((axes[0], BUNDLES, 0), (axes[1], BUNDLES, 1), (axes[2], DELAYS, 0)):
        for name in names:
            found = [curve(root / f"{name}, seed {seed}") for seed in SEEDS]
            returns = np.array([returns for returns, _ in found])
            x = np.mean([wall for _, wall in found], axis=0) if over else frames
            (line,) = where.plot(x, returns.mean(axis=0), label=name)
            where.fill_between(x, returns.min(axis=0), returns.max(axis=0), color=line.get_color(), alpha=0.15)
        where.set_xlabel("wall time [s]" if over else "frames of all actors")
        where.grid(alpha=0.3)
        where.legend()
    for name in list(BUNDLES)[1:]:
        delay, count, _ = gradients(root, name)
        share = np.bincount(delay, count) / count.sum()
        axes[3].plot(share, marker="o", label=f"{name}, mean {np.average(delay, weights=count):.2f}")
    axes[3].set_xlabel("delay of a gradient [updates]")
    axes[3].set_ylabel("share")
    axes[3].grid(alpha=0.3)
    axes[3].legend()
    for where in axes[:3]:
        where.set_ylabel("training return")
    figure.savefig(output)


if __name__ == "__main__":
    what, root = sys.argv[1], Path(sys.argv[2])
    if what == "plot":
        plot(root, Path(sys.argv[3]))
    else:
        {"bundles": bundles, "delays": delays}[what](root)
        table(root, {"bundles": BUNDLES, "delays": DELAYS}[what])
