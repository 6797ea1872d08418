"""Any gymnasium environment with Discrete or Box actions and Box observations, in its own `SyncVectorEnv`."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from hpcrl.envs.frame_stack import FrameStack
from hpcrl.errors import ConfigError
from hpcrl.types import EnvSpec, EnvStep

_AUTORESET = {
    "next_step": gymnasium.vector.AutoresetMode.NEXT_STEP,
    "same_step": gymnasium.vector.AutoresetMode.SAME_STEP,
}


def spec(id: str, *, stack: int, kwargs: Mapping[str, Any]) -> EnvSpec:
    """Read the spaces of one environment, which is made for it and closed unstepped.

    Raises
    ------
    ConfigError
        ``id`` is not known, cannot be made, or has other spaces than Discrete or Box actions and Box observations.
    """
    env = _maker(id, kwargs)()
    try:
        return _spec_of(env, id, stack)
    finally:
        env.close()


class Gym:
    """``E`` environments of one id; the members are those of `hpcrl.envs.VectorEnv`.

    Parameters
    ----------
    num_envs
        ``E``.
    seed_sequence
        One seed for each simulator comes from it, used at the first reset.
    id
        A registered gymnasium id, or ``"module:attribute"``, called with ``kwargs`` to get a `gymnasium.Env`.
    stack
        Frames of one observation.
    autoreset
        ``"next_step"`` or ``"same_step"``.
    kwargs
        Handed to the environment.

    Raises
    ------
    ConfigError
        As `spec`.
    """

    def __init__(
        self,
        num_envs: int,
        seed_sequence: np.random.SeedSequence,
        *,
        id: str,
        stack: int = 1,
        autoreset: str = "next_step",
        kwargs: Mapping[str, Any],
    ):
        make = _maker(id, kwargs)
        envs = [make() for _ in range(num_envs)]
        self.num_envs = num_envs
        self.spec = _spec_of(envs[0], id, stack)
        self._to_env = _bounded(envs[0].action_space) if self.spec.continuous else _counted(envs[0].action_space)
        self._same_step = autoreset == "same_step"
        self._env = gymnasium.vector.SyncVectorEnv(
            [partial(_Copied, env) for env in envs], autoreset_mode=_AUTORESET[autoreset]
        )
        self._seeds: list[int | None] = [int(word) for word in seed_sequence.generate_state(num_envs)]
        self._stack = FrameStack(num_envs, stack, self.spec.obs_shape, self.spec.obs_dtype)
        self._to_reset = np.zeros(num_envs, bool)

    @property
    def observation(self) -> np.ndarray:
        """obs_dtype ``[E, stack, *obs_shape]``"""
        return self._stack.observation

    def reset(self) -> np.ndarray:
        """Start a new episode everywhere; returns the first frames, obs_dtype ``[E, *obs_shape]``."""
        observations, _ = self._env.reset(seed=self._seeds)
        self._seeds = [None] * self.num_envs  # a second reset goes on with the random numbers of the first
        self._to_reset = np.zeros(self.num_envs, bool)
        frame = observations.astype(self.spec.obs_dtype, copy=False)
        self._stack.push(frame, np.ones(self.num_envs, bool))
        return frame

    def step(self, actions: np.ndarray) -> EnvStep:
        """Take ``actions`` (int64 ``[E]``, from 0 on whatever the space's own start; or float32 ``[E, D]``)."""
        reset = self._to_reset
        # Every call returns new arrays, which may therefore be kept.
        observations, reward, terminated, cut, info = self._env.step(self._to_env(actions))
        frame = final_frame = observations.astype(self.spec.obs_dtype, copy=False)
        over = terminated | cut
        started = reset
        if self._same_step:
            started = over
            if over.any():
                final_frame = frame.copy()
                final_frame[over] = np.stack(info["final_obs"][over])
        else:
            self._to_reset = over
        self._stack.push(frame, started)
        return EnvStep(frame, reward.astype(np.float32), terminated, cut & ~terminated, over, reset, final_frame)

    def close(self) -> None:
        """Close every environment."""
        self._env.close()


class _Copied(gymnasium.Wrapper):
    """One simulator as `SyncVectorEnv` can take it.

    Its observations are copied, because under SAME_STEP the vector environment keeps a reference to the final one,
    which an environment that reuses its buffer overwrites when it is reset in the same call. Its infos, which nobody
    reads, are left out: the vector environment would stack them, and fail where their shapes change.
    """

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        observation, _ = self.env.reset(seed=seed, options=options)
        return np.array(observation, self.observation_space.dtype), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return np.array(observation, self.observation_space.dtype), reward, terminated, truncated, {}


def registered(id: str) -> gymnasium.envs.registration.EnvSpec:
    """Gymnasium's entry for ``id``.

    Raises
    ------
    ConfigError
        There is none; the message names the nearest ones.
    """
    without_ale = ""
    if id not in gymnasium.registry:
        try:
            importlib.import_module("ale_py")  # registers the Atari games
        except ImportError:
            without_ale = "; Atari games need ale-py: pip install ale-py"
    if id in gymnasium.registry:
        return gymnasium.registry[id]
    near = _near_matches(id)
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    raise ConfigError(
        f'env.id: expected "catch", "ALE/<Game>-v5", a gymnasium id or "module:attribute", got "{id}"'
        f"{hint}{without_ale}"
    )


def _near_matches(id: str) -> list[str]:
    """Up to three registered ids that look like ``id``, with or without namespace and version."""
    ids = {}
    for full, entry in gymnasium.registry.items():
        if not _is_legacy_atari(full, entry):
            ids[full.lower()] = full
            if entry.namespace in (None, "ALE"):
                ids[entry.name.lower()] = full
    near = difflib.get_close_matches(id.lower(), ids, n=3)
    return list(dict.fromkeys(f'"{ids[name]}"' for name in near))


def _is_legacy_atari(id: str, entry: gymnasium.envs.registration.EnvSpec) -> bool:
    """Ids such as Pong-v4 and PongNoFrameskip-v4, whose defaults differ by suffix."""
    return str(entry.entry_point).startswith("ale_py") and not id.startswith("ALE/")


def _maker(id: str, kwargs: Mapping[str, Any]) -> Callable[[], gymnasium.Env]:
    """A function that makes one simulator, whose failure is a ConfigError."""
    make = _attribute(id) if ":" in id else _registered_maker(id)

    def make_one() -> gymnasium.Env:
        try:
            env = make(**kwargs)
        except (TypeError, ValueError, ImportError, gymnasium.error.Error) as fault:
            raise ConfigError(f'env.id: "{id}" cannot be made with env.kwargs = {dict(kwargs)}: {fault}') from fault
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f'env.id: expected "{id}" to return one simulator (a gymnasium.Env), which hpcrl makes env.simulators '
                f"of, got {type(env).__module__}.{type(env).__qualname__}"
            )
        return env

    return make_one


