"""``hpcrl starts record``: games under way, by an agent, at random or by a person, for the human-starts protocol.

The published start states, of a professional's games, were never released. These are surrogates, and labelled so.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.envs import make_games
from hpcrl.errors import EXIT_FINISHED, ConfigError
from hpcrl.launch.evaluate import Player, Policy
from hpcrl.launch.keyboard import Window, play
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


def main(player: Player, output: Path, *, count: int, epsilon: float | None, seed: int, keyboard: bool = False) -> int:
    """Record starts, and say what was written: of as many episodes of the no-op protocol, or of a person's play.

    Raises
    ------
    ConfigError
        It is not an Atari game, the file exists, or a person has no display or has played nothing.
    """
    if not player.config.env.is_atari:
        raise ConfigError(f"expected an Atari game, whose emulator can be saved, got {player.config.env.id}")
    if output.exists():
        raise ConfigError(f"{output}: it exists; remove it, or choose another file")
    if keyboard:
        window, origin = Window(player.config.env.id), "a person at the keyboard"
        starts = play(player, window, count=count, seed=seed)
        window.close()
        if not starts:
            raise ConfigError("expected a game to be played, but the window was closed at once")
    else:
        starts, origin = _played(player, count=count, epsilon=epsilon, seed=seed), player.origin
    write_starts(output, player.config.env.id, origin, starts)
    frames = [start.frames for start in starts]
    print(f"wrote {output}: {len(starts)} surrogate starts, {min(frames):,} to {max(frames):,} frames into their games")
    return EXIT_FINISHED


def _played(player: Player, *, count: int, epsilon: float | None, seed: int) -> list[GameStart]:
    arguments = protocol_arguments(player.config, "noop")
    epsilon = player.epsilon if epsilon is None else epsilon
    return [
        record_start(
            arguments,
            player.make_policy(generator(seed, "starts", number)),
            generator(seed, "starts choice", number),
            seed_sequence(seed, "starts env", number),
            epsilon,
        )
        for number in range(count)
    ]
