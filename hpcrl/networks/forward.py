"""Forward passes of a network that acts."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch

from hpcrl.networks.precision import autocast

PART_ROWS = 8
"""Fewer rows are not worth a thread of their own."""


@contextmanager
def _torch_threads(number: int) -> Iterator[None]:
    """So many threads of torch in between; 0 for its own number."""
    before = torch.get_num_threads()
    if number in (0, before):
        yield
        return
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Forward:
    """Passes observations through a replica's network; nothing is differentiated.

    Torch's threads go on looking for work for some milliseconds after each pass, on cores that simulators in threads of
    the same process need by then. Threads that are given a part of the batch each, and compute it alone, sleep at once.

    Parameters
    ----------
    replica
        Holds the network (`hpcrl.networks.Replica`), which may be called by several threads at once.
    dtype : torch.dtype
        Arithmetic of the network.
    threads : int
        Parts of a batch, at most, on a CPU; 0: the batch is one, and torch shares it among threads of its own.
    """

    def __init__(self, replica, dtype: torch.dtype, threads: int = 0):
        self.replica, self.dtype = replica, dtype
        self.threads = threads if replica.device == "cpu" else min(threads, 1)
        self._others = ThreadPoolExecutor(self.threads - 1, "forward", _compute_alone) if self.threads > 1 else None

    def alone(self) -> AbstractContextManager[None]:
        """Context in which torch has one thread, where passes have theirs."""
        return _torch_threads(min(self.threads, 1))

    def __call__(self, observation: np.ndarray) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The network's outputs, ``[E, ...]`` on its device, for observations obs_dtype ``[E, stack, ...]``."""
        rows = torch.from_numpy(observation)
        parts = min(self.threads, len(rows) // PART_ROWS)
        with self.alone():
            if parts < 2:
                return self._part(rows)
            mine, *others = rows.chunk(parts)
            pending = [self._others.submit(self._part, part) for part in others]
            outputs = [self._part(mine), *(part.result() for part in pending)]
        if isinstance(outputs[0], torch.Tensor):
            return torch.cat(outputs)
        return tuple(torch.cat(of_parts) for of_parts in zip(*outputs, strict=True))

    @torch.inference_mode()
    def _part(self, rows: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        with autocast(self.replica.device, self.dtype):
            return self.replica.network(rows.to(self.replica.device))


def _compute_alone() -> None:
    torch.set_num_threads(1)
