"""Prioritised sampling of n-step transitions (Schaul et al. 2016; Ape-X, Horgan et al. 2018)."""

from collections.abc import Callable

import numpy as np

from hpcrl.replay.lanes import Lanes
from hpcrl.replay.priorities import BLOCK_SLOTS, PrioritySource, SetPriorities, blocks_per_lane
from hpcrl.replay.uniform import Draw, UniformReplay
from hpcrl.types import Batch


class PrioritizedReplay(UniformReplay):
    """Draws minibatches in proportion to priorities, anywhere in a memory that may be spread over many ranks.

    A draw takes a block in proportion to the block sums, and then a slot in proportion to the priorities in it, both as
    they are read. Their product is the probability that the draw had, whatever the owner of the priorities wrote
    meanwhile, so importance weights made of it leave no bias.

    Parameters
    ----------
    lanes, n_step, discount, reward_clip
        See `UniformReplay`.
    priorities
        Where the priorities of the lanes are read.
    set_priorities
        Where those of a batch that was learned from go.
    beta
        Gives the exponent of the importance weights as it is now: 0 none, 1 full correction.
    """

    def __init__(
        self,
        lanes: Lanes,
        *,
        n_step: int,
        discount: float,
        reward_clip: float | None,
        priorities: PrioritySource,
        set_priorities: SetPriorities,
        beta: Callable[[], float],
    ):
        super().__init__(lanes, n_step=n_step, discount=discount, reward_clip=reward_clip)
        self._priorities, self._set, self._beta = priorities, set_priorities, beta
        self._lane_blocks = blocks_per_lane(lanes.capacity)

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch | None:
        """Draw ``B = batch_size`` transitions, with replacement; see `UniformReplay.sample`.

        Returns
        -------
        Batch or None
            With ``weight = (p_min / p)^beta``, ``p`` the probabilities of the draws and ``p_min`` the least of this
            batch, and with ``place``.
        """
        drawn = self._draw(batch_size, rng)
        if drawn is None:
            return None
        draw, windows = drawn
        weight = (draw.probability.min() / draw.probability) ** self._beta()
        place = np.stack([draw.lane, draw.index], axis=1)
        return self._batch(windows)._replace(weight=weight.astype(np.float32), place=place)

    def update(self, batch: Batch, delta: np.ndarray) -> None:
        """Set the priorities of a batch from its TD errors, float32 ``[B]``."""
        self._set(batch.place[:, 0], batch.place[:, 1], delta)

    def _propose(self, count: int, rng: np.random.Generator) -> Draw | None:
        # The cursors before the priorities: a record that is written meanwhile is then not taken for the one that is
        # read here, and a priority that is read for it leads to an older record, which is found to be overwritten.
        low, counts = self._drawable(self._lanes.cursors.look())
        sums = self._priorities.sums()
        ends = sums.cumsum()
        if ends[-1] <= 0:
            return None
        self.mean_priority = float(ends[-1] / max(counts.sum(), 1))
        block = ends.searchsorted(rng.random(count) * ends[-1], side="right")
        slots = self._priorities.slots(block)
        slot, within = _pick(slots, rng)
        lane = block // self._lane_blocks
        newest = low + counts - 1  # of those that may be drawn
        place = block % self._lane_blocks * BLOCK_SLOTS + slot
        index = newest[lane] - (newest[lane] - place) % self._lanes.capacity
        # A priority that its owner has yet to take back may be of a record that can no longer, or not yet, be drawn.
        probability = np.where(index >= low[lane], sums[block] / ends[-1] * within, 0)
        return Draw(lane, np.maximum(index, 0), probability)


def _pick(slots: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A slot of each block of priorities, float64 ``[B, BLOCK_SLOTS]``, and its probability: 0 where all are 0."""
    ends = slots.cumsum(axis=1)
    totals = ends[:, -1]
    slot = np.minimum((ends <= (rng.random(len(slots)) * totals)[:, None]).sum(axis=1), BLOCK_SLOTS - 1)
    return slot, slots[np.arange(len(slots)), slot] / np.where(totals > 0, totals, 1)
