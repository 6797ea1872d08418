"""Learning curves of runs, beside published ones at equal frames."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.analysis.runs import Run, by_experiment, label
from hpcrl.errors import ConfigError

ITERATION_FRAMES = 1_000_000
"""Published curves are means over iterations of this many frames (Dopamine)."""
REFERENCE_AGENTS = ("DQN", "DQN (Adam + MSE in JAX)")
POINTS = 100
"""Of a curve whose stretch is not given, as far as its longest run goes."""


class Axis(NamedTuple):
    """What a curve runs along."""

    column: str
    """of every table of the run log"""
    label: str
    unit: float
    """in units of the column"""


AXES = {
    "frames": Axis("total_frames", "emulator frames [millions]", 1e6),
    "hours": Axis("wall_seconds", "training time [hours]", 3600.0),
    "updates": Axis("global_update", "global updates [thousands]", 1e3),
}


class Curve(NamedTuple):
    """Mean of a quantity over consecutive stretches of a run, or of several runs."""

    ends: np.ndarray
    """float64 ``[N]`` where each stretch ends, in units of the axis's column (frames, seconds, updates)"""
    mean: np.ndarray
    """float64 ``[N]`` mean in it, over seeds the mean of their means; NaN where there was nothing"""
    low: np.ndarray
    """float64 ``[N]`` least mean over seeds; of one run, the mean itself"""
    high: np.ndarray
    """float64 ``[N]`` greatest mean over seeds"""


def axis(name: str) -> Axis:
    """One of :data:`AXES`.

    Raises
    ------
    ConfigError
        There is none of that name.
    """
    if name not in AXES:
        raise ConfigError(f"expected an axis ({', '.join(AXES)}), got {name!r}")
    return AXES[name]


