"""One MPI window: atomic words, chunked contiguous transfers, a bound on requests in flight."""

import threading
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hpcrl.errors import TransportError
from hpcrl.transport.protocol import WORD, Add, Fetch, FetchMany, Get, GetMany, Operation, Program, Put, Replace
from hpcrl.transport.waiting import wait_for_all

MAX_TRANSFER_BYTES = 2**30
"""Transfers are cut below this: counts above 2^31 - 1 are refused where the library is MPI 3.1."""

_MPI_OP = {Fetch: MPI.NO_OP, Replace: MPI.REPLACE, Add: MPI.SUM}


class Window:
    """Bytes of this rank that all ranks of ``comm`` can read and write without its help.

    Collective over ``comm``. Every rank may give a different ``nbytes``. One ``Lock_all`` epoch lasts from creation
    to :meth:`free`. Memory starts zeroed.

    Parameters
    ----------
    comm : MPI.Intracomm
        Ranks that share the window.
    nbytes : int
        Bytes that this rank exposes.
    name : str
        For error messages.
    flavour : {"allocate", "create"}
        ``MPI_Win_allocate`` is shared memory inside a node; ``create`` avoids bugs of some stacks.
    max_requests : int
        Operations in flight to one rank before a flush (some stacks abort at 255).
    max_transfer_bytes : int
        Longest single transfer.
    cleared_bytes : int, optional
        So many bytes are zero at the start, all of them if not given; pages of the others are touched only when used.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        nbytes: int,
        *,
        name: str,
        flavour: str = "allocate",
        max_requests: int = 64,
        max_transfer_bytes: int = MAX_TRANSFER_BYTES,
        cleared_bytes: int | None = None,
    ):
        self.comm, self.name, self.rank = comm, name, comm.rank
        self.max_requests, self.max_transfer_bytes = max_requests, max_transfer_bytes
        if flavour == "create":
            self._memory = np.zeros(max(nbytes, 1), np.uint8)
            self.win = MPI.Win.Create(self._memory, 1, comm=comm)
            self.local = self._memory
        else:
            self.win = MPI.Win.Allocate(nbytes, 1, comm=comm)
            self.local = np.frombuffer(self.win.tomemory(), np.uint8) if nbytes else np.zeros(0, np.uint8)
        if self.win.Get_attr(MPI.WIN_MODEL) != MPI.WIN_UNIFIED:
            raise TransportError(
                f"window {name}: this MPI has no unified memory model for windows, which hpcrl's protocols need; "
                f'try server.window_flavour = "{"create" if flavour == "allocate" else "allocate"}" or another MPI'
            )
        self.win.Lock_all(MPI.MODE_NOCHECK)
        self.local[:cleared_bytes] = 0
        self._words = self.local[: self.local.nbytes // WORD * WORD].view(np.int64)
        self._alone = threading.Lock() if comm.size == 1 else None
        self.win.Sync()
        wait_for_all(comm)
        self._in_flight: dict[int, int] = {}
        self._mapped: dict[int, int] = {}
        """where the bytes of other ranks begin in this process's memory, if it was asked for"""

    def mapped(self, rank: int) -> np.ndarray | None:
        """uint8 view of the bytes that a rank exposes, where this process can load and store them directly.

        Of other ranks that takes one of the same node, and an MPI that gives its memory away for windows of this kind
        (MPI 4.1, section 12.2.3); None elsewhere. What is put from there to itself is not copied any more.
        """
        view = self.local
        if rank != self.rank:
            try:
                memory, _ = self.win.Shared_query(rank)
            except MPI.Exception:
                return None
            if not memory:
                return None
            view = np.frombuffer(memory, np.uint8)
        self._mapped[rank] = view.ctypes.data
        return view

    def word(self, operation: Fetch | Replace | Add, rank: int) -> int:
        """Run one atomic operation and return the old value of the word."""
        result = self.start(operation, rank)
        self.flush(rank)
        return int(result[1])

    def start(self, operation: Operation, rank: int) -> np.ndarray | None:
        """Begin an operation; complete, and its buffers free, after :meth:`flush` of ``rank``.

        Own memory is read and written directly: no other rank writes these bytes at the time, by protocol.

        Returns
        -------
        int64 [2]
            Of an operation on one word; after the flush its second element is the word's old value. None for others.
        """
        kind = type(operation)
        if kind in _MPI_OP:
            if self._alone:
                return self._alter(operation)
            self._count_request(rank)
            operand_result = np.empty(2, np.int64)  # one allocation for both; must live until the flush
            operand_result[0] = 0 if kind is Fetch else operation.value
            self.win.Fetch_and_op(operand_result[:1], operand_result[1:], rank, operation.offset, _MPI_OP[kind])
            return operand_result
        if kind is GetMany:
            self._start_rows(operation, rank)
            return None
        buffer, offset = operation.buffer, operation.offset
        if not buffer.flags.c_contiguous:
            raise ValueError(f"window {self.name}: a buffer must be contiguous, got strides {buffer.strides}")
        if kind is FetchMany:
            self._start_words(buffer, offset, rank)
        elif rank in self._mapped and buffer.ctypes.data == self._mapped[rank] + offset:
            self.win.Sync()  # it is in its place: what was stored there is seen before what is written next
        elif rank == self.rank:
            self._copy(kind, _bytes(buffer), offset)
        elif buffer.nbytes > self.max_transfer_bytes:
            self._start_transfers(kind, _bytes(buffer), offset, rank)
        else:
            self._start_transfer(kind, buffer, offset, rank)
        return None

    def _alter(self, operation: Fetch | Replace | Add) -> np.ndarray:
        """An operation on a word of the only rank there is.

        MPICH gives its core away in every flush where threads may call it, and on a machine that is busy gets it back
        only a time slice later: a serial run beside two others took ten times as long.
        """
        kind, at = type(operation), operation.offset // WORD
        result = np.empty(2, np.int64)
        with self._alone:
            result[1] = self._words[at]
            if kind is Replace:
                self._words[at] = operation.value
            elif kind is Add:
                self._words[at] += operation.value
        return result

    def _start_words(self, data: np.ndarray, offset: int, rank: int) -> None:
        words = data.nbytes // WORD
        if self._alone:
            data.reshape(-1).view(np.int64)[:] = self._words[offset // WORD : offset // WORD + words]
            return
        self._count_request(rank)
        target = [offset, words, MPI.INT64_T]
        self.win.Get_accumulate([None, 0, MPI.INT64_T], [data, words, MPI.INT64_T], rank, target, MPI.NO_OP)

    def _start_rows(self, operation: GetMany, rank: int) -> None:
        """Many Gets of one length, with as little as possible around each."""
        nbytes = operation.rows[0].nbytes
        if rank == self.rank or nbytes > self.max_transfer_bytes:
            for offset, row in zip(*operation, strict=True):
                self.start(Get(offset, row), rank)
            return
        get, byte, in_flight = self.win.Get, MPI.BYTE, self._in_flight.get(rank, 0)
        for offset, row in zip(*operation, strict=True):
            if in_flight >= self.max_requests:
                self.win.Flush(rank)
                in_flight = 0
            get([row, nbytes, byte], rank, [offset, nbytes, byte])
            in_flight += 1
        self._in_flight[rank] = in_flight

    def _start_transfers(self, kind: type, data: np.ndarray, offset: int, rank: int) -> None:
        for begin in range(0, data.nbytes, self.max_transfer_bytes):
            self._start_transfer(kind, data[begin : begin + self.max_transfer_bytes], offset + begin, rank)

    def _start_transfer(self, kind: type, buffer: np.ndarray, offset: int, rank: int) -> None:
        self._count_request(rank)
        transfer, nbytes = self.win.Put if kind is Put else self.win.Get, buffer.nbytes
        transfer([buffer, nbytes, MPI.BYTE], rank, [offset, nbytes, MPI.BYTE])

    def _copy(self, kind: type, data: np.ndarray, offset: int) -> None:
        mine = self.local[offset : offset + data.nbytes]
        self.win.Sync()
        if kind is Put:
            mine[:] = data
        else:
            data[:] = mine
        self.win.Sync()

    def _count_request(self, rank: int) -> None:
        in_flight = self._in_flight.get(rank, 0)
        if in_flight >= self.max_requests:
            self.flush(rank)
            in_flight = 0
        self._in_flight[rank] = in_flight + 1

    def flush(self, rank: int) -> None:
        """Wait until everything begun towards ``rank`` is complete there."""
        if self._in_flight.pop(rank, 0):
            self.win.Flush(rank)

    def free(self) -> None:
        """Close the epoch and free the window; collective. Views of its memory must not be used afterwards."""
        if self.win != MPI.WIN_NULL:
            self.win.Unlock_all()
            self.local, self._words = np.zeros(0, np.uint8), np.zeros(0, np.int64)
            self.win.Free()


def _bytes(buffer: np.ndarray) -> np.ndarray:
    """uint8 view of a contiguous array."""
    return buffer.reshape(-1).view(np.uint8)


def drive(window: Window, programs: Sequence[tuple[int, Program]]) -> list[object]:
    """Run protocol programs, each against one rank, side by side, and return their results.

    The steps of all programs are begun together and completed together, so that talking to many ranks costs as many
    round trips as talking to one.
    """
    if len(programs) == 1:
        return [_drive_one(window, *programs[0])]
    results: list[object] = [None] * len(programs)
    running: list[tuple[int, object]] = [(i, None) for i in range(len(programs))]
    while running:
        begun, ranks = [], set()
        for i, reply in running:
            rank, program = programs[i]
            try:
                step = program.send(reply)
            except StopIteration as stop:
                results[i] = stop.value
                continue
            begun.append((i, _start(window, step, rank)))
            ranks.add(rank)
        for rank in ranks:
            window.flush(rank)
        running = [(i, _reply(b)) for i, b in begun]
    return results


def _drive_one(window: Window, rank: int, program: Program) -> object:
    """Run one program, with as little as possible around each of its steps."""
    reply = None
    while True:
        try:
            step = program.send(reply)
        except StopIteration as stop:
            return stop.value
        begun = _start(window, step, rank)
        window.flush(rank)
        reply = _reply(begun)


def _start(window: Window, step: Operation | tuple[Operation, ...], rank: int) -> list | np.ndarray | None:
    many = type(step) is tuple  # an operation is a named one
    return [window.start(operation, rank) for operation in step] if many else window.start(step, rank)


def _reply(begun: list | np.ndarray | None) -> object:
    """What a program is resumed with, after the flush."""
    return tuple(map(_value, begun)) if type(begun) is list else _value(begun)


def _value(begun: np.ndarray | None) -> int | None:
    return None if begun is None else int(begun[1])
