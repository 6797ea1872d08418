"""Learning curves of runs, beside published ones at equal frames."""

import json
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage.runlog import read_runlog

ITERATION_FRAMES = 1_000_000
"""Published curves are means over iterations of this many frames (Dopamine)."""
REFERENCE_AGENTS = ("DQN", "DQN (Adam + MSE in JAX)")


class Curve(NamedTuple):
    """Mean raw training return over consecutive stretches of a run."""

    frames: np.ndarray
    """int64 ``[N]`` emulator frames at the end of each stretch"""
    mean: np.ndarray
    """float64 ``[N]`` mean return of the episodes that ended in it; NaN where none did"""
    low: np.ndarray
    """float64 ``[N]`` least mean over seeds; of one run, the mean itself"""
    high: np.ndarray
    """float64 ``[N]`` greatest mean over seeds"""


def learning_curve(run_dir: Path, stretch_frames: int) -> Curve:
    """Curve of one run over whole stretches of ``stretch_frames``, from its run log."""
    episodes = read_runlog(run_dir, "episodes")
    progress = read_runlog(run_dir, "progress")
    reached = int(progress["total_frames"][-1]) if len(progress["total_frames"]) else 0
    ends = np.arange(stretch_frames, reached + 1, stretch_frames)
    stretch = np.searchsorted(ends, episodes["total_frames"])
    count = np.bincount(stretch, minlength=len(ends))[: len(ends)]
    total = np.bincount(stretch, episodes["episode_return"], minlength=len(ends))[: len(ends)]
    with np.errstate(invalid="ignore"):
        mean = total / count
    return Curve(ends, mean, mean, mean)


def published_agents(game: str) -> list[str]:
    """Names of the agents whose curves are published for a game (``"pong"``); none for other games."""
    return list(_published()["curves"].get(game, {}))


def published_curve(game: str, agent: str) -> Curve:
    """Dopamine's training curve: mean, least and greatest of 5 seeds (Castro et al. 2018, baselines/atari/data).

    Protocol: sticky actions 0.25, no life-loss termination, minimal action set.
    """
    points = sorted((int(millions), values) for millions, values in _published()["curves"][game][agent].items())
    frames = np.array([millions for millions, _ in points], np.int64) * ITERATION_FRAMES
    mean, low, high = np.array([values[:3] for _, values in points]).T
    return Curve(frames, mean, low, high)


def _published() -> dict:
    return json.loads(files("hpcrl.analysis").joinpath("data/dopamine_curves.json").read_text())


def compare(curve: Curve, reference: Curve) -> list[tuple[int, float, float, float, float, bool]]:
    """At each published point that the run reaches: (frames, return, published mean, least, greatest, inside)."""
    rows = []
    for frames, mean, low, high in zip(*reference, strict=True):
        at = np.flatnonzero(curve.frames == frames)
        if at.size and not np.isnan(curve.mean[at[0]]):
            value = float(curve.mean[at[0]])
            rows.append((int(frames), value, float(mean), float(low), float(high), bool(low <= value <= high)))
    return rows


def game_of(run_dir: Path) -> tuple[str, str]:
    """Game (``"pong"``) and protocol of a run, from its resolved configuration."""
    import tomllib

    try:
        env = tomllib.loads((run_dir / "config.toml").read_text())["env"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise StorageError(f"{run_dir}: expected a run directory with a config.toml, got: {error}") from error
    game = re.sub(r"^ALE/|-v\d+$", "", env["id"])
    return game.lower(), env["protocol"]


def plot(run_dirs: Sequence[Path], output: Path, stretch_frames: int) -> list[str]:
    """Draw the curves of runs into a PNG or SVG file, with Dopamine's where game and protocol are the same.

    Returns
    -------
    list of str
        For each run with a published counterpart, where it lies inside or outside the published spread.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained", dpi=150)
    axes = figure.add_subplot(xlabel="emulator frames [millions]", ylabel="training return (raw)")
    longest, said, references = 0.0, [], set()
    for run_dir in run_dirs:
        curve = learning_curve(run_dir, stretch_frames)
        longest = max(longest, curve.frames[-1] / 1e6 if len(curve.frames) else 0.0)
        axes.plot(curve.frames / 1e6, curve.mean, linewidth=2, label=f"hpcrl {run_dir.name}", zorder=3)
        game, protocol = game_of(run_dir)
        if protocol == "dopamine":
            references.update((game, agent) for agent in REFERENCE_AGENTS if agent in published_agents(game))
            said += _say(run_dir, game)
    for colour, (game, agent) in zip(("tab:gray", "tab:green"), sorted(references), strict=False):
        reference = published_curve(game, agent)
        # As far as the runs go, and one point on, so that the axes fit what is to be compared.
        reference = Curve(*(column[: np.searchsorted(reference.frames, longest * 1e6) + 1] for column in reference))
        axes.fill_between(reference.frames / 1e6, reference.low, reference.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(reference.frames / 1e6, reference.mean, color=colour, label=f"Dopamine {agent}, 5 seeds, range")
    axes.set_xlim(0, max(longest * 1.05, 0.1))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(output)
    return said


def _say(run_dir: Path, game: str) -> list[str]:
    curve, said = learning_curve(run_dir, ITERATION_FRAMES), []
    for agent in REFERENCE_AGENTS:
        if agent in published_agents(game):
            for frames, value, mean, low, high, inside in compare(curve, published_curve(game, agent)):
                where = "inside" if inside else ("above" if value > high else "below")
                said.append(
                    f"{run_dir.name} at {frames / 1e6:g}M frames: {value:.2f}, {where} the published spread of "
                    f"Dopamine {agent} ({mean:.2f}, {low:.2f} to {high:.2f})"
                )
    return said