def learning_curve(run: Run, stretch: float, along: str = "frames", quantity: str = "return") -> Curve:
    """Curve of one run over whole stretches.

    Parameters
    ----------
    run
    stretch
        Length of a stretch, in units of the axis's column.
    along
        One of :data:`AXES`.
    quantity
        ``"return"``: of the training episodes that ended in a stretch, raw. Else a column of ``progress``, or
        ``"table.column"``.

    Raises
    ------
    ConfigError
        There is no such axis or column.
    """
    column, progress = axis(along).column, run.tables["progress"]
    quantity = "episodes.episode_return" if quantity == "return" else quantity
    table, _, name = quantity.rpartition(".")
    rows = run.tables.get(table or "progress", {})
    if name not in rows:
        columns = ", ".join(progress)
        raise ConfigError(f"expected return, table.column, or a column of progress ({columns}), got {quantity!r}")
    values = rows[name]
    reached = progress[column][-1] if len(progress[column]) else 0
    ends = stretch * np.arange(1.0, reached // stretch + 1)
    known = ~np.isnan(values)
    place = np.searchsorted(ends, rows[column][known])
    count = np.bincount(place, minlength=len(ends))[: len(ends)]
    total = np.bincount(place, values[known], minlength=len(ends))[: len(ends)]
    with np.errstate(invalid="ignore"):
        mean = total / count
    return Curve(ends, mean, mean, mean)


def experiment_curve(runs: Sequence[Run], stretch: float, along: str = "frames", quantity: str = "return") -> Curve:
    """Curve of the seeds of one experiment, as far as the shortest goes; a stretch counts where all have a value."""
    curves = [learning_curve(run, stretch, along, quantity) for run in runs]
    shortest = min(len(curve.ends) for curve in curves)
    means = np.array([curve.mean[:shortest] for curve in curves])
    return Curve(curves[0].ends[:shortest], means.mean(axis=0), means.min(axis=0), means.max(axis=0))


def default_stretch(runs: Sequence[Run], along: str = "frames") -> float:
    """The longest run in :data:`POINTS` stretches, of a round length; whole numbers where the axis counts."""
    longest = max((run.last(axis(along).column) for run in runs), default=0)
    rough = max(longest / POINTS, 1.0)
    power = 10.0 ** np.floor(np.log10(rough))
    return float(power * next(step for step in (1, 2, 5, 10) if step * power >= rough))


def published_agents(game: str) -> list[str]:
    """Names of the agents whose curves are published for a game (``"pong"``); none for other games."""
    return list(_published().get(game.replace("_", ""), {}))


def published_curve(game: str, agent: str) -> Curve:
    """Dopamine's training curve: mean, least and greatest of 5 seeds (Castro et al. 2018, baselines/atari/data).

    Protocol: sticky actions 0.25, no life-loss termination, minimal action set.
    """
    points = sorted((int(millions), row) for millions, row in _published()[game.replace("_", "")][agent].items())
    frames = np.array([millions for millions, _ in points], np.float64) * ITERATION_FRAMES
    mean, low, high = np.array([row[:3] for _, row in points]).T
    return Curve(frames, mean, low, high)


def references(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(game, agent) of the published curves that these runs may be compared with: same game, same protocol."""
    return sorted(
        {
            (run.game, agent)
            for run in runs
            if run.protocol == "dopamine"
            for agent in REFERENCE_AGENTS
            if agent in published_agents(run.game)
        }
    )


def _published() -> dict:
    return json.loads(files("hpcrl.analysis").joinpath("data/dopamine_curves.json").read_text())["curves"]


def compare(curve: Curve, reference: Curve) -> list[tuple[int, float, float, float, float, bool]]:
    """At each published point that the run reaches: (frames, return, published mean, least, greatest, inside)."""
    rows = []
    for frames, mean, low, high in zip(*reference, strict=True):
        at = np.flatnonzero(curve.ends == frames)
        if at.size and not np.isnan(curve.mean[at[0]]):
            value = float(curve.mean[at[0]])
            rows.append((int(frames), value, float(mean), float(low), float(high), bool(low <= value <= high)))
    return rows


def plot(
    runs: Sequence[Run],
    output: Path,
    *,
    stretch: float | None = None,
    along: str = "frames",
    quantity: str = "return",
    seeds: bool = True,
) -> list[str]:
    """Draw the curves of runs into a PNG or SVG file, with Dopamine's where game and protocol are the same.

    Parameters
    ----------
    runs, along, quantity
        As :func:`learning_curve`.
    output
        The file; its name decides the format.
    stretch
        None: :func:`default_stretch`.
    seeds
        Runs that differ in their seed alone become one curve with its spread.

    Returns
    -------
    list of str
        For each run with a published counterpart, where it lies inside or outside the published spread.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained", dpi=150)
    draw(figure, runs, stretch=stretch, along=along, quantity=quantity, seeds=seeds)
    figure.savefig(output)
    if quantity != "return" or along != "frames":
        return []
    return [line for run in runs for line in said_of(run)]


def draw(figure, runs: Sequence[Run], *, stretch: float | None, along: str, quantity: str, seeds: bool) -> None:
    """Draw into a matplotlib figure what :func:`plot` writes to a file."""
    across, stretch = axis(along), stretch or default_stretch(runs, along)
    name = "training return (raw)" if quantity == "return" else quantity
    axes = figure.add_subplot(xlabel=across.label, ylabel=name)
    longest = 0.0
    for members in by_experiment(runs) if seeds else [[run] for run in runs]:
        curve = experiment_curve(members, stretch, along, quantity)
        longest = max(longest, curve.ends[-1] / across.unit if len(curve.ends) else 0.0)
        (line,) = axes.plot(curve.ends / across.unit, curve.mean, linewidth=2, label=label(members), zorder=3)
        if len(members) > 1:
            shade = {"color": line.get_color(), "alpha": 0.2, "linewidth": 0}
            axes.fill_between(curve.ends / across.unit, curve.low, curve.high, **shade)
    if quantity == "return" and along == "frames":
        _draw_references(axes, runs, longest)
    axes.set_xlim(0, max(longest * 1.05, 1e-6))
    axes.grid(alpha=0.3)
    axes.legend()


def _draw_references(axes, runs: Sequence[Run], longest: float) -> None:
    for colour, (game, agent) in zip(("tab:gray", "tab:green"), references(runs), strict=False):
        reference = published_curve(game, agent)
        # As far as the runs go, and one point on, so that the axes fit what is to be compared.
        reference = Curve(*(column[: np.searchsorted(reference.ends, longest * 1e6) + 1] for column in reference))
        axes.fill_between(reference.ends / 1e6, reference.low, reference.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(reference.ends / 1e6, reference.mean, color=colour, label=f"Dopamine {agent}, 5 seeds, range")


def said_of(run: Run) -> list[str]:
    """Where a run lies beside the published curves of its game and protocol, a line for each point of theirs."""
    curve, said = learning_curve(run, ITERATION_FRAMES), []
    for game, agent in references([run]):
        for frames, value, mean, low, high, inside in compare(curve, published_curve(game, agent)):
            where = "inside" if inside else ("above" if value > high else "below")
            said.append(
                f"{run.name} at {frames / 1e6:g}M frames: {value:.2f}, {where} the published spread of "
                f"Dopamine {agent} ({mean:.2f}, {low:.2f} to {high:.2f})"
            )
    return said
