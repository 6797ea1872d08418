"""Collective operations on host memory, for learners that have agreed to meet (:mod:`hpcrl.transport.agreement`)."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from mpi4py import MPI

from hpcrl.errors import StalledError
from hpcrl.transport.shared import NodeMemory
from hpcrl.transport.waiting import Backoff

MEETING_SECONDS = 1e-4
"""Longest sleep of a rank that waits for others of its node in the middle of a sum."""


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


class SumsUnderWay:
    """Sums over all ranks of ``comm`` that go on while a rank computes; a thread makes MPI's progress meanwhile.

    Ranks begin the same sums in the same order, but need not do so at the same time: nothing here waits for them but
    :meth:`wait`.

    Parameters
    ----------
    comm : MPI.Intracomm
        Duplicated; making this is collective over it.
    """

    def __init__(self, comm: MPI.Intracomm):
        self.comm = comm.Dup()
        self._requests: list[MPI.Request] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sums")
        self._driven: Future | None = None

    def begin(self, own: np.ndarray, total: np.ndarray) -> None:
        """Begin to sum ``own`` of all ranks into ``total``, float32 ``[n]``; until then both are left alone."""
        self._requests.append(self.comm.Iallreduce(own, total))
        if self._driven is None or self._driven.done():
            self._driven = self._thread.submit(self._drive)

    def _drive(self) -> None:
        backoff = Backoff(self.comm, MEETING_SECONDS)
        while not MPI.Request.Testall(self._requests.copy()):
            backoff.wait()

    def done(self) -> bool:
        """Whether all that was begun is done."""
        if self._driven is not None:
            # Two threads must not test the same request; what it did not see yet is looked at here.
            if not self._driven.done():
                return False
            self._driven.result()
        if not MPI.Request.Testall(self._requests):
            return False
        self._requests.clear()
        return True

    def wait(self) -> None:
        """Wait until it is."""
        backoff = Backoff(self.comm, MEETING_SECONDS)
        while not self.done():
            backoff.wait()

    def free(self) -> None:
        """Free the communicator; collective. Nothing is under way."""
        self._thread.shutdown()
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()


class NodeCollectives(Collectives):
    """Sums in memory that the ranks of a node share, of which only the first ranks of the nodes tell each other by MPI.

    Each rank lays its vector there and adds up a part of all of them, so that a sum inside a node takes three passes
    over memory, and one vector per node crosses the network.

    Parameters
    ----------
    comm : MPI.Intracomm
    node : int
        Of this rank.
    size : int
        Length of the vectors.
    patience_seconds : float
        How long a rank waits for another one of its node in the middle of a sum.
    labels : sequence of str
        What each rank of ``comm`` is called.
    """

    def __init__(self, comm: MPI.Intracomm, *, node: int, size: int, patience_seconds: float, labels: Sequence[str]):
        super().__init__(comm)
        self.patience = patience_seconds
        self._node_comm = comm.Split(node, comm.rank)
        leaders_comm = comm.Split(0 if self._node_comm.rank == 0 else MPI.UNDEFINED, comm.rank)
        self._leaders = Collectives(leaders_comm) if leaders_comm != MPI.COMM_NULL else None
        if self._leaders:
            leaders_comm.Free()
        ranks, rank = self._node_comm.size, self._node_comm.rank
        self._labels = [labels[other] for other in self._node_comm.allgather(comm.rank)]
        # A word for each rank: how often it has come to meet the others.
        self._memory = NodeMemory(self._node_comm, shape=(ranks + 1, size), dtype=np.dtype(np.float32), words=ranks)
        self._several = ranks < comm.size
        self._part = slice(size * rank // ranks, size * (rank + 1) // ranks)

    def sum(self, vector: np.ndarray) -> None:
        """Replace a contiguous float32 ``[size]`` by its sum over all ranks."""
        *rows, total = self._memory.array
        rows[self._node_comm.rank][:] = vector
        self._meet()
        np.add.reduce(self._memory.array[:-1, self._part], axis=0, out=total[self._part])
        self._meet()
        if self._several:
            if self._leaders:
                self._leaders.sum(total)
            self._meet()
        # The next total is not begun before all are here again, and so have copied this one.
        vector[:] = total

    def _meet(self) -> None:
        """What each rank of the node stored before, all of them see afterwards."""
        self._memory.show()
        meetings = self._memory.add(self._node_comm.rank, 1)
        backoff = Backoff(self._node_comm, MEETING_SECONDS)
        waited, last = 0.0, time.monotonic()
        # Not MPI's barrier: who has come need do nothing further for the others to go on, so who is late has stopped.
        while (late := self._memory.get(range(self._node_comm.size)) < meetings).any():
            backoff.wait()
            now = time.monotonic()
            waited += min(now - last, 1.0)  # a job that was suspended as a whole has not waited
            last = now
            if waited > self.patience:
                self._give_up(late)
        self._memory.show()

    def _give_up(self, late: np.ndarray) -> None:
        names = ", ".join(label for label, is_late in zip(self._labels, late, strict=True) if is_late)
        raise StalledError(
            f"{names} has stopped in the middle of a sum of gradients {self.patience:.0f} s ago (run.stall_seconds); "
            f"synchronous learners cannot go on without it"
        )

    def free(self) -> None:
        """Free the memory and the communicators; collective."""
        if self._node_comm != MPI.COMM_NULL:
            self._memory.free()
            self._node_comm.Free()
            if self._leaders:
                self._leaders.free()
        super().free()


def _add_bfloat16(more: memoryview, total: memoryview, _: MPI.Datatype) -> None:
    """Add bfloat16 numbers to others in place, rounding to the nearest even."""
    a, b = (np.frombuffer(part, np.uint16) for part in (more, total))
    bits = (_as_float32(a) + _as_float32(b)).view(np.uint32)
    b[:] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _as_float32(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)
