"""Atari games on single `ale_py.ALEInterface`s, stepped in one thread, whose whole state can be saved (``env.exact``);
ale-py's vector environment cannot be cloned.

`ExactVector` stands in for `ale_py.vector_env.AtariVectorEnv` and gives the same frames, rewards and ends for the same
actions, apart from random numbers: no-ops and sticky actions are drawn here, because the state of an emulator does not
hold the action that a sticky one would repeat.
"""

from collections.abc import Mapping, Sequence

import ale_py
import gymnasium
import numpy as np
from ale_py import roms

from hpcrl.errors import ConfigError, StorageError
from hpcrl.seeding import generator_state, restore_generator
from hpcrl.types import GameStart

_NOOP, _FIRE = ale_py.Action.NOOP, ale_py.Action.FIRE


class ExactVector:
    """``E`` simulators of one game: what `hpcrl.envs.atari.Atari` uses of ale-py's vector environment, by its names.

    One thread steps them all, rewards are raw, and a finished simulator is reset in a step of its own. An episode
    begins with ``noop_min`` to ``noop_max - 1`` no-ops or, with ``starts``, in one of these: episode ``k`` of simulator
    ``e`` since all were reset in number ``e + k E`` modulo their count.

    Raises
    ------
    ConfigError
        Another way to reset is asked for.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        *,
        max_num_frames_per_episode: int,
        repeat_action_probability: float,
        full_action_space: bool,
        autoreset_mode: str,
        stack_num: int,
        frameskip: int,
        noop_max: int,
        use_fire_reset: bool,
        img_height: int,
        img_width: int,
        num_threads: int,
        reward_clipping: bool,
        noop_min: int = 0,
        starts: Sequence[GameStart] = (),
    ):
        if autoreset_mode != "NextStep":
            raise ConfigError('env.autoreset: expected "next_step" with env.exact, got "same_step"')
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self._ales = [_interface(game) for _ in range(num_envs)]
        ale = self._ales[0]
        self._actions = ale.getLegalActionSet() if full_action_space else ale.getMinimalActionSet()
        self.single_action_space = gymnasium.spaces.Discrete(len(self._actions))
        self._rng = np.random.default_rng(0)
        self._sticky, self._frame_skip = repeat_action_probability, frameskip
        self._noop_min, self._noop_end, self._fire = noop_min, noop_max, use_fire_reset and _FIRE in self._actions
        self._starts, self._begun = starts, np.zeros(num_envs, np.int64)
        self._max_frames = max_num_frames_per_episode
        height, width = ale.getScreenDims()
        self._resize = AreaResize((height, width), (img_height, img_width))
        self._sent = np.zeros(num_envs, np.int64)
        self._held = [_NOOP] * num_envs
        """the action that a sticky one repeats"""
        self._frames = np.zeros(num_envs, np.int64)
        self._over = np.zeros(num_envs, bool)
        self._screens = np.zeros((num_envs, 2, height, width), np.uint8)
        """the newest screen, pooled with the one before it, and that one"""
        self._stacks = np.zeros((num_envs, stack_num, img_height, img_width), np.uint8)

    def reset(
        self, *, seed: np.ndarray | None = None, options: Mapping[str, np.ndarray] | None = None
    ) -> tuple[np.ndarray, dict]:
        """Start a new game everywhere, or where the ``reset_mask`` of the options (bool ``[E]``) says so.

        The random numbers are those of ``seed`` (int32 ``[E]``) or those that come next.

        Observations uint8 ``[E, stack, H, W]``, and the lives.
        """
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        mask = options["reset_mask"] if options else np.ones(len(self._ales), bool)
        if not options:
            self._begun[:] = 0
        for e in np.flatnonzero(mask):
            self._reset_one(e)
        self._over[mask] = False
        return self._stacks.copy(), self._info()

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Observations, raw rewards, game over, truncated, and the lives."""
        self.send(actions)
        return self.recv()

    def send(self, actions: np.ndarray) -> None:
        """Keep the actions of the step that :meth:`recv` will take: nothing runs in the background."""
        self._sent = actions

    def recv(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Take the step; what `step` returns."""
        actions = self._sent
        num_envs = len(self._ales)
        reward, over, cut = np.zeros(num_envs, np.int32), np.zeros(num_envs, bool), np.zeros(num_envs, bool)
        for e in range(num_envs):
            if self._over[e]:
                self._reset_one(e)
            else:
                reward[e], over[e] = self._play(e, self._actions[actions[e]])
                cut[e] = self._frames[e] >= self._max_frames and not over[e]
        self._over = over | cut
        return self._stacks.copy(), reward, over, cut, self._info()

    def close(self) -> None:
        """Let go of the emulators."""
        self._ales = []

    def state(self) -> dict[str, np.ndarray]:
        """Everything that decides what comes next; an emulator's own state as bytes, one after the other."""
        emulators = [ale.cloneState(include_rng=True).serialize() for ale in self._ales]
        return {
            "emulators": np.frombuffer(b"".join(emulators), np.uint8),
            "emulator_bytes": np.array([len(data) for data in emulators]),
            "held": np.array([action.value for action in self._held]),
            "frames": self._frames.copy(),
            "over": self._over.copy(),
            "screens": self._screens.copy(),
            "stacks": self._stacks.copy(),
            "begun": self._begun.copy(),
            "rng": generator_state(self._rng),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> np.ndarray:
        """Go on from what `state` returned; the observations of then.

        Raises
        ------
        StorageError
            An emulator does not take its state; the bytes are data to it, never code.
        """
        ends = np.cumsum(state["emulator_bytes"])
        for ale, data in zip(self._ales, np.split(state["emulators"], ends[:-1]), strict=True):
            ale.reset_game()
            _restore(ale, data.tobytes())
        self._held = [ale_py.Action(int(action)) for action in state["held"]]
        self._frames, self._over = np.array(state["frames"]), np.array(state["over"])
        self._screens, self._stacks = np.array(state["screens"]), np.array(state["stacks"])
        self._begun = np.array(state.get("begun", np.zeros(len(self._ales), np.int64)))  # absent in the oldest files
        restore_generator(self._rng, state["rng"])
        return self._stacks.copy()

    def _info(self) -> dict[str, np.ndarray]:
        return {"lives": np.array([ale.lives() for ale in self._ales], np.int32)}

    def render(self, e: int) -> np.ndarray:
        """The screen of one simulator in colour, uint8 ``[height, width, 3]``."""
        return self._ales[e].getScreenRGB()

    def action_names(self) -> list[str]:
        """What ale-py calls the actions: ``"NOOP"``, ``"UPRIGHTFIRE"``."""
        return [action.name for action in self._actions]

    def game_start(self, e: int) -> GameStart:
        """The game of one simulator as it is now, for others to begin with."""
        state = self._ales[e].cloneState(include_rng=True).serialize()
        return GameStart(state, int(self._frames[e]))

    def _reset_one(self, e: int) -> None:
        ale = self._ales[e]
        ale.reset_game()
        self._held[e] = _NOOP
        if self._starts:
            number = e + int(self._begun[e]) * len(self._ales)
            self._begun[e] += 1
            self._frames[e] = self._restore_start(e, self._starts[number % len(self._starts)])
        else:
            self._frames[e] = 0
            self._play_noops(e)
        ale.getScreenGrayscale(self._screens[e, 0])
        self._screens[e, 1] = 0
        self._stacks[e] = 0
        self._push_screen(e)

    def _restore_start(self, e: int, start: GameStart) -> int:
        """Put one simulator into a game under way; frames played by then."""
        _restore(self._ales[e], start.state)
        self._ales[e].act(_NOOP)  # an emulator has no screen before it has played a frame
        return start.frames + 1

    def _play_noops(self, e: int) -> None:
        ale = self._ales[e]
        if self._fire:
            self._act(e, _FIRE)
        noops = int(self._rng.integers(self._noop_min, self._noop_end)) if self._noop_end else 0
        for _ in range(noops - self._fire):
            self._act(e, _NOOP)
            if ale.game_over():
                ale.reset_game()
                self._held[e] = _NOOP

    def _play(self, e: int, action: ale_py.Action) -> tuple[int, bool]:
        """Hold an action for ``frame_skip`` emulator frames, or to the end of the episode; reward, and game over."""
        ale, reward, over = self._ales[e], 0, False
        for left in range(self._frame_skip - 1, -1, -1):
            reward += self._act(e, action)
            self._frames[e] += 1
            over = ale.game_over()
            if over or self._frames[e] >= self._max_frames:
                break
            if left < 2:
                ale.getScreenGrayscale(self._screens[e, left])
        self._push_screen(e)
        return reward, over

    def _act(self, e: int, action: ale_py.Action) -> int:
        """One emulator frame (Machado et al. 2018, section 5.2: a sticky action repeats the one before)."""
        if not self._sticky or self._rng.random() >= self._sticky:
            self._held[e] = action
        return self._ales[e].act(self._held[e])

    def _push_screen(self, e: int) -> None:
        newest, before = self._screens[e]
        np.maximum(newest, before, out=newest)
        self._stacks[e, :-1] = self._stacks[e, 1:].copy()
        self._stacks[e, -1] = self._resize(newest)


def _interface(game: str) -> ale_py.ALEInterface:
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)  # nothing draws from it
    ale.loadROM(roms.get_rom_path(game))
    return ale


def _restore(ale: ale_py.ALEInterface, state: bytes) -> None:
    try:
        ale.restoreState(ale_py.ALEState(state))
    except (SystemError, RuntimeError) as error:
        raise StorageError(f"a simulator cannot be restored from {len(state)} bytes: {error}") from error


class AreaResize:
    """Reduces grey images by area averaging, bit for bit as OpenCV's ``INTER_AREA`` does, in float32 in its order."""

    def __init__(self, source: tuple[int, int], target: tuple[int, int]):
        self._same = source == target
        self._halves = source == (2 * target[0], 2 * target[1])
        self._rows, self._columns = (_taps(s, t) for s, t in zip(source, target, strict=True))

    def __call__(self, image: np.ndarray) -> np.ndarray:
        """uint8 ``[h, w]`` to ``[H, W]``."""
        if self._same:
            return image
        if self._halves:  # OpenCV has a way of its own for it, which rounds halves up
            total = image[::2].astype(np.uint16) + image[1::2]
            return ((total[:, ::2] + total[:, 1::2] + 2) >> 2).astype(np.uint8)
        wide = _weighted_sum(image.astype(np.float32).T, *self._columns).T
        return np.rint(_weighted_sum(wide, *self._rows)).astype(np.uint8)


def _taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices int64 and weights float32 ``[taps, target]`` of the source cells under each target cell."""
    scale = 1 / (target / source)
    cells: list[list[tuple[int, float]]] = []
    for t in range(target):
        begin = t * scale
        end, width = begin + scale, min(scale, source - begin)
        last = min(int(np.floor(end)), source - 1)
        first = min(int(np.ceil(begin)), last)
        cell = [(first - 1, (first - begin) / width)] if first - begin > 1e-3 else []
        cell += [(s, 1.0 / width) for s in range(first, last)]
        cell += [(last, min(end - last, 1.0, width) / width)] if end - last > 1e-3 else []
        cells.append(cell)
    taps = max(map(len, cells))
    padded = np.array([cell + [(0, 0.0)] * (taps - len(cell)) for cell in cells])  # [target, taps, 2]
    return padded[..., 0].T.astype(np.int64), padded[..., 1].T.astype(np.float32)


def _weighted_sum(values: np.ndarray, index: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """float32 ``[n, m]`` to ``[target, m]``, tap after tap."""
    total = np.zeros((index.shape[1], values.shape[1]), np.float32)
    for i, w in zip(index, weight, strict=True):
        total += values[i] * w[:, None]
    return total
