"""Arrays of jobs, games times seeds: which is which, whether all are valid, and what they cost by a run's rates."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcrl.analysis import load as load_run
from hpcrl.analysis.runs import Run
from hpcrl.config import Config, load
from hpcrl.errors import ConfigError, HpcrlError
from hpcrl.launch.forecast import Forecast
from hpcrl.launch.planning import bytes_text
from hpcrl.launch.topology import Plan


class Member(NamedTuple):
    """One job of an array; its index is its place in the list of all."""

    game: str
    seed: int

    @property
    def overrides(self) -> list[str]:
        """What sets it apart, for :func:`hpcrl.config.load`."""
        return [f"env.id={self.game}", f"run.seed={self.seed}"]

    def __str__(self) -> str:
        return f"{self.game}, seed {self.seed}"


class Measured(NamedTuple):
    """Rates of a run."""

    frames_per_second: float
    """of all its actors, over its whole time"""
    actors: int
    bytes_per_transition: float
    """of a checkpoint's replay files, compressed; 0 where they were not saved"""


class Cost(NamedTuple):
    """Of all jobs of an array."""

    jobs: int
    hours: float
    """of one job"""
    core_hours: float
    disk_bytes: float
    """of all checkpoints that are kept, and one that is being written"""


def read_games(path: Path) -> list[str]:
    """Environment ids, one in each line.

    Raises
    ------
    ConfigError
        The file cannot be read, or is empty.
    """
    try:
        games = [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected a file with an environment in each line, got: {error}") from error
    if wrong := [game for game in games if not re.fullmatch(r"\S+", game)]:
        raise ConfigError(f"{path}: expected an environment in each line, got {wrong[0]!r}")
    if not games:
        raise ConfigError(f"{path}: expected an environment in each line, got none")
    return games


def read_seeds(text: str) -> list[int]:
    """Seeds, separated by spaces or commas.

    Raises
    ------
    ConfigError
        One is no number, or is there twice.
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() for word in words) or len(set(words)) < len(words):
        raise ConfigError(f"--seeds: expected different whole numbers, say 1,2,3, got {text!r}")
    return [int(word) for word in words]


def members(games: Sequence[str], seeds: Sequence[int]) -> list[Member]:
    """Games times seeds, in the order of their indices: all seeds of the first game come first."""
    return [Member(game, seed) for game in games for seed in seeds]


def checked_members(
    config_file: Path, overrides: Sequence[str], games: Path, seeds: str | None, needs: Callable[[Config], object]
) -> list[Member]:
    """The members of an array, each of which can be started.

    Parameters
    ----------
    config_file, overrides
        The configuration that they share.
    games
        See :func:`read_games`.
    seeds
        See :func:`read_seeds`; None: the configuration's.
    needs
        Works out what a job of a configuration needs; called once for each game.

    Raises
    ------
    ConfigError
        With the fault of each that cannot be started.
    """
    chosen = [load(config_file, overrides).run.seed] if seeds is None else read_seeds(seeds)
    array = members(read_games(games), chosen)
    faults = []
    for index, member in enumerate(array):
        try:
            config = load(config_file, [*overrides, *member.overrides])
            if member.seed == chosen[0]:
                needs(config)
        except HpcrlError as error:
            faults.append(f"member {index} ({member}): {error}")
    if faults:
        raise ConfigError("\n".join([f"{len(faults)} of {len(array)} members cannot be started:", *faults]))
    return array


def measure(run: Run) -> Measured:
    """Rates of a run with at least one checkpoint.

    Raises
    ------
    ConfigError
        It has none, or has not trained.
    """
    seconds, frames = run.last("wall_seconds"), run.last("total_frames")
    if not run.checkpoints or not seconds or not frames:
        raise ConfigError(f"--like {run.path}: expected a run that has trained and written a checkpoint")
    newest = run.checkpoints[-1]
    replays = {owner: file["bytes"] for owner, file in newest.files.items() if owner.startswith("replay-")}
    memories = 1 if run.config.get("replay.place") == "global" else len(replays)
    transitions = run.last("replay_fill") * run.config["replay.capacity_steps"] * memories
    per_transition = sum(replays.values()) / transitions if transitions else 0.0
    return Measured(frames / seconds, int(newest.attributes["job"]["actors"]), per_transition)


def cost(config: Config, rank_map: Plan, forecast: Forecast, like: Measured, *, jobs: int, cores: int) -> Cost:
    """Cost of ``jobs`` jobs of a configuration, each on ``cores`` cores.

    Frames per second are taken to grow with the number of actors, and checkpoints with the capacity of the memories.

    Raises
    ------
    ConfigError
        The configuration sets no end.
    """
    actors = rank_map.num("actor") or rank_map.num("learner")
    rate = like.frames_per_second / like.actors * actors
    limits = [config.run.total_frames / rate, config.run.time_limit_seconds]
    if not any(limits):
        raise ConfigError("expected run.total_frames or run.time_limit_seconds for --array, got 0 for both")
    hours = min(limit for limit in limits if limit) / 3600
    memories = 1 if config.replay.place == "global" else len(rank_map.memories)
    saved = config.replay.capacity_steps * memories * like.bytes_per_transition if config.learning.uses_replay else 0.0
    # Parameters, their target, and what the optimizer keeps of them: at most two more.
    checkpoint = saved * (config.checkpoint.replay == "full") + 4 * 4 * forecast.num_parameters
    return Cost(jobs, hours, jobs * cores * hours, jobs * checkpoint * (config.checkpoint.keep_last + 1))


def cost_text(config: Config, rank_map: Plan, forecast: Forecast, like: Path, *, jobs: int, cores: int) -> str:
    """What so many jobs will cost at the rates of the run ``like``, as text."""
    measured = measure(load_run(like))
    of_all = cost(config, rank_map, forecast, measured, jobs=jobs, cores=cores)
    return (
        f"{of_all.jobs} jobs like {like} ({measured.frames_per_second:,.0f} frames/s, {measured.actors} actors, "
        f"taken to grow with their number): {of_all.hours:,.1f} h each on {cores} cores, "
        f"{of_all.core_hours:,.0f} core-hours, {bytes_text(of_all.disk_bytes)} of checkpoints in all"
    )
