"""Environments: ``E`` simulators stepped together, behind one small set of members.

Backends are imported only when their environment is asked for: `catch` needs neither gymnasium nor ale-py.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hpcrl.errors import ConfigError
from hpcrl.types import EnvSpec, EnvStep, GameStart

__all__ = ["VectorEnv", "env_spec", "make_env", "make_games"]


class VectorEnv(Protocol):
    """``E`` simulators of one environment.

    Those whose whole state can be saved also have ``state()``, a flat mapping of arrays, and ``restore(state)``. Those
    that simulate in threads of their own have the two halves of a step, ``send(actions)`` and ``receive()``; those on
    other ranks (:mod:`hpcrl.sampling.exchange`) also say, after a ``look``, whether a step is ``ready`` to be received.

    Frames, rewards and observations that were handed out are never written to again, so a caller may keep them.
    """

    num_envs: int
    spec: EnvSpec

    @property
    def observation(self) -> np.ndarray:
        """obs_dtype ``[E, stack, *obs_shape]``: what to act upon; zeros before an episode's first frame."""

    def reset(self) -> np.ndarray:
        """Start a new episode everywhere; the first frames, obs_dtype ``[E, *obs_shape]``."""

    def step(self, actions: np.ndarray) -> EnvStep:
        """Take ``actions``, which are ignored where the step only resets.

        They are int64 ``[E]``, from 0 to ``num_actions - 1``, or float32 ``[E, num_actions]`` (see `EnvSpec`).
        """

    def close(self) -> None:
        """End the simulators' threads."""


def env_spec(
    *,
    id: str,
    stack: int,
    full_action_space: bool = False,
    frame_skip: int = 4,
    screen: str = "84x84",
    kwargs: Mapping[str, Any] | None = None,
    **_: Any,
) -> EnvSpec:
    """What a role must know of an environment; steps no simulator. The arguments are those of `make_env`.

    Raises
    ------
    ConfigError
        The environment is not known, or it cannot be trained on by hpcrl.
    """
    kwargs = dict(kwargs or {})
    if id == "catch":
        return _catch_spec(stack, kwargs)
    if id.startswith("ALE/"):
        from hpcrl.envs import atari

        actions = {"full_action_space": full_action_space, "frame_skip": frame_skip}
        return atari.spec(id, stack=stack, screen=screen, kwargs=kwargs, **actions)
    from hpcrl.envs import gym

    return gym.spec(id, stack=stack, kwargs=kwargs)


def make_env(
    num_envs: int,
    seed_sequence: np.random.SeedSequence,
    *,
    id: str,
    stack: int,
    sticky_probability: float = 0.0,
    noop_max: int = 0,
    full_action_space: bool = False,
    life_loss: str = "ignore",
    fire_reset: bool = False,
    frame_skip: int = 4,
    max_episode_frames: int = 108_000,
    autoreset: str = "next_step",
    threads: int = 1,
    exact: bool = False,
    screen: str = "84x84",
    stuck_frames: int = 0,
    random_start_steps: int = 0,
    kwargs: Mapping[str, Any] | None = None,
) -> VectorEnv:
    """Make ``E = num_envs`` simulators.

    Parameters
    ----------
    num_envs
        ``E``.
    seed_sequence
        The simulators' seeds derive from it.
    id
        ``"catch"``, an Atari game ``"ALE/<Game>-v5"``, any other gymnasium id, or ``"module:attribute"``, which is
        called with ``kwargs`` and returns a `gymnasium.Env`.
    sticky_probability
        Atari: probability that an emulator frame repeats the action before (Machado et al. 2018, §5).
    noop_max
        Atari: an episode starts with 0 to ``noop_max`` no-ops [frames].
    full_action_space
        Atari: all 18 actions instead of the game's minimal set.
    life_loss
        Atari: ``"terminate"`` marks a lost life as terminated (the game goes on), ``"ignore"`` does not.
    fire_reset
        Atari: an episode starts by pressing FIRE, where the game has it.
    frame_skip
        Atari: emulator frames per step.
    stack
        Frames of one observation.
    max_episode_frames
        Atari: an episode is truncated after so many emulator frames. Elsewhere the environment's own limit holds.
    autoreset
        ``"next_step"`` or ``"same_step"``, see `hpcrl.types.EnvStep`.
    threads
        Atari: threads that step the simulators.
    exact
        Atari: on single emulators whose state can be saved, all in one thread.
    screen
        Atari: ``"84x84"`` or ``"104x80"``, see `hpcrl.envs.atari.Atari`.
    stuck_frames
        Atari: an episode is truncated after so many emulator frames without a reward (SABER, Toromanoff et al. 2019);
        0: never.
    random_start_steps
        Atari: each simulator begins after 0 to so many random actions.
    kwargs
        Handed to the environment.

    Raises
    ------
    ConfigError
        The environment is not known, or it cannot be trained on by hpcrl.
    """
    kwargs = dict(kwargs or {})
    if autoreset not in ("next_step", "same_step"):
        raise ConfigError(f'env.autoreset: expected "next_step" or "same_step", got "{autoreset}"')
    if id == "catch":
        _catch_spec(stack, kwargs)
        from hpcrl.envs.catch import Catch

        return Catch(num_envs, seed_sequence, stack=stack, autoreset=autoreset, **kwargs)
    if id.startswith("ALE/"):
        from hpcrl.envs.atari import Atari, ExactAtari

        return (ExactAtari if exact else Atari)(
            num_envs,
            seed_sequence,
            id=id,
            sticky_probability=sticky_probability,
            noop_max=noop_max,
            full_action_space=full_action_space,
            life_loss=life_loss,
            fire_reset=fire_reset,
            frame_skip=frame_skip,
            stack=stack,
            max_episode_frames=max_episode_frames,
            autoreset=autoreset,
            threads=threads,
            screen=screen,
            stuck_frames=stuck_frames,
            random_start_steps=random_start_steps,
            kwargs=kwargs,
        )
    from hpcrl.envs.gym import Gym

    return Gym(num_envs, seed_sequence, id=id, stack=stack, autoreset=autoreset, kwargs=kwargs)


def make_games(
    num_envs: int,
    seed_sequence: np.random.SeedSequence,
    *,
    noop_min: int = 0,
    starts: Sequence[GameStart] = (),
    **arguments: Any,
) -> VectorEnv:
    """Make simulators to evaluate or to look at: Atari's are `hpcrl.envs.atari.ExactAtari`, with these starts.

    The other arguments are those of `make_env`, and Atari needs all of them; so is what is raised.
    """
    if not arguments["id"].startswith("ALE/"):
        return make_env(num_envs, seed_sequence, **arguments)
    from hpcrl.envs.atari import ExactAtari

    arguments = {name: value for name, value in arguments.items() if name != "exact"}
    arguments |= {"threads": 1, "autoreset": "next_step"}
    return ExactAtari(num_envs, seed_sequence, noop_min=noop_min, starts=starts, **arguments)


def _catch_spec(stack: int, kwargs: dict[str, Any]) -> EnvSpec:
    from hpcrl.envs import catch

    unknown = sorted(set(kwargs) - {"rows", "columns"})
    if unknown:
        raise ConfigError(f"env.kwargs: catch takes rows and columns, got {', '.join(unknown)}")
    return catch.spec(stack=stack, **kwargs)
