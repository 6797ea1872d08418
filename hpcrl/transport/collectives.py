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
        self._add_bfloat16: MPI.Op | None = None

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.comm.size

    def sum(self, vector: np.ndarray) -> None:
        """Replace a contiguous float32 ``[n]`` by its sum over all ranks."""
        self.comm.Allreduce(MPI.IN_PLACE, vector)

    def sum_bfloat16(self, bits: np.ndarray) -> None:
        """Replace a contiguous uint16 ``[n]``, the bits of bfloat16 numbers, by those of their sum over all ranks.

        MPI does not know the type: half the bytes of float32 cross the wire, and each addition rounds.
        """
        if self._add_bfloat16 is None:
            self._add_bfloat16 = MPI.Op.Create(_add_bfloat16, commute=True)
        self.comm.Allreduce(MPI.IN_PLACE, [bits, MPI.UINT16_T], self._add_bfloat16)

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
        if self._add_bfloat16 is not None:
            self._add_bfloat16.Free()
            self._add_bfloat16 = None


def _add_bfloat16(more: memoryview, total: memoryview, _: MPI.Datatype) -> None:
    """Add bfloat16 numbers to others in place, rounding to the nearest even."""
    a, b = (np.frombuffer(part, np.uint16) for part in (more, total))
    bits = (_as_float32(a) + _as_float32(b)).view(np.uint32)
    b[:] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _as_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
