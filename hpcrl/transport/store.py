"""Vectors that several ranks read, change and overwrite in turn, chunk by chunk, each under a lock of its own.

A lock is a word that is swapped (:mod:`hpcrl.transport.lock_protocol`), or MPI's own: ``MPI_Win_lock`` for exclusive
access to a window that is the chunk's alone, outside any ``Lock_all``. An attempt at the first ends at once, with the
lock or without, so that a rank goes on to another chunk meanwhile, and a holder that stops can be named; the second
waits inside MPI.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

import numpy as np
from mpi4py import MPI

from hpcrl.transport.lock_protocol import NOBODY, LockLayout, release, try_acquire
from hpcrl.transport.protocol import CACHE_LINE, Fetch, Get, Put, round_up
from hpcrl.transport.window import Window, drive

Locking = Literal["word", "mpi"]


class Chunk(NamedTuple):
    """A part ``begin:end`` of the vectors, on one rank."""

    owner: int
    begin: int
    end: int


class Block(NamedTuple):
    """A chunk as its holder has it."""

    count: np.ndarray
    """int64 ``[1]``: how often it was overwritten; the holder adds to it"""
    vectors: np.ndarray
    """float32 ``[vectors, end - begin]``"""
    data: np.ndarray
    """uint8: both, as they lie in the window"""


class Access(Protocol):
    """A way of locking chunks, and their memory."""

    def try_acquire(self, chunk: int, data: np.ndarray) -> bool:
        """Get the lock and read; False where another rank has it."""

    def release(self, chunk: int, data: np.ndarray | None) -> None:
        """Overwrite, unless there is nothing to write, and give the lock back."""

    def holder(self, chunk: int) -> int | None:
        """Rank that has the lock, if that can be known."""

    def free(self) -> None:
        """Free what it holds; collective."""


class ChunkStore:
    """float32 vectors of one length, cut into chunks on their owners. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks that take part.
    owners : sequence of int
        Rank of each shard.
    bounds : sequence of int
        ``bounds[k]:bounds[k + 1]`` is shard k.
    chunks : int
        Chunks of each shard.
    vectors : int
        How many there are.
    locking : {"word", "mpi"}
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        owners: Sequence[int],
        bounds: Sequence[int],
        chunks: int,
        vectors: int,
        locking: Locking = "word",
        flavour: str = "allocate",
        max_requests: int = 64,
    ):
        self.rank, self.vectors = comm.rank, vectors
        self.chunks: list[Chunk] = []
        for owner, begin, end in zip(owners, bounds[:-1], bounds[1:], strict=True):
            edges = [begin + (end - begin) * i // chunks for i in range(chunks + 1)]
            self.chunks += [Chunk(owner, a, b) for a, b in zip(edges[:-1], edges[1:], strict=True) if b > a]
        sizes = [round_up(self._nbytes(chunk)) for chunk in self.chunks]
        if locking == "word":
            self.access: Access = WordAccess(comm, self.chunks, sizes, flavour=flavour, max_requests=max_requests)
        else:
            self.access = WindowAccess(comm, self.chunks, sizes)
        longest = max(self._nbytes(chunk) for chunk in self.chunks)
        self._buffer = np.zeros(longest, np.uint8)

    def _nbytes(self, chunk: Chunk) -> int:
        return CACHE_LINE + 4 * self.vectors * (chunk.end - chunk.begin)

    def own(self) -> list[int]:
        """Chunks that lie on this rank."""
        return [i for i, chunk in enumerate(self.chunks) if chunk.owner == self.rank]

    def try_acquire(self, chunk: int) -> Block | None:
        """Lock and read a chunk; None where another rank has it. One chunk at a time is held."""
        length = self.chunks[chunk].end - self.chunks[chunk].begin
        data = self._buffer[: self._nbytes(self.chunks[chunk])]
        if not self.access.try_acquire(chunk, data):
            return None
        vectors = data[CACHE_LINE:].view(np.float32).reshape(self.vectors, length)
        return Block(data[:8].view(np.int64), vectors, data)

    def release(self, chunk: int, block: Block | None) -> None:
        """Overwrite the chunk that is held, where ``block`` is given, and unlock it."""
        self.access.release(chunk, None if block is None else block.data)

    def holder(self, chunk: int) -> int | None:
        """Rank that has the lock of a chunk, if that can be known."""
        return self.access.holder(chunk)

    def free(self) -> None:
        """Free the windows; collective."""
        self.access.free()


class WordAccess:
    """All chunks of a rank in one window, each behind the words of its lock."""

    def __init__(self, comm: MPI.Intracomm, chunks: Sequence[Chunk], sizes: Sequence[int], **options):
        self.chunks, self.starts = chunks, []
        ends: dict[int, int] = {}
        for chunk, size in zip(chunks, sizes, strict=True):
            start = ends.get(chunk.owner, 0)
            self.starts.append(start)
            ends[chunk.owner] = start + CACHE_LINE + size
        self.window = Window(comm, ends.get(comm.rank, 0), name="store", **options)

    def try_acquire(self, chunk: int, data: np.ndarray) -> bool:
        """Get the lock and read; False where another rank has it."""
        owner, start = self.chunks[chunk].owner, self.starts[chunk]
        (held,) = drive(self.window, [(owner, try_acquire(LockLayout(start), self.window.rank))])
        if held:
            self.window.start(Get(start + CACHE_LINE, data), owner)
            self.window.flush(owner)
        return held

    def release(self, chunk: int, data: np.ndarray | None) -> None:
        """Overwrite, unless there is nothing to write, and give the lock back."""
        owner, start = self.chunks[chunk].owner, self.starts[chunk]
        if data is not None:
            self.window.start(Put(start + CACHE_LINE, data), owner)
            self.window.flush(owner)
        drive(self.window, [(owner, release(LockLayout(start)))])

    def holder(self, chunk: int) -> int | None:
        """Rank that has the lock."""
        word = self.window.word(Fetch(LockLayout(self.starts[chunk]).holder), self.chunks[chunk].owner)
        return None if word == NOBODY else word - 1

    def free(self) -> None:
        """Free the window; collective."""
        self.window.free()


class WindowAccess:
    """A window for each chunk, locked by MPI."""

    def __init__(self, comm: MPI.Intracomm, chunks: Sequence[Chunk], sizes: Sequence[int]):
        self.chunks = chunks
        self.windows = [
            MPI.Win.Allocate(size if chunk.owner == comm.rank else 0, 1, comm=comm)
            for chunk, size in zip(chunks, sizes, strict=True)
        ]
        for chunk, window in zip(chunks, self.windows, strict=True):
            if chunk.owner == comm.rank:
                window.Lock(comm.rank, MPI.LOCK_EXCLUSIVE)
                np.frombuffer(window.tomemory(), np.uint8)[:] = 0
                window.Unlock(comm.rank)
        comm.Barrier()

    def try_acquire(self, chunk: int, data: np.ndarray) -> bool:
        """Wait for the lock and read; True."""
        owner, window = self.chunks[chunk].owner, self.windows[chunk]
        window.Lock(owner, MPI.LOCK_EXCLUSIVE)
        window.Get([data, MPI.BYTE], owner, [0, data.nbytes, MPI.BYTE])
        window.Flush(owner)
        return True

    def release(self, chunk: int, data: np.ndarray | None) -> None:
        """Overwrite, unless there is nothing to write, and give the lock back."""
        owner, window = self.chunks[chunk].owner, self.windows[chunk]
        if data is not None:
            window.Put([data, MPI.BYTE], owner, [0, data.nbytes, MPI.BYTE])
        window.Unlock(owner)

    def holder(self, chunk: int) -> int | None:
        """MPI does not tell."""
        return None

    def free(self) -> None:
        """Free the windows; collective."""
        for window in self.windows:
            window.Free()
        self.windows = []
