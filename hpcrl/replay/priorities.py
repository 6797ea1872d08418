"""Priorities of the slots of replay lanes, and their sums over blocks (Schaul et al. 2016, proportional variant).

A slot holds the priority of one record, and 0 while that record may not be drawn: it is the last frame of an episode,
its n steps are not over, or its observation is about to be overwritten. Slots are summed in blocks, so that drawing
takes two short steps, block and then slot; sums are always made anew from the slots and do not drift.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from hpcrl.replay.lanes import Lanes, lowest_drawable

SetPriorities = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
"""``set(lane, index, delta)``: give records, int64 ``[B]`` each, the priority of their TD errors, float ``[B]``."""
BLOCK_SLOTS = 256
"""Slots of one block: near the square root of a million, so that both steps of a draw are short."""
PRIORITY_FLOOR = 1e-6
"""Added to ``|delta|``, so that what was learned perfectly can still be drawn."""


def blocks_per_lane(capacity: int) -> int:
    """Blocks of a lane; the last is filled up with slots that stay 0."""
    return -(-capacity // BLOCK_SLOTS)


class PrioritySource(Protocol):
    """Where a learner reads priorities: blocks are numbered through all lanes."""

    def sums(self) -> np.ndarray:
        """float64 ``[blocks]``: the sum of each block"""

    def slots(self, blocks: np.ndarray) -> np.ndarray:
        """float64 ``[B, BLOCK_SLOTS]``: the priorities in blocks int64 ``[B]``"""


class PriorityTable:
    """Priorities ``(|delta| + floor)^alpha`` of ``L`` lanes; one rank alone writes them.

    Parameters
    ----------
    values
        float64 ``[L * blocks_per_lane, BLOCK_SLOTS]``, all zero: memory that others may read.
    block_sums
        float64 ``[L * blocks_per_lane]``, all zero: likewise.
    num_lanes
        L.
    capacity, stack
        Records of a lane, and frames of one observation.
    alpha
        0: uniform over all that may be drawn; 1: in proportion to ``|delta|``.

    Attributes
    ----------
    low
        int64 ``[L]``: records of a lane below this index have no priority any more.
    highest
        The highest priority so far, which a record without a TD error gets.
    dropped
        Priorities that came for records which could no longer be drawn.
    """

    def __init__(
        self,
        values: np.ndarray,
        block_sums: np.ndarray,
        *,
        num_lanes: int,
        capacity: int,
        stack: int,
        alpha: float,
    ):
        self.values, self.block_sums = values, block_sums
        self.capacity, self.stack, self.alpha = capacity, stack, alpha
        self.low = np.zeros(num_lanes, np.int64)
        self.highest = 1.0
        self.dropped = 0
        self._lane_slots = blocks_per_lane(capacity) * BLOCK_SLOTS

    def by_slot(self) -> np.ndarray:
        """float64 ``[L, capacity]``: the priority of each slot of each lane, a view"""
        return self.values.reshape(len(self.low), self._lane_slots)[:, : self.capacity]

    def restore(self, low: np.ndarray, highest: float) -> None:
        """Go on with priorities that were put into :meth:`by_slot`."""
        self.low[:], self.highest = low, highest
        self.block_sums[:] = self.values.sum(axis=1)

    def forget(self, reserved: np.ndarray) -> None:
        """Take the priority of all that may no longer be drawn now that ``reserved``, int64 ``[L]``, are begun."""
        low = lowest_drawable(reserved, capacity=self.capacity, stack=self.stack)
        counts = np.minimum(low - self.low, self.capacity)
        total = int(counts.sum())
        if total:
            lane = np.repeat(np.arange(len(low)), counts)
            ends = counts.cumsum()
            index = np.repeat(low - ends, counts) + np.arange(total)
            self._write(lane, index, np.zeros(total))
            self.low[:] = low

    def set(self, lane: np.ndarray, index: np.ndarray, delta: np.ndarray) -> None:
        """Give records the priority of their TD errors.

        Parameters
        ----------
        lane, index
            int64 ``[B]``: lane and absolute index. What lies below :attr:`low` is dropped and counted.
        delta
            float ``[B]``; what is not finite stands for the highest so far.
        """
        fresh = index >= self.low[lane]
        self.dropped += len(fresh) - int(np.count_nonzero(fresh))
        delta = np.asarray(delta, np.float64)[fresh]
        priority = (np.abs(delta) + PRIORITY_FLOOR) ** self.alpha
        known = np.isfinite(priority)
        self.highest = max(self.highest, priority[known].max(initial=0.0))
        self._write(lane[fresh], index[fresh], np.where(known, priority, self.highest))

    def _write(self, lane: np.ndarray, index: np.ndarray, priority: np.ndarray) -> None:
        place = lane * self._lane_slots + index % self.capacity
        self.values.reshape(-1)[place] = priority
        blocks = np.unique(place // BLOCK_SLOTS)
        self.block_sums[blocks] = self.values[blocks].sum(axis=1)

    # for learners that read this very memory -----------------------------------------------------------------------

    def sums(self) -> np.ndarray:
        """float64 ``[blocks]``, not to be written to"""
        return self.block_sums

    def slots(self, blocks: np.ndarray) -> np.ndarray:
        """float64 ``[B, BLOCK_SLOTS]``"""
        return self.values[blocks]


def local_table(lanes: Lanes, alpha: float) -> tuple[PriorityTable, SetPriorities]:
    """A table of local lanes in this process's own memory, and how priorities get into it."""
    blocks = lanes.num_lanes * blocks_per_lane(lanes.capacity)
    values, sums = np.zeros((blocks, BLOCK_SLOTS)), np.zeros(blocks)
    sizes = {"num_lanes": lanes.num_lanes, "capacity": lanes.capacity, "stack": lanes.stack}
    table = PriorityTable(values, sums, alpha=alpha, **sizes)

    def set_priorities(lane: np.ndarray, index: np.ndarray, delta: np.ndarray) -> None:
        table.forget(lanes.cursors.reserved())
        table.set(lane, index, delta)

    return table, set_priorities
