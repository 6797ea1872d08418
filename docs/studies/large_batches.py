"""The large-batch experiments of Accelerated Methods in small, on catch; the picture of large_batches.md.

    python docs/studies/large_batches.py run runs/studies GROUP...   # writes docs/studies/large_batches.json
    python docs/studies/large_batches.py draw                        # docs/large_batches.png, and the tables

Groups are ``batches`` (section 5.3), ``simulators`` (5.2), ``secondary`` (5.5) and ``norms`` (appendix D); those that
are not named stay as they are. Needs matplotlib.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from study import Case, Results, collect, draw, last_quarter, main, panels, reached, save

from hpcrl.storage.runlog import read_runlog

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "configs" / "catch_serial.toml"
RESULTS = HERE / "large_batches.json"
SEEDS = {"batches": (1,), "simulators": (1,), "secondary": (1, 2), "norms": (1,)}
FRAMES = {"batches": 16_000, "simulators": 12_000, "secondary": 24_000, "norms": 12_000}
GOOD = 0.8
"""a training return, for the tables"""
BATCHES, SIMULATORS = (32, 512, 2048), (4, 64, 256)
PAIRS = ((64, 2048), (2048, 64), (64, 64), (2048, 2048))
"""Minibatches of the learner that acts, and of the one that does not."""
LAYERS = {"all": -1, "first": 0, "hidden": 1}
COLUMNS = ("parameters", "distance", "gradient", "step")

CATEGORICAL = ("network.distribution=categorical", "network.atoms=21", "network.support=[-2.0, 2.0]")
ALGORITHMS = {
    "DQN, RMSProp": (
        *("learning.optimizer=rmsprop", "learning.rmsprop_centered=false", "learning.optimizer_epsilon=1e-6"),
    ),
    "Categorical DQN, Adam": (*CATEGORICAL, "learning.optimizer_epsilon_per_batch=0.01"),
    "epsilon-Rainbow, Adam": (
        *CATEGORICAL,
        *("learning.double=true", "network.dueling=true", "replay.n_step=3", "replay.sampling=prioritized"),
        *("replay.priority_alpha=0.5", "learning.optimizer_epsilon_per_batch=0.005"),
    ),
}


def case(group: str, label: str, batch: int, *overrides: str) -> Case:
    """One process whose intensity is 8 whatever its minibatch, with a new target every 512 steps."""
    common = (
        *(f"run.total_frames={FRAMES[group]}", "replay.learning_starts_steps=2048", "checkpoint.replay=none"),
        *(f"learning.batch_size={batch}", f"learning.target_period_updates={4096 // batch}"),
        *("topology.learner_threads=1", "actor.report_period_seconds=0.5"),
    )
    return Case(label, CONFIG, 0, (*common, *overrides))


def batches() -> Results:
    """The three algorithms, whose rates grow with the root of the minibatch."""
    return {
        f"{algorithm}, minibatches": [
            case("batches", f"batch {batch}", batch, *keys, "learning.learning_rate_scaling=sqrt") for batch in BATCHES
        ]
        for algorithm, keys in ALGORITHMS.items()
    }


def simulators() -> Results:
    """Deep Q-learning, the memory held at 10,000 steps and the intensity at 8."""
    keys = ALGORITHMS["DQN, RMSProp"]
    return {
        "DQN, RMSProp, simulators": [
            case("simulators", f"{count} simulators", 32, *keys, f"env.simulators={count}") for count in SIMULATORS
        ]
    }


def secondary() -> Results:
    """A second learner on the memory of the first; both are evaluated every 1,000 steps."""
    cases = []
    for first, second in PAIRS:
        overrides = (
            *("learning.learning_rate_scaling=sqrt", f"run.evaluation_period_updates={max(1, 8000 // first)}"),
            *("topology.evaluators=1", "run.evaluation_episodes=40", "exploration.evaluation_epsilon=0.0"),
            *(f"secondary.batch_size={second}", "secondary.optimizer=adam", "secondary.optimizer_epsilon=1e-8"),
            f"secondary.learning_rate={1e-3 * (second / 32) ** 0.5:.6f}",
        )
        cases.append(case("secondary", f"{first} acts, {second} beside it", first, *overrides))
    return {"second learner": cases}


def norms() -> Results:
    """Two optimizers on a convolutional network, at minibatches of 64 and, with rates up to 20 times, 1,024."""
    return {
        f"{algorithm}, norms": [
            case(
                *("norms", f"batch {batch}, rate x {factor}", batch, *ALGORITHMS[algorithm], "log.norms=1"),
                *("network.kind=small_frames:network", f"learning.learning_rate={1e-3 * factor}"),
            )
            for batch, factor in ((64, 1), (1024, 1), (1024, 20))
        ]
        for algorithm in ("DQN, RMSProp", "Categorical DQN, Adam")
    }


def second_learner(run_dir: Path, ends: np.ndarray) -> dict[str, list[float]]:
    """Greedy returns and norms of both learners at ``ends`` [frames]."""
    first, second = read_runlog(run_dir, "evaluations"), read_runlog(run_dir, "secondary")
    found = {"first_returns": (first, "mean_return"), "second_returns": (second, "mean_return")}
    found |= {"first_norm": (second, "first_parameters"), "second_norm": (second, "parameters")}
    return {
        name: np.interp(ends, rows["total_frames"], rows[key]).round(3).tolist() for name, (rows, key) in found.items()
    }


def layer_norms(run_dir: Path, ends: np.ndarray) -> dict[str, dict[str, list[float]]]:
    """Mean norms of layers over the second half of a run, in the order of `COLUMNS`."""
    rows = read_runlog(run_dir, "norms")
    late = rows["total_frames"] >= ends[-1] / 2
    means = {
        name: [float(f"{rows[column][late & (rows['layer'] == layer)].mean():.4g}") for column in COLUMNS]
        for name, layer in LAYERS.items()
    }
    return {"norms": means}


GROUPS: dict[str, tuple[Callable[[], Results], Callable[[Path, np.ndarray], dict] | None]] = {
    "batches": (batches, None),
    "simulators": (simulators, None),
    "secondary": (secondary, second_learner),
    "norms": (norms, layer_norms),
}
"""What is compared, and what is measured besides the returns."""


def run(directory: Path, names: list[str]) -> None:
    """Make the groups anew, and keep the others."""
    results: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        cases, more = GROUPS[name]
        results |= collect(cases(), SEEDS[name], directory, FRAMES[name], more=more)
        save(results, RESULTS)


def draw_both(cases: list[dict], what: str, axes: Axes, ylabel: str) -> None:
    """Of each case the learner that acts, and the one beside it dashed; means of the seeds."""
    for one in cases:
        (line,) = axes.plot(one["frames"], np.mean(one[f"first_{what}"], axis=0), label=one["label"])
        axes.plot(one["frames"], np.mean(one[f"second_{what}"], axis=0), "--", color=line.get_color())
    axes.set(title="second learner (dashed)", xlabel="frames", ylabel=ylabel)
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def picture(results: Results) -> None:
    """All groups over frames."""
    pair = results.get("second learner")
    curves = {title: cases for title, cases in results.items() if cases is not pair}
    figure, axes = panels(len(curves) + (2 if pair else 0))
    for axis, title in zip(axes, curves, strict=False):
        draw({title: curves[title]}, "frames", axis, "frames")
    if pair:
        draw_both(pair, "returns", axes[len(curves)], "greedy return")
        draw_both(pair, "norm", axes[len(curves) + 1], "norm of the parameters")
    figure.savefig(HERE.parent / "large_batches.png")


def table(cases: list[dict]) -> str:
    """Seeds side by side, and the means of what else was measured."""
    columns: dict[str, Callable[[dict], str]] = {
        f"frames until a return of {GOOD:g}": partial(reached, good=GOOD),
        "return of the last quarter": last_quarter,
    }
    if "norms" in cases[0]:
        columns |= {f"{layer}: {', '.join(COLUMNS)}": partial(_norms, layer=layer) for layer in LAYERS}
    if "second_returns" in cases[0]:
        columns["greedy returns of the last quarter, second"] = lambda one: last_quarter(one, "second_returns")
        columns["norms at the end, first and second"] = lambda one: " and ".join(
            f"{np.mean(one[name], axis=0)[-1]:.1f}" for name in ("first_norm", "second_norm")
        )
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    lines += [f"| {one['label']} | {' | '.join(tell(one) for tell in columns.values())} |" for one in cases]
    return "\n".join(lines)


def _norms(one: dict, layer: str) -> str:
    return ", ".join(f"{value:.3g}" for value in np.mean([seed[layer] for seed in one["norms"]], axis=0))


if __name__ == "__main__":
    main(RESULTS, list(GROUPS), run, picture, table)