def _registered_maker(id: str) -> Callable[..., gymnasium.Env]:
    if _is_legacy_atari(id, registered(id)):
        raise ConfigError(f'env.id: Atari games are named "ALE/<Game>-v5" (for example "ALE/Pong-v5"), got "{id}"')
    return lambda **kwargs: gymnasium.make(id, **kwargs)


def _attribute(id: str) -> Callable[..., gymnasium.Env]:
    module, _, name = id.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as fault:
        raise ConfigError(f'env.id: expected "module:attribute" that can be imported, got "{id}": {fault}') from fault


def _spec_of(env: gymnasium.Env, id: str, stack: int) -> EnvSpec:
    actions, frames = env.action_space, env.observation_space
    continuous = isinstance(actions, gymnasium.spaces.Box) and len(actions.shape) == 1
    if not continuous and not isinstance(actions, gymnasium.spaces.Discrete):
        raise ConfigError(f'env.id: hpcrl needs actions that are Discrete, or Box vectors, "{id}" has {actions}')
    if not isinstance(frames, gymnasium.spaces.Box):
        raise ConfigError(f'env.id: hpcrl needs observations in one array (Box), "{id}" has {frames}')
    dtype = np.dtype(np.uint8 if frames.dtype == np.uint8 else np.float32)
    num_actions = actions.shape[0] if continuous else int(actions.n)
    return EnvSpec(frames.shape, dtype, stack, num_actions, frames_per_step=1, continuous=continuous)


def _counted(space: gymnasium.spaces.Discrete) -> Callable[[np.ndarray], np.ndarray]:
    """Actions counted from 0 to those of a space."""
    return lambda actions: actions + int(space.start)


def _bounded(space: gymnasium.spaces.Box) -> Callable[[np.ndarray], np.ndarray]:
    """Vectors in units of half the range of a space, clipped, to actions of that space."""
    bounded = np.isfinite(space.low) & np.isfinite(space.high)
    low, high = np.where(bounded, space.low, -1), np.where(bounded, space.high, 1)
    middle, half = (low + high) / 2, (high - low) / 2
    return lambda actions: (middle + half * actions).clip(space.low, space.high).astype(space.dtype)
