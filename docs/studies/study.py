"""Studies: many short training runs of small differences side by side, what came of them, and its pictures.

A study is groups of cases, each case run once for every seed. A run that is done is not run again, so a study may be
cut and gone on with. What is drawn is read from a small file with the results, so that it can be drawn anew without
the runs.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from hpcrl.errors import EXIT_FINISHED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.replay import ReplayFile
from hpcrl.storage.runlog import read_runlog

HERE = Path(__file__).parent
"""where environments and networks of studies are"""
POINTS = 20
"""Points of a curve, where nothing else is said; each is the mean return of the episodes that ended in its stretch of
frames."""

Results = dict[str, list[dict]]
"""By the title of a group, its cases: ``label``, ``frames`` (ends of the stretches), and lists over the seeds of what
:func:`measure` gives."""


@dataclass(frozen=True)
class Case:
    """One line of a figure."""

    label: str
    config: Path
    ranks: int
    """0: without a launcher"""
    overrides: tuple[str, ...]

    def run_dir(self, directory: Path, seed: int) -> Path:
        """Where a run of this case goes: cases that are run alike, in whatever group, share their runs."""
        told = repr((self.config.name, self.ranks, sorted(self.overrides)))
        return directory / f"{hashlib.sha1(told.encode()).hexdigest()[:10]}-seed{seed}"

    def run(self, directory: Path, seed: int) -> None:
        """Train, unless that was done before."""
        run_dir = self.run_dir(directory, seed)
        if (run_dir / "done").exists():
            return
        command = [sys.executable, "-m", "hpcrl", "train", self.config, "--run-dir", run_dir]
        for override in (*self.overrides, f"run.seed={seed}", "log.period_seconds=0.2"):
            command += ["--set", override]
        if self.ranks:
            command = [Path(sys.executable).with_name("mpiexec"), "-n", self.ranks, *command]
        path = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
        done = subprocess.run(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, check=False
        )
        if done.returncode != EXIT_FINISHED:
            raise SystemExit(f"{command}\n{done.stdout.decode()}")
        (run_dir / "done").touch()


def collect(
    groups: Mapping[str, Sequence[Case]],
    seeds: Sequence[int],
    directory: Path,
    frames: int,
    points: int = POINTS,
    more: Callable[[Path, np.ndarray], dict] | None = None,
) -> Results:
    """Run what was not run before, one after the other, and read what came of all.

    ``more(run_dir, ends)`` measures what :func:`measure` does not.
    """
    ends = np.linspace(0, frames, points + 1)[1:].round().astype(int)
    results: Results = {}
    for title, cases in groups.items():
        for case in cases:
            for seed in seeds:
                case.run(directory, seed)
            run_dirs = [case.run_dir(directory, seed) for seed in seeds]
            found = [measure(run_dir, ends) | (more(run_dir, ends) if more else {}) for run_dir in run_dirs]
            over_seeds = {name: [one[name] for one in found] for name in found[0]}
            results.setdefault(title, []).append({"label": case.label, "frames": ends.tolist(), **over_seeds})
    return results


def measure(run_dir: Path, ends: np.ndarray) -> dict:
    """What is kept of a run.

    Returns
    -------
    dict
        ``returns``: mean training return in each stretch of frames; ``seconds``: wall time at its end; ``delays``:
        pairs of a delay [updates] and how many gradients had it, applied or dropped; ``dropped``: share of all
        gradients; ``updates``; ``distinct_frames`` and ``held_frames`` in the newest checkpoint's memories.
    """
    episodes, progress = read_runlog(run_dir, "episodes"), read_runlog(run_dir, "progress")
    stretch = np.minimum(np.searchsorted(ends, episodes["total_frames"]), len(ends) - 1)
    count = np.bincount(stretch, minlength=len(ends))
    total = np.bincount(stretch, episodes["episode_return"], minlength=len(ends))
    returns = np.divide(total, count, out=np.full(len(ends), np.nan), where=count > 0)
    rows = read_runlog(run_dir, "gradients")
    sent = rows["delay_updates"] >= 0
    delays = np.bincount(rows["delay_updates"][sent], rows["count"][sent])
    from_zero = ([0, *progress[name]] for name in ("total_frames", "wall_seconds"))
    distinct, held = distinct_frames(run_dir)
    return {
        "returns": [round(float(value), 3) for value in returns],
        "seconds": np.interp(ends, *from_zero).round(2).tolist(),
        "delays": [[int(delay), int(delays[delay])] for delay in np.flatnonzero(delays)],
        "dropped": round(float(rows["count"][rows["fate"] > 0].sum() / rows["count"].sum()), 4),
        "updates": int(progress["global_update"][-1]),
        "distinct_frames": distinct,
        "held_frames": held,
    }


def distinct_frames(run_dir: Path) -> tuple[int, int]:
    """How many different frames the replay memories of the newest checkpoint hold, and how many in all."""
    checkpoint, _ = latest(run_dir)
    seen, held = set(), 0
    for owner, file in checkpoint.files.items():
        if owner.startswith("replay-"):
            with ReplayFile(checkpoint.path / file["name"]) as memory:
                for lane in range(memory.shape.num_lanes):
                    for _, frames in memory.frames(lane):
                        seen.update(frame.tobytes() for frame in frames)
                        held += len(frames)
    return len(seen), held


def save(results: Results, path: Path) -> None:
    """Write results as JSON, a case a line."""
    lines = [
        f"{json.dumps(title)}: [\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]"
        for title, cases in results.items()
    ]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main(
    results_path: Path,
    groups: Sequence[str],
    run: Callable[[Path, Sequence[str]], None],
    picture: Callable[[Results], None],
    table: Callable[[list[dict]], str],
) -> None:
    """``run DIR [GROUP...]``, and then or without it the picture and the tables of all results that there are."""
    if sys.argv[1] == "run":
        run(Path(sys.argv[2]), sys.argv[3:] or list(groups))
    found = json.loads(results_path.read_text())
    picture(found)
    for title, cases in found.items():
        print(f"\n{title}\n\n{table(cases)}")


def draw(results: Results, over: str, axes: Axes, xlabel: str) -> None:
    """Curves of the one group in ``results`` over ``frames`` or ``seconds``: mean of the seeds, and their range."""
    ((title, cases),) = results.items()
    for case in cases:
        returns = np.array(case["returns"])
        x = np.array(case["frames"]) if over == "frames" else np.mean(case["seconds"], axis=0)
        known = np.isfinite(returns).any(axis=0)
        x, returns = x[known], returns[:, known]
        (line,) = axes.plot(x, np.nanmean(returns, axis=0), label=case["label"])
        low, high = np.nanmin(returns, axis=0), np.nanmax(returns, axis=0)
        axes.fill_between(x, low, high, color=line.get_color(), alpha=0.15, lw=0)
    axes.set(title=title, xlabel=xlabel, ylabel="training return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def draw_delays(cases: Sequence[dict], axes: Axes) -> None:
    """Distribution of the gradients' delays, all seeds together."""
    for case in cases:
        delay, count = np.concatenate([np.array(pairs) for pairs in case["delays"]]).T
        share = np.bincount(delay, count) / count.sum()
        axes.plot(share, marker=".", label=f"{case['label']}, mean {np.average(delay, weights=count):.2f}")
    axes.set(title="delays", xlabel="delay of a gradient [updates]", ylabel="share of gradients")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def panels(count: int) -> tuple[Figure, np.ndarray]:
    """A figure of ``count`` panels, three in a row."""
    rows = -(-count // 3)
    figure = Figure(figsize=(14, 3.7 * rows), layout="constrained", dpi=80)
    axes = figure.subplots(rows, 3, squeeze=False).ravel()
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes


def table(cases: Sequence[dict], good: float) -> str:
    """A Markdown table with a row for each case, its seeds side by side."""
    lines = [
        f"| | frames until a return of {good:g} | return of the last quarter | mean delay [updates] | dropped |",
        "|---|---|---|---|---|",
    ]
    for case in cases:
        delay, count = np.concatenate([np.array(pairs) for pairs in case["delays"]]).T
        mean_delay, dropped = np.average(delay, weights=count), np.mean(case["dropped"])
        cells = (case["label"], reached(case, good), last_quarter(case), f"{mean_delay:.2f}", f"{dropped:.1%}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reached(case: dict, good: float) -> str:
    """Frames at the end of the first stretch with a mean return of ``good``, for each seed."""
    there = [np.flatnonzero(np.array(returns) >= good) for returns in case["returns"]]
    return ", ".join(f"{case['frames'][stretches[0]]:,}" if len(stretches) else "never" for stretches in there)


def last_quarter(case: dict, name: str = "returns", digits: int = 2) -> str:
    """Mean return of the last quarter of the frames, for each seed."""
    return ", ".join(f"{np.nanmean(returns[-len(returns) // 4 :]):.{digits}f}" for returns in case[name])
