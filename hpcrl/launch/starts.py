"""``hpcrl starts record``: games under way, by an agent or at random, for episodes of the human-starts protocol.

The published start states, of a professional's games, were never released. These are surrogates, and labelled so.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.envs import make_games
from hpcrl.errors import EXIT_FINISHED, ConfigError
from hpcrl.launch.evaluate import Player, Policy
from hpcrl.launch.protocols import protocol_arguments
from hpcrl.seeding import generator, seed_sequence
from hpcrl.storage.starts import write_starts
from hpcrl.types import GameStart


def record_start(
    arguments: Mapping[str, Any],
    policy: Policy,
    rng: np.random.Generator,
    env_seed: np.random.SeedSequence,
    epsilon: float,
) -> GameStart:
    """Play one whole episode; a decision point of it, each with the same probability."""
    env = make_games(1, env_seed, **arguments)
    try:
        env.reset()
        chosen, seen = env.game_start(0), 1
        while not env.step(policy(env.observation, epsilon)).episode_over[0]:
            seen += 1
            if rng.random() * seen < 1:
                chosen = env.game_start(0)
        return chosen
    finally:
        env.close()


def main(player: Player, output: Path, *, count: int, epsilon: float | None, seed: int) -> int:
    """Record starts of as many episodes of the no-op protocol, and say what was written.

    Raises
    ------
    ConfigError
        It is not an Atari game, or the file exists.
    """
    if not player.config.env.is_atari:
        raise ConfigError(f"expected an Atari game, whose emulator can be saved, got {player.config.env.id}")
    if output.exists():
        raise ConfigError(f"{output}: it exists; remove it, or choose another file")
    arguments = protocol_arguments(player.config, "noop")
    epsilon = player.epsilon if epsilon is None else epsilon
    starts = [
        record_start(
            arguments,
            player.make_policy(generator(seed, "starts", number)),
            generator(seed, "starts choice", number),
            seed_sequence(seed, "starts env", number),
            epsilon,
        )
        for number in range(count)
    ]
    write_starts(output, player.config.env.id, player.origin, starts)
    frames = [start.frames for start in starts]
    print(f"wrote {output}: {count} surrogate starts, {min(frames):,} to {max(frames):,} frames into their games")
    return EXIT_FINISHED
