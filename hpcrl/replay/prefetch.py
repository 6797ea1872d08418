"""Drawing the next minibatch while the gradient of the last one is computed."""

import time
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from hpcrl.replay.uniform import UniformReplay
from hpcrl.types import Batch


class Prefetch:
    """A replay whose batches are drawn by a thread of their own, one ahead.

    The thread makes the transport's calls itself, so data moves while the learner computes. A batch may be as much
    older as its gradient takes, and its priorities lag by one batch.

    Attributes
    ----------
    sampling_seconds, waited_seconds : float
        Time that drawing took in all, and how much of it the learner waited for.
    """

    def __init__(self, replay: UniformReplay):
        self._replay = replay
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._next: Future | None = None
        self.sampling_seconds = self.waited_seconds = 0.0

    @property
    def fill(self) -> float:
        """Filled share of the memory, 0 to 1."""
        return self._replay.fill

    @property
    def overwritten(self) -> int:
        """See `UniformReplay`."""
        return self._replay.overwritten

    @property
    def age(self) -> float:
        """See `UniformReplay`; of the batch that is drawn ahead."""
        return self._replay.age

    @property
    def mean_priority(self) -> float:
        """See `UniformReplay`."""
        return self._replay.mean_priority

    @property
    def hidden(self) -> float:
        """Share of the time that drawing took which the learner did not wait for; NaN before the first batch."""
        return max(0.0, 1 - self.waited_seconds / self.sampling_seconds) if self.sampling_seconds else float("nan")

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch | None:
        """The batch that was begun at the last call, always with the same arguments; see `UniformReplay.sample`."""
        begun = time.perf_counter()
        if self._next is None:
            self._next = self._thread.submit(self._draw, batch_size, rng)
        batch, seconds = self._next.result()
        self._next = None
        if batch is not None:
            self._next = self._thread.submit(self._draw, batch_size, rng)
            self.sampling_seconds += seconds
            self.waited_seconds += time.perf_counter() - begun
        return batch

    def _draw(self, batch_size: int, rng: np.random.Generator) -> tuple[Batch | None, float]:
        begun = time.perf_counter()
        batch = self._replay.sample(batch_size, rng)
        return batch, time.perf_counter() - begun

    def update(self, batch: Batch, delta: np.ndarray) -> None:
        """See `UniformReplay.update`."""
        self._replay.update(batch, delta)

    def free(self) -> None:
        """End the thread, and what it is at."""
        self._thread.shutdown()
