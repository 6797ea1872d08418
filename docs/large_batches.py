"""The large-batch experiments of Accelerated Methods in small, on catch: ``python docs/large_batches.py NAME RUNS``.

NAME is ``batches`` (section 5.3), ``simulators`` (5.2), ``secondary`` (5.5) or ``norms`` (appendix D). Each cell is a
run of one process in its own directory under RUNS; what is finished is not run again, so the script may be stopped at
any time. After each seed it prints a table of the means so far.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.storage.runlog import read_runlog

ROOT = Path(__file__).parents[1]
SEEDS = (1, 2, 3)
FRAMES = 16_000
BATCHES = (32, 128, 512, 2048)
CATEGORICAL = ("network.distribution=categorical", "network.atoms=21", "network.support=[-2.0, 2.0]")
ALGORITHMS = {
    "DQN, RMSProp": (
        "learning.optimizer=rmsprop",
        "learning.rmsprop_centered=false",
        "learning.optimizer_epsilon=1e-6",
    ),
    "Categorical DQN, Adam": (*CATEGORICAL, "learning.optimizer_epsilon_per_batch=0.01"),
    "epsilon-Rainbow, Adam": (
        *CATEGORICAL,
        *("learning.double=true", "network.dueling=true", "replay.n_step=3", "replay.sampling=prioritized"),
        *("replay.priority_alpha=0.5", "learning.optimizer_epsilon_per_batch=0.005"),
    ),
}


class Cell(NamedTuple):
    """One setting: where it stands in the table, and the keys that make it."""

    row: str
    column: str
    keys: tuple[str, ...]

    def directory(self, runs: Path, seed: int) -> Path:
        return runs / "-".join(f"{self.row}-{self.column}-{seed}".replace(",", "").replace("/", " per ").split())


def batch_keys(batch: int, scaling: str = "sqrt") -> tuple[str, ...]:
    """A minibatch at constant intensity, with a target every 3,200 transitions."""
    period = max(1, 3200 // batch)
    return (
        *(f"learning.batch_size={batch}", f"learning.target_period_updates={period}"),
        *(f"learning.learning_rate_scaling={scaling}", "replay.learning_starts_steps=2048"),
        f"run.evaluation_period_updates={max(1, 8000 // batch)}",  # every 1,000 steps
    )


def cells(name: str) -> Iterator[Cell]:
    """The settings of an experiment."""
    if name == "batches":
        for algorithm, keys in ALGORITHMS.items():
            for scaling in ("none", "sqrt"):
                for batch in BATCHES:
                    yield Cell(f"{algorithm}, rate {scaling}", str(batch), (*keys, *batch_keys(batch, scaling)))
    elif name == "simulators":
        for algorithm, keys in ALGORITHMS.items():
            for simulators in (4, 16, 64, 256):
                yield Cell(algorithm, str(simulators), (*keys, *batch_keys(32), f"env.simulators={simulators}"))
    elif name == "secondary":
        for first, second in ((64, 2048), (2048, 64), (64, 64), (2048, 2048)):
            rate = 1e-3 * (second / 32) ** 0.5
            own = (f"secondary.batch_size={second}", f"secondary.learning_rate={rate}", "secondary.optimizer=adam")
            yield Cell(f"{first} / {second}", "second", (*batch_keys(first), *own, "secondary.optimizer_epsilon=1e-8"))
    elif name == "norms":
        for optimizer in ("adam", "rmsprop"):
            for batch in (64, 1024):
                keys = (f"learning.optimizer={optimizer}", "log.norms=1", *batch_keys(batch))
                yield Cell(optimizer, str(batch), keys)
    else:
        raise SystemExit(__doc__)


def run(cell: Cell, directory: Path, seed: int) -> None:
    """Train once, if that is not done."""
    if (directory / "done").exists():
        return
    keys = ["topology.evaluators=1", f"run.total_frames={FRAMES}", "run.evaluation_episodes=40", f"run.seed={seed}"]
    keys += [
        "exploration.evaluation_epsilon=0.0",
        "checkpoint.replay=none",
        "actor.report_period_seconds=0.5",
        *cell.keys,
    ]
    command = [sys.executable, "-m", "hpcrl", "train", ROOT / "configs" / "catch_serial.toml", "--run-dir", directory]
    command += [f"--set={key}" for key in keys]
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    (directory / "done").touch()


def score(directory: Path) -> tuple[float, ...]:
    """Mean return of greedy episodes over the second half of training; what the experiment measures besides."""
    late = lambda rows: rows["total_frames"] >= FRAMES / 2  # noqa: E731
    evaluations = read_runlog(directory, "evaluations")
    values = [float(evaluations["mean_return"][late(evaluations)].mean())]
    second = read_runlog(directory, "secondary")
    if len(second["updates"]):
        values.append(float(second["mean_return"][late(second)].mean()))
        values += [float(second[name][-1]) for name in ("first_parameters", "parameters")]
    norms = read_runlog(directory, "norms")
    whole = norms["layer"] == -1
    if whole.any():
        values += [float(norms[name][whole][-20:].mean()) for name in ("parameters", "distance", "gradient", "step")]
    return tuple(values)


def main(name: str, runs: Path) -> None:
    table: dict[str, dict[str, list[tuple[float, ...]]]] = {}
    for seed in SEEDS:
        for cell in cells(name):
            directory = cell.directory(runs / name, seed)
            run(cell, directory, seed)
            table.setdefault(cell.row, {}).setdefault(cell.column, []).append(score(directory))
        columns = list(dict.fromkeys(cell.column for cell in cells(name)))
        print(f"\n| {name}, {seed} seeds | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
        for row, found in table.items():
            means = [np.mean(found[column], axis=0) for column in columns]
            print(f"| {row} | " + " | ".join(" / ".join(f"{v:.3g}" for v in mean) for mean in means) + " |", flush=True)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]))
