"""Uniform sampling of n-step transitions from replay lanes (DQN; Accelerated Methods §5.2)."""

import numpy as np

from hpcrl.replay.lanes import Lanes
from hpcrl.types import Batch

OLDEST_MARGIN_RECORDS = 2
"""The oldest records of a full lane that are not drawn: one step writes at most a record and a final frame, so a
sample is lost to a writer in another rank only if that writer takes more than one step while a batch is copied."""


class UniformReplay:
    """Draws minibatches uniformly over all stored transitions of all lanes.

    Parameters
    ----------
    lanes
        The memory, whose writer may be another rank.
    n_step
        Steps of a return, at most ``lanes.n_step``.
    discount
        gamma, per step.
    reward_clip
        Rewards are clipped to ``[-reward_clip, reward_clip]`` step by step before they are summed; ``None``: not at
        all.

    Attributes
    ----------
    overwritten
        Samples drawn again because a writer had overwritten them while they were copied.
    """

    def __init__(self, lanes: Lanes, *, n_step: int, discount: float, reward_clip: float | None):
        if not 1 <= n_step <= lanes.n_step:
            raise ValueError(f"n_step must be from 1 to {lanes.n_step}, the n_step of the lanes, got {n_step}")
        self.overwritten = 0
        self._lanes = lanes
        self._n_step = n_step
        self._discount = discount
        self._reward_clip = reward_clip
        self._windows = lanes.windows(lanes.stack + n_step)
        self._powers = (discount ** np.arange(n_step + 1, dtype=np.float64)).astype(np.float32)

    def __len__(self) -> int:
        """Indices that may be drawn: an upper bound of the transitions, as it counts the final record of each
        episode, which is drawn again."""
        _, counts = self._drawable()
        return int(counts.sum())

    @property
    def fill(self) -> float:
        """Filled share of the memory, 0 to 1."""
        committed = np.minimum(self._lanes.cursors.committed(), self._lanes.capacity)
        return float(committed.sum()) / (self._lanes.num_lanes * self._lanes.capacity)

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch:
        """Draw ``B = batch_size`` transitions, with replacement.

        For a transition that starts at record ``t`` and takes ``m <= n`` steps (fewer than ``n`` where the episode,
        or a life that counts as one, ends)::

            r_t        = sum over k < m of gamma^k clip(r_{t+k})
            discount_t = 0 if step m terminated, else gamma^m
            s_t        = the observation m steps later; for a truncated episode, its final frame

        Frames from before an episode's first are zeros.

        Parameters
        ----------
        batch_size
            Transitions.
        rng
            Where the draws come from.

        Returns
        -------
        Batch
            ``s_tm1`` and ``s_t`` are strided views of one fresh buffer (they may share frames): not to be written to.

        Raises
        ------
        ValueError
            Nothing can be sampled yet.
        """
        windows = self._draw(batch_size, rng)
        stack, n = self._lanes.stack, self._n_step
        frames = windows["frame"]
        _zero_before_first(frames, windows["first"][:, :stack])
        reward, discount, steps = self._returns(windows[:, stack - 1 : stack - 1 + n])
        s_t = frames[:, n : n + stack]
        if n > 1 and steps.min() < n:
            s_t = frames[np.arange(batch_size)[:, None], steps[:, None] + np.arange(stack)]
        action = windows["action"][:, stack - 1].astype(np.int64)
        return Batch(s_tm1=frames[:, :stack], a_tm1=action, r_t=reward, discount_t=discount, s_t=s_t)

    def update(self, batch: Batch, delta: np.ndarray) -> None:
        """Take note of the TD errors, float32 ``[B]``, of a batch: uniform sampling makes no use of them."""

    def _draw(self, batch_size: int, rng: np.random.Generator) -> np.ndarray:
        """`record_dtype` ``[B, stack + n]``: a copy of the window around each drawn index, at ``stack - 1``."""
        windows, bad = self._copy_windows(batch_size, rng)
        while bad.any():
            rows = np.flatnonzero(bad)
            windows[rows], bad[rows] = self._copy_windows(rows.size, rng)
        return windows

    def _copy_windows(self, count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draw ``count`` indices and copy their windows; also which of them must be drawn again."""
        lanes = self._lanes
        low, counts = self._drawable()
        ends = counts.cumsum()
        if ends[-1] == 0:
            raise ValueError(f"nothing to sample: no lane holds more than n_step = {self._n_step} records yet")
        draw = rng.integers(ends[-1], size=count)
        lane = ends.searchsorted(draw, side="right")
        start = low[lane] + draw - (ends - counts)[lane] - (lanes.stack - 1)
        windows = self._windows[lane, start % lanes.capacity]
        # The writer may have moved on during the copy. Records before index 0 are masked later, never missed.
        lost = np.maximum(start, 0) < lanes.cursors.reserved()[lane] - lanes.capacity
        self.overwritten += int(np.count_nonzero(lost))
        return windows, lost | (windows["final"][:, lanes.stack - 1] != 0)

    def _drawable(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 ``[L]`` each: lowest index of a lane that may be drawn as ``s_tm1``, and how many from there on."""
        lanes = self._lanes
        oldest = lanes.cursors.reserved() - (lanes.capacity - OLDEST_MARGIN_RECORDS)
        low = np.where(oldest > 0, oldest + (lanes.stack - 1), 0)
        return low, np.maximum(lanes.cursors.committed() - self._n_step - low, 0)

    def _returns(self, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """``r_t`` and ``discount_t`` (float32 ``[B]``) and ``m`` (int64 ``[B]``) of the records ``[B, n]``."""
        reward, terminated = steps["reward"], steps["terminated"]
        if self._reward_clip is not None:
            reward = np.clip(reward, -self._reward_clip, self._reward_clip)
        taken = np.ones(steps.shape, bool)
        np.logical_not(terminated[:, :-1] | steps["truncated"][:, :-1], out=taken[:, 1:])
        np.logical_and.accumulate(taken, axis=1, out=taken)
        m = taken.sum(axis=1)
        ended = terminated[np.arange(len(m)), m - 1]
        r_t = (reward * taken) @ self._powers[:-1]
        return r_t, np.where(ended, np.float32(0), self._powers[m]), m


def _zero_before_first(frames: np.ndarray, first: np.ndarray) -> None:
    """Zero the frames ``[B, W, ...]`` of a window that are older than the last one marked ``first`` (uint8
    ``[B, stack]``). The steps after ``s_tm1`` stay in its episode, so this serves ``s_t`` too."""
    later = first[:, 1:]
    if later.any():
        # [b, j] is true where some later frame, up to s_tm1's newest, is the first of its episode.
        older = np.logical_or.accumulate(later[:, ::-1], axis=1)[:, ::-1]
        rows, positions = np.nonzero(older)
        frames[rows, positions] = 0
