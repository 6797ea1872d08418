"""What an array of jobs will cost, from the rates of a run like them."""

import re
from pathlib import Path
from typing import NamedTuple

from hpcrl.analysis.runs import Run
from hpcrl.config import Config
from hpcrl.errors import ConfigError
from hpcrl.launch.forecast import Forecast
from hpcrl.launch.topology import Plan


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
