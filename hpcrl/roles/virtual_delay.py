"""Virtual staleness: a small run whose gradients are as old as those of a large one."""

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence

import numpy as np


class DelayedVector:
    """A published vector as it was some versions ago, so that a learner's gradients come as late as with many learners.

    Each pull draws a delay ``d`` from a distribution and gives the newest parameters that were pulled here and are at
    least ``d`` versions older than the newest (by shard 0); the oldest where there are none as old, at the start of a
    run. The delay that servers see is ``d`` and what other learners add while the gradient is on its way.

    Parameters
    ----------
    vector
        The true one, with ``pull(out, versions)`` (see :class:`hpcrl.transport.parameters.ShardedVector`).
    delays : sequence of int
        What may be drawn. [updates] The longest of them, and one, is the number of copies that are kept.
    weights : sequence of float
        How often, in proportion.
    rng : numpy.random.Generator
    """

    def __init__(self, vector, *, delays: Sequence[int], weights: Sequence[float], rng: np.random.Generator):
        self.vector, self.delays, self.rng = vector, np.asarray(delays), rng
        self._probabilities = np.asarray(weights, np.float64) / np.sum(weights)
        self._history: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=int(max(delays)) + 1)
        """(versions, values), each newer than the one before"""
        self._newest: tuple[np.ndarray, np.ndarray] | None = None

    def pull(self, out: np.ndarray, versions: np.ndarray) -> bool:
        """Copy parameters of a delay that is drawn anew into ``out``; whether they differ from ``versions``."""
        if self._newest is None:
            self._newest = np.full_like(versions, -1), np.empty_like(out)
        newest_versions, newest = self._newest
        if self.vector.pull(newest, newest_versions):
            self._history.append((newest_versions.copy(), newest.copy()))
        wanted = newest_versions[0] - self.rng.choice(self.delays, p=self._probabilities)
        position = bisect_right(self._history, wanted, key=lambda entry: entry[0][0]) - 1
        old_versions, old = self._history[max(position, 0)]
        changed = bool((old_versions != versions).any())
        out[:], versions[:] = old, old_versions
        return changed
