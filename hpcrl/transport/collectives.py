"""Collective operations on host memory, for learners that have agreed to meet (:mod:`hpcrl.transport.agreement`)."""

import numpy as np
from mpi4py import MPI


class Collectives:
    """What the ranks of a communicator do together. Every call is collective over it.

    Parameters
    ----------
    comm : MPI.Intracomm
        Duplicated, so that nothing else gets between.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.comm = comm.Dup()

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.comm.size

    def sum(self, vector: np.ndarray) -> None:
        """Replace a contiguous float32 ``[n]`` by its sum over all ranks."""
        self.comm.Allreduce(MPI.IN_PLACE, vector)

    def broadcast(self, vector: np.ndarray) -> None:
        """Replace a contiguous array by that of rank 0."""
        self.comm.Bcast(vector)

    def gather(self, word: int) -> list[int]:
        """The int64 of every rank, by rank."""
        words = np.empty(self.size, np.int64)
        self.comm.Allgather(np.array([word], np.int64), words)
        return words.tolist()

    def free(self) -> None:
        """Free the communicator; collective."""
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()
