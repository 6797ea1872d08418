"""Memory that the ranks of one node share."""

import threading

import numpy as np
from mpi4py import MPI

from hpcrl.errors import TransportError
from hpcrl.transport.protocol import WORD, Add, FetchMany, round_up
from hpcrl.transport.window import Window


class NodeMemory:
    """One array in memory that all ranks of ``node_comm`` load and store directly, and a row of atomic words.

    Collective over ``node_comm``, which must be a communicator of one node (``Split_type(COMM_TYPE_SHARED)``).
    The memory belongs to the lowest rank; pages are touched only when used. The threads of a rank take turns at the
    words: one that saves the memory looks at its cursors while another goes on writing.

    Parameters
    ----------
    node_comm : MPI.Intracomm
        Ranks of one node.
    shape, dtype
        Of :attr:`array`.
    words : int
        Atomic int64 words beside it, all zero at the start.
    """

    def __init__(self, node_comm: MPI.Intracomm, *, shape: tuple[int, ...], dtype: np.dtype, words: int):
        nbytes = int(np.prod(shape)) * dtype.itemsize if node_comm.rank == 0 else 0
        self.comm = node_comm
        self.win = MPI.Win.Allocate_shared(nbytes, 1, comm=node_comm)
        if self.win.Get_attr(MPI.WIN_MODEL) != MPI.WIN_UNIFIED:
            raise TransportError("this MPI has no unified memory model for shared windows, which hpcrl needs")
        self.win.Lock_all(MPI.MODE_NOCHECK)  # MPI_Win_sync is allowed only inside an epoch
        memory, _ = self.win.Shared_query(0)
        self.array = np.frombuffer(memory, np.uint8)[: int(np.prod(shape)) * dtype.itemsize].view(dtype).reshape(shape)
        self._turn = threading.Lock()
        # The words are a window of their own: they are atomics between ranks, never loads and stores.
        self.words = Window(node_comm, round_up(words * WORD) if node_comm.rank == 0 else 0, name="node words")

    def get(self, words: range) -> np.ndarray:
        """int64 ``[len(words)]`` values, read one by one, after all earlier loads and before all later ones."""
        values = np.empty(len(words), np.int64)
        with self._turn:
            self.win.Sync()
            self.words.start(FetchMany(words.start * WORD, values), 0)
            self.words.flush(0)
            self.win.Sync()
        return values

    def add(self, word: int, value: int) -> int:
        """Add to a word and return its value after the addition."""
        with self._turn:
            return self.words.word(Add(word * WORD, value), 0) + value

    def add_to_each(self, words: np.ndarray, value: int) -> np.ndarray:
        """Add to each of the distinct ``words``, int64 ``[n]``; return their values before it."""
        begun = [self.words.start(Add(int(word) * WORD, value), 0) for word in words]
        self.words.flush(0)
        return np.array([before for _, before in begun], np.int64)

    def show(self) -> None:
        """Let others see what this rank stored, and this rank what others did."""
        self.win.Sync()

    def free(self) -> None:
        """Free both windows; collective over the node. ``array`` must not be used afterwards."""
        if self.win != MPI.WIN_NULL:
            self.array = np.zeros(0, np.uint8)
            self.words.free()
            self.win.Unlock_all()
            self.win.Free()


class SharedCursors:
    """Reserved and committed indices of lanes in a :class:`NodeMemory`: its first ``2 x num_lanes`` words.

    Writers and readers take the steps of :mod:`hpcrl.transport.lane_protocol`, with loads and stores for the records.
    """

    def __init__(self, memory: NodeMemory, num_lanes: int):
        self.memory, self.num_lanes = memory, num_lanes

    def reserved(self) -> np.ndarray:
        """int64 ``[L]`` records begun."""
        return self.memory.get(range(self.num_lanes))

    def committed(self) -> np.ndarray:
        """int64 ``[L]`` records complete."""
        return self.memory.get(range(self.num_lanes, 2 * self.num_lanes))

    def look(self) -> tuple[np.ndarray, np.ndarray]:
        """``reserved`` and ``committed``, read at once."""
        values = self.memory.get(range(2 * self.num_lanes))
        return values[: self.num_lanes], values[self.num_lanes :]

    def recent(self) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`look`."""
        return self.look()

    def reserve(self, lanes: np.ndarray, counts: int) -> np.ndarray:
        """Begin ``counts`` records in each of ``lanes``; no later store of this rank is visible before.

        Returns
        -------
        int64 ``[len(lanes)]``
            Indices of the first ones; a lane's writer alone moves its cursors.
        """
        first = self.memory.add_to_each(lanes, counts)
        self.memory.win.Sync()
        return first

    def commit(self, lanes: np.ndarray, counts: int) -> None:
        """Publish them; all earlier stores of this rank are visible before."""
        self.memory.win.Sync()
        self.memory.add_to_each(self.num_lanes + lanes, counts)


class SharedTally:
    """Two counts in a :class:`NodeMemory`, for ranks that write and use it together; words ``first`` and after."""

    def __init__(self, memory: NodeMemory, first: int):
        self.memory, self.first = memory, first

    def steps(self, add: int = 0) -> int:
        """Steps written to the memory, after adding."""
        return self.memory.add(self.first, add)

    def trained(self, add: int = 0) -> int:
        """Transitions used from the memory, after adding."""
        return self.memory.add(self.first + 1, add)
