"""Records that pass between environments, replay, algorithms and roles."""

from typing import NamedTuple

import numpy as np


class EnvSpec(NamedTuple):
    """What a role must know of an environment before it makes one."""

    obs_shape: tuple[int, ...]
    """Shape of one frame, without the stack: ``(84, 84)`` for Atari, ``(4,)`` for CartPole."""
    obs_dtype: np.dtype
    """``uint8`` for pixels, ``float32`` for vectors."""
    stack: int
    """Frames that make one observation; a network input is ``[stack, *obs_shape]``."""
    num_actions: int
    """Discrete actions; or, with ``continuous``, numbers that make up one action."""
    frames_per_step: int
    """Emulator frames that one agent step advances (4 for Atari, else 1)."""
    continuous: bool = False
    """An action is a vector, each number of which goes from -1 to 1 for the whole range that the environment gives it;
    what is outside is clipped. A number without bounds is the environment's own."""


class EnvStep(NamedTuple):
    """One step of ``E`` simulators.

    ``frame`` is the newest frame to act upon. Where an episode ended in this step, it may already belong to the
    next episode (SAME_STEP autoreset) and ``final_frame`` holds the last frame of the old one; or it is the last
    frame itself (NEXT_STEP autoreset), and the following step, marked by ``reset``, only resets that simulator.
    """

    frame: np.ndarray
    """obs_dtype ``[E, *obs_shape]``"""
    reward: np.ndarray
    """float32 ``[E]``, raw and unclipped"""
    terminated: np.ndarray
    """bool ``[E]``: the value of the next state is zero (game over, or a lost life where the protocol says so)"""
    truncated: np.ndarray
    """bool ``[E]``: the episode was cut; the next state is still worth something"""
    episode_over: np.ndarray
    """bool ``[E]``: the simulator has been, or will next be, reset (a lost life alone does not set it)"""
    reset: np.ndarray
    """bool ``[E]``: the action was ignored, the simulator was only reset, ``frame`` is a first frame"""
    final_frame: np.ndarray
    """obs_dtype ``[E, *obs_shape]``: last frame of the old episode where ``episode_over``, else equal to ``frame``"""


class GameStart(NamedTuple):
    """A game under way, for an episode to begin with (Nair et al. 2015: human starts)."""

    state: bytes
    """of the emulator, its random numbers included; data, never code"""
    frames: int
    """emulator frames played by then; they count towards the cap of an episode"""


class Batch(NamedTuple):
    """A minibatch of ``B`` (n-step) transitions."""

    s_tm1: np.ndarray
    """obs_dtype ``[B, stack, *obs_shape]``"""
    a_tm1: np.ndarray
    """int64 ``[B]``"""
    r_t: np.ndarray
    """float32 ``[B]``: discounted sum of the (clipped) rewards of up to n steps"""
    discount_t: np.ndarray
    """float32 ``[B]``: gamma to the number of steps actually taken, 0 where the episode terminated"""
    s_t: np.ndarray
    """obs_dtype ``[B, stack, *obs_shape]``"""
    weight: np.ndarray | None = None
    """float32 ``[B]``: importance-sampling weights; None: all 1"""
    place: np.ndarray | None = None
    """int64 ``[B, 2]``: lane and absolute index of each transition, where replay keeps priorities"""
