"""float32 and bfloat16 at equal seeds, and what a gradient costs in each; the picture of learning.md.

    python docs/studies/precision.py run runs/studies TASK...  # writes docs/studies/precision.json
    python docs/studies/precision.py time                      # writes docs/studies/precision_times.json; a minute
    python docs/studies/precision.py draw                      # docs/precision.png, and the tables

Needs matplotlib, and minatar.
"""

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from study import Case, Results, collect, draw, last_quarter, panels, reached, save

from hpcrl.algorithms.dqn import Dqn
from hpcrl.algorithms.rules import make_rule
from hpcrl.bench.parts import mean_seconds
from hpcrl.networks import Replica, make_network
from hpcrl.types import Batch

HERE = Path(__file__).parent
RESULTS, TIMES = HERE / "precision.json", HERE / "precision_times.json"
SEEDS = (1,)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TASKS = {  # configuration, frames, a good training return
    "catch": (HERE.parents[1] / "configs" / "catch_serial.toml", 10_000, 0.9),
    "MinAtar Breakout": (HERE / "minatar_breakout.toml", 16_000, 2.0),
}
PAIRS, SECONDS = 9, 0.3


def cases(task: str) -> list[Case]:
    """Deep Q-learning of a small convolutional network in one process."""
    config, frames, _ = TASKS[task]
    common = (
        *("topology.layout=serial", "topology.learner_threads=1", "network.kind=small_frames:network"),
        *(f"run.total_frames={frames}", "exploration.decay_length=5000", "checkpoint.replay=none"),
    )
    return [Case(precision, config, 0, (*common, f"network.precision={precision}")) for precision in DTYPES]


def measure_times() -> None:
    """Milliseconds of a gradient of deep Q-learning of Nature's network, both precisions in turn; medians."""
    found: dict[str, dict[str, float]] = {}
    for batch in (32, 512):
        for threads in sorted({1, len(os.sched_getaffinity(0))}):
            learners = {precision: learner(dtype) for precision, dtype in DTYPES.items()}
            minibatch = random_minibatch(batch)
            times = [
                [
                    mean_seconds(lambda one=one, minibatch=minibatch: one.gradient(minibatch), SECONDS, threads)
                    for one in learners.values()
                ]
                for _ in range(PAIRS)
            ]
            milliseconds = (1e3 * np.median(times, axis=0)).round(3).tolist()
            found[f"{batch} transitions, {threads} thread{'s' * (threads > 1)}"] = dict(
                zip(DTYPES, milliseconds, strict=True)
            )
    TIMES.write_text(json.dumps(found, indent=1) + "\n")


def learner(dtype: torch.dtype) -> Dqn:
    """Deep Q-learning of Nature's network on six actions."""
    online, target = (
        Replica(make_network("nature", (), (4, 84, 84), 6, np.uint8), None, 1, "cpu", frozen)
        for frozen in (torch.float32, dtype)
    )
    rule = make_rule("none", loss="huber", atoms=0, support=(-1.0, 1.0), device="cpu")
    return Dqn(online, target, rule=rule, double=False, max_gradient_norm=0.0, dtype=dtype)


def random_minibatch(size: int) -> Batch:
    """Transitions of Atari's shape."""
    rng = np.random.default_rng(0)
    s_tm1, s_t = rng.integers(256, size=(2, size, 4, 84, 84), dtype=np.uint8)
    discount = np.full(size, 0.99, np.float32)
    return Batch(s_tm1, rng.integers(6, size=size), np.ones(size, np.float32), discount, s_t)


def draw_all() -> None:
    """The picture and the tables of all that there is."""
    results: Results = json.loads(RESULTS.read_text())
    figure, axes = panels(len(results))
    for axis, (task, found) in zip(axes, results.items(), strict=False):
        draw({task: found}, "frames", axis, "frames")
        good = TASKS[task][2]
        print(f"\n| {task} | frames until a return of {good:g} | return of the last quarter |\n|---|---|---|")
        for one in found:
            print(f"| {one['label']} | {reached(one, good)} | {last_quarter(one)} |")
    for unused in axes[len(results) :]:
        unused.remove()
    figure.savefig(HERE.parent / "precision.png", bbox_inches="tight")
    if not TIMES.exists():
        return
    print("\n| gradient of Nature's network [ms] | float32 | bfloat16 | ratio |\n|---|---|---|---|")
    for name, times in json.loads(TIMES.read_text()).items():
        single, half = times.values()
        print(f"| {name} | {single:.1f} | {half:.1f} | {single / half:.2f} |")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", runs, *names]:
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            for name in names or TASKS:
                found |= collect({name: cases(name)}, SEEDS, Path(runs), TASKS[name][1])
            save(found, RESULTS)
        case ["time"]:
            measure_times()
        case ["draw"]:
            draw_all()
        case _:
            raise SystemExit(__doc__)
