"""Catch, a tiny pixel game that needs no ROM and no simulator.

A ball falls from the top row, one row a step; the paddle on the bottom row moves left, stays or moves right. When the
ball reaches the bottom row the episode terminates with reward +1 if the paddle is under it, else -1. The rules are
those of Catch in bsuite (Osband et al. 2020, appendix A).
"""

import numpy as np

from hpcrl.envs.frame_stack import FrameStack
from hpcrl.errors import ConfigError
from hpcrl.seeding import generator_state, restore_generator
from hpcrl.types import EnvSpec, EnvStep

_LIT = 255


def spec(*, stack: int = 1, rows: int = 10, columns: int = 5) -> EnvSpec:
    """Frames are uint8 ``[rows, columns]``; a step is one frame.

    Raises
    ------
    ConfigError
        The board is too small to play on.
    """
    if rows < 2 or columns < 2:
        raise ConfigError(f"env.kwargs: catch needs rows >= 2 and columns >= 2, got rows={rows}, columns={columns}")
    return EnvSpec((rows, columns), np.dtype(np.uint8), stack, num_actions=3, frames_per_step=1)


class Catch:
    """``E`` games side by side; the members are those of `hpcrl.envs.VectorEnv`, and the whole state can be saved.

    Parameters
    ----------
    num_envs
        ``E``.
    seed_sequence
        Where the column of each ball comes from.
    stack
        Frames of one observation; 1 shows all there is to know.
    autoreset
        ``"next_step"`` or ``"same_step"``.
    rows, columns
        Size of the board [pixels].
    """

    def __init__(
        self,
        num_envs: int,
        seed_sequence: np.random.SeedSequence,
        *,
        stack: int = 1,
        autoreset: str = "next_step",
        rows: int = 10,
        columns: int = 5,
    ):
        self.num_envs = num_envs
        self.spec = spec(stack=stack, rows=rows, columns=columns)
        self._rows, self._columns = rows, columns
        self._same_step = autoreset == "same_step"
        self._rng = np.random.default_rng(seed_sequence)
        self._stack = FrameStack(num_envs, stack, self.spec.obs_shape, self.spec.obs_dtype)
        self._ball_row = np.zeros(num_envs, np.int64)
        self._ball_column = np.zeros(num_envs, np.int64)
        self._paddle = np.zeros(num_envs, np.int64)
        self._to_reset = np.zeros(num_envs, bool)

    @property
    def observation(self) -> np.ndarray:
        """uint8 ``[E, stack, rows, columns]``"""
        return self._stack.observation

    def reset(self) -> np.ndarray:
        """Start a new episode everywhere; returns the first frames, uint8 ``[E, rows, columns]``."""
        everywhere = np.ones(self.num_envs, bool)
        self._restart(everywhere)
        self._to_reset[:] = False
        frame = self._render()
        self._stack.push(frame, everywhere)
        return frame

    def step(self, actions: np.ndarray) -> EnvStep:
        """Move each paddle by ``actions - 1`` columns (int64 ``[E]``, 0 to 2)."""
        reset, playing = self._to_reset, ~self._to_reset
        self._paddle += np.where(playing, actions - 1, 0)
        np.clip(self._paddle, 0, self._columns - 1, out=self._paddle)
        self._ball_row += playing
        over = playing & (self._ball_row == self._rows - 1)
        caught = np.where(self._ball_column == self._paddle, np.float32(1), np.float32(-1))
        reward = np.where(over, caught, np.float32(0))
        if self._same_step:
            final_frame = self._render()
            started = over
            self._restart(started)
            frame = self._render()
        else:
            started = reset
            self._restart(started)
            frame = final_frame = self._render()
            self._to_reset = over
        self._stack.push(frame, started)
        return EnvStep(frame, reward, over, np.zeros(self.num_envs, bool), over, reset, final_frame)

    def close(self) -> None:
        """Nothing is held."""

    def state(self) -> dict[str, np.ndarray]:
        """Everything that decides what comes next, the random generator included."""
        return {
            "ball_row": self._ball_row.copy(),
            "ball_column": self._ball_column.copy(),
            "paddle": self._paddle.copy(),
            "to_reset": self._to_reset.copy(),
            "observation": self.observation.copy(),
            "rng": generator_state(self._rng),
        }

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Go on from what `state` returned."""
        self._ball_row = np.array(state["ball_row"])
        self._ball_column = np.array(state["ball_column"])
        self._paddle = np.array(state["paddle"])
        self._to_reset = np.array(state["to_reset"])
        self._stack.observation = np.array(state["observation"])
        restore_generator(self._rng, state["rng"])

    def _restart(self, where: np.ndarray) -> None:
        """Put a ball into the top row and the paddle into the middle of the chosen games (bool ``[E]``)."""
        self._ball_row[where] = 0
        self._ball_column[where] = self._rng.integers(self._columns, size=np.count_nonzero(where))
        self._paddle[where] = self._columns // 2

    def _render(self) -> np.ndarray:
        frame = np.zeros((self.num_envs, self._rows, self._columns), np.uint8)
        game = np.arange(self.num_envs)
        frame[game, self._ball_row, self._ball_column] = _LIT
        frame[game, self._rows - 1, self._paddle] = _LIT
        return frame
