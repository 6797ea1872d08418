"""Atari games through ale-py's vector environment, whose C++ threads step the simulators and resize the screens; or,
with ``env.exact``, through `hpcrl.envs.atari_exact`, whose state can be saved.

Where they depart from the published protocols (ale-py 0.12.1):

- Rewards are never clipped here; a learner clips what it trains on.
- ``life_loss = "terminate"`` marks the step as terminated and the game goes on. ale-py's own ``episodic_life`` would
  restart the whole game at each lost life.
- No-ops are single emulator frames and may be none: 0 to ``noop_max``, where DQN Zoo draws 1 to ``noop_max`` and
  plain ale-py 0 to ``noop_max - 1``. A FIRE pressed by ``fire_reset`` counts as one of them.
- Nothing is pressed for the agent after a lost life, and its observations go on. Accelerated Methods (section A.1)
  blanks the older frames, and takes a no-op, FIRE and UP where the game has them.
- The last frame of an episode is pooled from fewer screens than the others, some of them from the step before,
  because the emulator is not read again once the episode is over. Only a truncated episode bootstraps from it.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from hpcrl.errors import ConfigError
from hpcrl.types import EnvSpec, EnvStep, GameStart

try:
    import ale_py
    from ale_py import roms
    from ale_py.vector_env import AtariVectorEnv
except ImportError as fault:
    raise ConfigError(
        f"env.id: Atari games need ale-py, which cannot be imported ({fault}): pip install ale-py"
    ) from fault

from hpcrl.envs.atari_exact import ExactVector
from hpcrl.envs.gym import registered

_SCREENS = {"84x84": {"img_height": 84, "img_width": 84}, "104x80": {"img_height": 105, "img_width": 80}}
_CROPPED_ROWS = {"84x84": 0, "104x80": 1}
"""Rows that are cut off below: halving 210 rows and leaving out the last is leaving out two rows and halving 208."""
_HALVED = (210, 160)
"""The screen that 104x80 is half of."""
_AUTORESET = {"next_step": "NextStep", "same_step": "SameStep"}
_SEED_BITS = 0x7FFFFFFF  # ale-py reads a seed as a C int and a negative one as "none"


def spec(
    id: str, *, full_action_space: bool, frame_skip: int, stack: int, screen: str, kwargs: Mapping[str, Any]
) -> EnvSpec:
    """Read the game's action set from its ROM; nothing is stepped.

    Raises
    ------
    ConfigError
        The game is not known, ``kwargs`` has other keys than ``img_height`` and ``img_width`` [pixels], or the game's
        screen cannot be halved to 104x80.
    """
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    ale = ale_py.ALEInterface()
    ale.loadROM(roms.get_rom_path(_game(id)))
    if screen == "104x80" and tuple(ale.getScreenDims()) != _HALVED:
        size = "x".join(map(str, ale.getScreenDims()))
        raise ConfigError(
            f'env.screen: expected "84x84" for {id}, whose screen has {size} pixels, got "104x80" (of 210x160)'
        )
    actions = ale.getLegalActionSet() if full_action_space else ale.getMinimalActionSet()
    return EnvSpec(_obs_shape(screen, kwargs), np.dtype(np.uint8), stack, len(actions), frames_per_step=frame_skip)


class Atari:
    """``E`` simulators of one game; the members are those of `hpcrl.envs.VectorEnv`.

    A frame is uint8 ``[84, 84]``: grey, the maximum of the last two screens, resized by area averaging (Mnih et al.
    2015, Methods). Or ``[104, 80]``: the same, two rows cropped below, and halved (Accelerated Methods, section A.1).
    The arguments are those of `hpcrl.envs.make_env`.

    Raises
    ------
    ConfigError
        As `spec`.
    """

    _backend: type = AtariVectorEnv

    def __init__(
        self,
        num_envs: int,
        seed_sequence: np.random.SeedSequence,
        *,
        id: str,
        sticky_probability: float,
        noop_max: int,
        full_action_space: bool,
        life_loss: str,
        fire_reset: bool,
        frame_skip: int,
        stack: int,
        max_episode_frames: int,
        autoreset: str,
        threads: int,
        screen: str,
        stuck_frames: int,
        random_start_steps: int,
        kwargs: Mapping[str, Any],
    ):
        obs_shape = _obs_shape(screen, kwargs)
        others = _threads()
        self._env = self._backend(
            _game(id),
            num_envs,
            num_threads=threads,
            max_num_frames_per_episode=max_episode_frames,
            repeat_action_probability=sticky_probability,
            full_action_space=full_action_space,
            autoreset_mode=_AUTORESET[autoreset],
            stack_num=stack,
            frameskip=frame_skip,
            noop_max=noop_max + 1 if noop_max else 0,  # ale-py draws from 0 to one less
            reward_clipping=False,
            use_fire_reset=fire_reset,
            **(_SCREENS[screen] | dict(kwargs)),
        )
        started = _threads() - others
        if 0 < len(started) <= threads:  # else some are not the simulators', or they have none
            _let_run_at_once(sorted(started))
        num_actions = int(self._env.single_action_space.n)
        self.num_envs = num_envs
        self.spec = EnvSpec(obs_shape, np.dtype(np.uint8), stack, num_actions, frames_per_step=frame_skip)
        self._rows = obs_shape[0]
        self.observation = np.zeros((num_envs, stack, *obs_shape), np.uint8)
        self._rng = np.random.default_rng(seed_sequence.spawn(1)[0])
        self._random_start_steps = random_start_steps
        self._stuck_steps = stuck_frames // frame_skip
        self._steps_without_reward = np.zeros(num_envs, np.int64)
        self._seeds: np.ndarray | None = (seed_sequence.generate_state(num_envs) & _SEED_BITS).astype(np.int32)
        self._same_step = autoreset == "same_step"
        self._life_terminates = life_loss == "terminate"
        self._lives = np.zeros(num_envs, np.int32)
        self._to_reset = np.zeros(num_envs, bool)
        self._stuck = np.zeros(num_envs, bool)
        """what will be reset although its game goes on"""

    def reset(self) -> np.ndarray:
        """Start a new game everywhere; returns the first frames, uint8 ``[E, *obs_shape]``.

        The first time, each simulator then takes 0 to ``random_start_steps`` random actions, so that their games, and
        what belongs to a phase of a game, do not all begin and end together (Accelerated Methods, section 4.1).
        """
        # Unseeded, ale-py draws a seed from the machine; a second reset goes on with the numbers of the first.
        first, (observation, info) = self._seeds is not None, self._env.reset(seed=self._seeds)
        self._seeds = None
        if first and self._random_start_steps:
            observation, info = self._play_random_starts()
        self._see(observation, info)
        self._to_reset = np.zeros(self.num_envs, bool)
        self._stuck = np.zeros(self.num_envs, bool)
        self._steps_without_reward[:] = 0
        return self.observation[:, -1]

    def _play_random_starts(self) -> tuple[np.ndarray, Mapping[str, np.ndarray]]:
        begin = self._rng.integers(self._random_start_steps, size=self.num_envs, endpoint=True)
        over = np.zeros(self.num_envs, bool)
        for step in range(1, self._random_start_steps + 1):
            actions = self._rng.integers(self.spec.num_actions, size=self.num_envs)
            observation, _, game_over, cut, info = self._env.step(actions)
            over = game_over | cut
            if (begin == step).any():
                observation, info = self._env.reset(options={"reset_mask": begin == step})
                over &= begin != step
        return self._env.reset(options={"reset_mask": over}) if over.any() else (observation, info)

    def _see(self, observation: np.ndarray, info: Mapping[str, np.ndarray]) -> None:
        self.observation, self._lives = observation[:, :, : self._rows], info["lives"]

    def step(self, actions: np.ndarray) -> EnvStep:
        """Hold ``actions`` (int64 ``[E]``) for ``frame_skip`` emulator frames."""
        self.send(actions)
        return self.receive()

    def send(self, actions: np.ndarray) -> None:
        """Begin a step, in the simulators' threads."""
        self._env.send(actions)

    def receive(self) -> EnvStep:
        """What came of it, when it is over."""
        reset = self._to_reset
        # Every call returns new arrays, which may therefore be kept.
        lives = self._lives
        observation, reward, game_over, cut, info = self._env.recv()
        if self._stuck.any():
            observation, info = self._env.reset(options={"reset_mask": self._stuck})
            for ended in (reward, game_over, cut):
                ended[self._stuck] = 0
        self._see(observation, info)
        if self._stuck_steps:
            self._steps_without_reward = np.where((reward == 0) & ~reset, self._steps_without_reward + 1, 0)
            self._stuck = (self._steps_without_reward >= self._stuck_steps) & ~game_over & ~cut
            cut = cut | self._stuck
        frame = final_frame = self.observation[:, -1]
        over = game_over | cut
        restarted = reset
        if self._same_step:
            restarted = over
            if over.any():
                final_frame = np.where(over[:, None, None], info["final_obs"][:, -1, : self._rows], frame)
        else:
            self._to_reset = over
        terminated = game_over
        if self._life_terminates:
            # Some games show no lives for a few frames before they are over: that is one end, not two.
            lost = (self._lives < lives) & (self._lives > 0) & ~restarted
            terminated = game_over | lost
        return EnvStep(frame, reward.astype(np.float32), terminated, cut & ~terminated, over, reset, final_frame)

    def close(self) -> None:
        """End the simulators' threads."""
        self._env.close()
        self._env = None


