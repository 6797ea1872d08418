"""Forward passes of a network that acts."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hpcrl.networks.precision import autocast


class Forward:
    """Passes observations through a replica's network; nothing is differentiated.

    Parameters
    ----------
    replica
        Holds the network (`hpcrl.networks.Replica`).
    dtype : torch.dtype
        Arithmetic of the network.
    threads : int
        Of torch, at most, for a pass, where simulators need the others meanwhile; 0 for all that it has.
    """

    def __init__(self, replica, dtype: torch.dtype, threads: int = 0):
        self.replica, self.dtype, self.threads = replica, dtype, threads

    @contextmanager
    def few_threads(self) -> Iterator[None]:
        """No more threads of torch than that in between."""
        before = torch.get_num_threads()
        if not 0 < self.threads < before:
            yield
            return
        torch.set_num_threads(self.threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    @torch.inference_mode()
    def __call__(self, observation: np.ndarray) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """The network's outputs, ``[E, ...]`` on its device, for observations obs_dtype ``[E, stack, ...]``."""
        device = self.replica.device
        with self.few_threads(), autocast(device, self.dtype):
            return self.replica.network(torch.from_numpy(observation).to(device))
