"""Vectors of the ranks of one node, added up in its memory before one of them carries the sum on."""

import contextlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
from mpi4py import MPI

from hpcrl.transport.lock_protocol import NOBODY, LockLayout, release, try_acquire
from hpcrl.transport.protocol import Fetch
from hpcrl.transport.shared import NodeMemory
from hpcrl.transport.waiting import wait_for_all
from hpcrl.transport.window import drive

_LOCK = LockLayout(0)
KEPT = 4
"""Sums whose answers are kept: one is on its way, one grows, and slow ranks may still ask for those before."""


class NodeSum:
    """A sum that grows while the one before it is on its way. Collective over ``node_comm``.

    Nobody waits for others to add: whoever adds first, while nothing is on its way, carries the sum on, be it only its
    own vector; what the others add meanwhile goes together next. So the slower the way, the more goes at once. All
    calls end at once; what cannot be done because another rank has the lock returns None or False, to be tried again.

    Parameters
    ----------
    node_comm : MPI.Intracomm
        Ranks of one node; freed with this.
    size : int
        Length of the vectors.
    shards : int
        Parts of them that have a version each, and an answer.
    patience_seconds : float
        After which a carrier is taken to have stopped, and another may carry the next sum.
    """

    def __init__(self, node_comm: MPI.Intracomm, *, size: int, shards: int, patience_seconds: float):
        self.comm, self.patience = node_comm, patience_seconds
        fields = [
            ("count", "i8"),  # of vectors in the sum that grows
            ("number", "i8"),  # of that sum
            ("carrier", "i8"),  # its rank plus 1, of the sum on its way; 0 where there is none
            ("since", "f8"),
            ("versions", "i8", (shards,)),  # the oldest of those added
            ("answered", "i8", (KEPT,)),  # numbers of the sums that are answered, plus 1
            ("answers", "i8", (KEPT, shards)),
            ("total", "f4", (size,)),
        ]
        self.memory = NodeMemory(node_comm, shape=(1,), dtype=np.dtype(fields, align=True), words=2)
        if node_comm.rank == 0:
            for name in ("count", "number", "carrier", "answered"):
                self.memory.array[name] = 0
        self.memory.show()
        wait_for_all(node_comm)

    @contextlib.contextmanager
    def _held(self) -> Iterator[np.void | None]:
        """The memory under the lock; None where another rank has it."""
        words = self.memory.words
        (held,) = drive(words, [(0, try_acquire(_LOCK, self.comm.rank))])
        if not held:
            yield None
            return
        self.memory.show()
        yield self.memory.array[0]
        self.memory.show()
        drive(words, [(0, release(_LOCK))])

    def holder(self) -> int | None:
        """Rank of the node's communicator that has the lock."""
        word = self.memory.words.word(Fetch(_LOCK.holder), 0)
        return None if word == NOBODY else word - 1

    def add(self, vector: np.ndarray, versions: np.ndarray) -> int | None:
        """Add float32 ``[size]``, computed at ``versions``, int64 ``[shards]``; the number of the sum it is now in."""
        with self._held() as memory:
            if memory is None:
                return None
            if memory["count"]:
                np.add(memory["total"], vector, out=memory["total"])
                np.minimum(memory["versions"], versions, out=memory["versions"])
            else:
                memory["total"][:], memory["versions"][:] = vector, versions
            memory["count"] += 1
            return int(memory["number"])

    def take(self, number: int, out: np.ndarray, versions: np.ndarray) -> bool:
        """Copy sum ``number`` into ``out`` to carry it on, if it still grows and none is on its way; whether it was."""
        with self._held() as memory:
            if memory is None or memory["number"] != number:
                return False
            if memory["carrier"] and time.monotonic() - memory["since"] < self.patience:
                return False
            out[:], versions[:] = memory["total"], memory["versions"]
            memory["count"], memory["number"] = 0, number + 1
            memory["carrier"], memory["since"] = self.comm.rank + 1, time.monotonic()
            return True

    def answer(self, number: int, answers: Sequence[int]) -> bool:
        """Tell all who added to it what became of a sum that this rank has carried; whether that could be done."""
        with self._held() as memory:
            if memory is None:
                return False
            memory["answers"][number % KEPT], memory["answered"][number % KEPT] = answers, number + 1
            if memory["carrier"] == self.comm.rank + 1:
                memory["carrier"] = 0
            return True

    def answers(self, number: int) -> list[int] | None:
        """The answers of each shard to a sum; none where so many came since that they are lost."""
        with self._held() as memory:
            if memory is None or memory["answered"][number % KEPT] <= number:
                return None
            known = memory["answered"][number % KEPT] == number + 1
            return memory["answers"][number % KEPT].tolist() if known else []

    def free(self) -> None:
        """Free the memory and the communicator; collective over the node."""
        self.memory.free()
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()