class ExactAtari(Atari):
    """The same, slower, on emulators whose state can be saved: what a run needs to go on bit for bit.

    Parameters
    ----------
    noop_min
        An episode starts with ``noop_min`` to ``noop_max`` no-ops [frames].
    starts
        If there are any, the ``E`` simulators begin in them in turn, from the first one on at every reset: episode
        ``k`` of simulator ``e`` in number ``e + k E`` modulo their count. The frames by then count towards
        ``max_episode_frames``.
    """

    def __init__(self, *arguments: Any, noop_min: int = 0, starts: Sequence[GameStart] = (), **named: Any):
        self._backend = partial(ExactVector, noop_min=noop_min, starts=starts)
        super().__init__(*arguments, **named)

    def render(self, simulator: int) -> np.ndarray:
        """The screen of one simulator in colour, uint8 ``[height, width, 3]``."""
        return self._env.render(simulator)

    def action_names(self) -> list[str]:
        """What ale-py calls the actions: ``"NOOP"``, ``"UPRIGHTFIRE"``."""
        return self._env.action_names()

    def game_start(self, simulator: int) -> GameStart:
        """The game of one simulator as it is now, for others to begin with."""
        return self._env.game_start(simulator)

    def state(self) -> dict[str, np.ndarray]:
        """Everything that decides what comes next, random numbers included."""
        return {
            **self._env.state(),
            "lives": self._lives.copy(),
            "to_reset": self._to_reset.copy(),
            "stuck": self._stuck.copy(),
            "steps_without_reward": self._steps_without_reward.copy(),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned; raises as `ExactVector.restore`."""
        self._see(self._env.restore(state), {"lives": np.array(state["lives"])})
        self._seeds = None
        self._to_reset, self._stuck = np.array(state["to_reset"]), np.array(state["stuck"])
        self._steps_without_reward = np.array(state["steps_without_reward"])


def _threads() -> set[int]:
    """Threads of this process, where the system is Linux, which can schedule each as it should be."""
    return set(map(int, os.listdir("/proc/self/task"))) if sys.platform == "linux" else set()


def _let_run_at_once(threads: Sequence[int]) -> None:
    """Keep simulators' threads from running one after the other on one core while others idle.

    The first that is woken preempts the thread that was about to wake the others, and what it leaves undone begins only
    when it is done: 8 simulators of Pong on two cores took 2.4 ms instead of 1.3 after each forward pass. So they are
    batch threads (sched(7)), which preempt no thread when they wake; and where the process has a core for each, they
    keep to it, as two may share one otherwise.
    """
    cores = sorted(os.sched_getaffinity(0))
    with suppress(OSError):  # a sandbox may forbid it; nothing depends on it but time
        for number, thread in enumerate(threads):
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
            if len(threads) == len(cores):
                os.sched_setaffinity(thread, {cores[number]})


def _game(id: str) -> str:
    """ale-py's own name of a game: ``ms_pacman`` for ``ALE/MsPacman-v5``."""
    return registered(id).kwargs["game"]


def _obs_shape(screen: str, kwargs: Mapping[str, Any]) -> tuple[int, int]:
    known = _SCREENS["84x84"]
    unknown = sorted(set(kwargs) - set(known))
    if unknown:
        raise ConfigError(
            f"env.kwargs: Atari takes {' and '.join(known)}, got {', '.join(unknown)}; "
            "the rest of the protocol has its own keys in [env]"
        )
    if kwargs and screen != "84x84":
        raise ConfigError(f'env.kwargs: expected none of {" and ".join(known)} with env.screen = "{screen}"')
    size = _SCREENS[screen] | dict(kwargs)
    return size["img_height"] - _CROPPED_ROWS[screen], size["img_width"]
