"""Uniform sampling of n-step transitions from replay lanes (DQN; Accelerated Methods §5.2)."""

from typing import NamedTuple

import numpy as np

from hpcrl.replay.lanes import Lanes, lowest_drawable
from hpcrl.replay.returns import NStepReturns
from hpcrl.types import Batch


class Draw(NamedTuple):
    """Transitions that were drawn."""

    lane: np.ndarray
    """int64 ``[B]``"""
    index: np.ndarray
    """int64 ``[B]``: absolute, of the record acted upon"""
    probability: np.ndarray
    """float64 ``[B]``, with which each was drawn; 0 where nothing was hit that may be drawn"""


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
    hidden
        See `Prefetch`; NaN, as nothing is drawn ahead here.
    age
        Mean age of the last minibatch, in steps that each lane has taken since; NaN before the first. [steps]
    mean_priority
        Sum of all priorities by the number of records that could be drawn for it; NaN without priorities.
    """

    hidden = mean_priority = float("nan")
    _last: Draw | None = None

    def __init__(self, lanes: Lanes, *, n_step: int, discount: float, reward_clip: float | None):
        if not 1 <= n_step <= lanes.n_step:
            raise ValueError(f"n_step must be from 1 to {lanes.n_step}, the n_step of the lanes, got {n_step}")
        self.overwritten = 0
        self._lanes = lanes
        self._n_step = n_step
        self._returns = NStepReturns(n_step, discount, reward_clip)

    def __len__(self) -> int:
        """Indices that may be drawn: an upper bound of the transitions, as it counts the final record of each
        episode, which is drawn again."""
        _, counts = self._drawable(self._lanes.cursors.look())
        return int(counts.sum())

    @property
    def fill(self) -> float:
        """Filled share of the memory, 0 to 1."""
        committed = np.minimum(self._lanes.cursors.committed(), self._lanes.capacity)
        return float(committed.sum()) / (self._lanes.num_lanes * self._lanes.capacity)

    @property
    def age(self) -> float:
        """See above; worked out when it is asked for, which is seldom."""
        if self._last is None:
            return float("nan")
        newest = self._lanes.cursors.recent()[1] - 1
        return float((newest[self._last.lane] - self._last.index).mean())

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch | None:
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
        Batch or None
            ``s_tm1`` and ``s_t`` are strided views of one fresh buffer (they may share frames): not to be written to.
            None where nothing can be sampled yet.
        """
        drawn = self._draw(batch_size, rng)
        return drawn and self._batch(drawn[1])

    def update(self, batch: Batch, delta: np.ndarray) -> None:
        """Take note of the TD errors, float32 ``[B]``, of a batch: uniform sampling makes no use of them."""

    def _batch(self, windows: np.ndarray) -> Batch:
        """Transitions of `record_dtype` windows ``[B, stack + n]``."""
        stack, n = self._lanes.stack, self._n_step
        frames = windows["frame"]
        _zero_before_first(frames, windows["first"][:, :stack])
        taken = windows[:, stack - 1 : stack - 1 + n]
        reward, discount, steps = self._returns(taken["reward"], taken["terminated"], taken["truncated"])
        s_t = frames[:, n : n + stack]
        if n > 1 and steps.min() < n:
            s_t = frames[np.arange(len(frames))[:, None], steps[:, None] + np.arange(stack)]
        action = windows["action"][:, stack - 1].astype(np.int64)
        return Batch(s_tm1=frames[:, :stack], a_tm1=action, r_t=reward, discount_t=discount, s_t=s_t)

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[Draw, np.ndarray] | None:
        """Draw transitions, and copy the window ``[B, stack + n]`` around each, which has it at ``stack - 1``."""
        drawn = self._attempt(batch_size, rng)
        if drawn is None or not np.count_nonzero(drawn[0].probability):
            return None
        draw, windows, bad = drawn
        while np.count_nonzero(bad):
            rows = np.flatnonzero(bad)
            again = self._attempt(rows.size, rng)
            if again is None:
                return None
            for old, new in zip((*draw, windows, bad), (*again[0], *again[1:]), strict=True):
                old[rows] = new
        self._last = draw
        return draw, windows

    def _attempt(self, count: int, rng: np.random.Generator) -> tuple[Draw, np.ndarray, np.ndarray] | None:
        """Draw ``count`` transitions and copy their windows; also which of them must be drawn again."""
        draw, stack = self._propose(count, rng), self._lanes.stack
        if draw is None:
            return None
        windows, overtaken = self._lanes.read(draw.lane, draw.index - (stack - 1), stack + self._n_step)
        bad, hits = windows["final"][:, stack - 1] != 0, np.count_nonzero(draw.probability)
        if hits < count:
            bad |= draw.probability == 0
        if np.count_nonzero(overtaken):
            self.overwritten += int(np.count_nonzero(overtaken & (draw.probability > 0)))
            bad |= overtaken
        return draw, windows, bad

    def _propose(self, count: int, rng: np.random.Generator) -> Draw | None:
        """Draw from the indices that may be drawn, without a look at what is there; None where there are none."""
        # What was seen when the last batch had been copied: what is new since comes in a batch later.
        low, counts = self._drawable(self._lanes.cursors.recent())
        if not np.count_nonzero(counts):
            low, counts = self._drawable(self._lanes.cursors.look())
        ends = counts.cumsum()
        total = int(ends[-1])
        if not total:
            return None
        draw, probability = rng.integers(total, size=count), np.empty(count)
        probability.fill(1 / total)
        lane = ends.searchsorted(draw, side="right")
        return Draw(lane, draw + (low + counts - ends)[lane], probability)

    def _drawable(self, cursors: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """int64 ``[L]`` each: lowest index of a lane that may be drawn as ``s_tm1``, and how many from there on."""
        reserved, committed = cursors
        low = lowest_drawable(reserved, capacity=self._lanes.capacity, stack=self._lanes.stack)
        return low, np.maximum(committed - self._n_step - low, 0)


def _zero_before_first(frames: np.ndarray, first: np.ndarray) -> None:
    """Zero the frames ``[B, W, ...]`` of a window that are older than the last one marked ``first`` (uint8
    ``[B, stack]``). The steps after ``s_tm1`` stay in its episode, so this serves ``s_t`` too."""
    later = first[:, 1:]
    if np.count_nonzero(later):
        # [b, j] is true where some later frame, up to s_tm1's newest, is the first of its episode.
        older = np.logical_or.accumulate(later[:, ::-1], axis=1)[:, ::-1]
        rows, positions = np.nonzero(older)
        frames[rows, positions] = 0
