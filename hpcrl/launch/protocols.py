"""What a protocol of the papers makes of an environment: for ``hpcrl evaluate``, and for evaluators in training."""

from pathlib import Path
from typing import Any

from hpcrl.config import Config
from hpcrl.config.presets import EVALUATION_PROTOCOLS
from hpcrl.errors import ConfigError
from hpcrl.storage.starts import Starts, read_starts


def protocol_arguments(config: Config, protocol: str, max_episode_frames: int | None = None) -> dict[str, Any]:
    """Arguments of `hpcrl.envs.make_games`; life losses never end an episode.

    Raises
    ------
    ConfigError
        The protocol is not known, or the agent or its environment cannot be evaluated by it.
    """
    if protocol not in EVALUATION_PROTOCOLS:
        raise ConfigError(f"expected --protocol {', '.join(EVALUATION_PROTOCOLS)}, got {protocol!r}")
    fixed = dict(EVALUATION_PROTOCOLS[protocol])
    if not config.env.is_atari:
        if protocol != "own" or max_episode_frames:
            raise ConfigError(f"expected --protocol own for {config.env.id}, which is not an Atari game")
        return config.env.arguments()
    if fixed.get("full_action_space") and not config.env.full_action_space:
        raise ConfigError(f"expected an agent of all 18 actions for --protocol {protocol}, got one of the game's own")
    if max_episode_frames:
        fixed["max_episode_frames"] = max_episode_frames
    return {**config.env.arguments(), "life_loss": "ignore", "random_start_steps": 0, **fixed}


def starts_for(config: Config, protocol: str, file: Path | None) -> Starts | None:
    """The starts of the protocol ``human``; None for others.

    Raises
    ------
    ConfigError
        There is no file with that protocol, or one with another, or its starts are of another game.
    StorageError
        The file cannot be read.
    """
    if (file is not None) != (protocol == "human"):
        raise ConfigError("expected --starts FILE with --protocol human, and with no other; hpcrl starts makes one")
    if file is None:
        return None
    starts = read_starts(file)
    if starts.game != config.env.id:
        raise ConfigError(f"{file}: expected starts of {config.env.id}, got some of {starts.game}")
    return starts
