"""Replay memories in checkpoints: one file for each, written from a moment's cut while its actors go on writing.

No second copy of the memory is made. What the cut holds of every lane is its two cursors and its oldest records, which
are overwritten first; all others are copied chunk by chunk, the oldest chunks of all lanes first, and compressed. A
record that was overwritten before its turn came is left out: the lane then begins later.
"""

import itertools
import os
import sys
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import h5py
import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage import codec, schema
from hpcrl.storage.fault import fault_point
from hpcrl.storage.hdf5 import (
    NewFile,
    fsync,
    plain_dataset,
    plain_group,
    release_space,
    reserve_space,
    storage_error,
)
from hpcrl.storage.packs import StateFile, open_state

CHUNK_RECORDS = 64
"""Least records of a chunk; it has more of them where frames are small."""
CHUNK_BYTES = 2**20
HELD_RECORDS = 64
"""Oldest records of each lane that a cut copies at once."""
HELD_BYTES = 2**25
"""Most that it copies of all lanes together."""
RESERVED_BYTES = 2**22
"""Disk space that is reserved at a time."""
PACKERS = 2
"""Threads that copy and compress."""
PACKER_NICENESS = 15
"""Priority of those threads, which share the interpreter's lock, and often a core, with the thread that trains.

As its equals they made its pulls five times as long; like this hardly longer. A busy core leaves them some percent.
"""
PACKED_AHEAD = 2
"""Chunks that they may be ahead of the one that is written, beside those they are working at."""
_CHUNK_INDEX_BYTES = 1024
"""More than a chunk takes in HDF5's index."""
_SPARE_BYTES = 2**18
"""More than HDF5's own structures need for one chunk."""


class Cursors(Protocol):
    """How far each lane has been written (see :mod:`hpcrl.replay.lanes`)."""

    def reserved(self) -> np.ndarray:
        """int64 ``[L]`` records begun."""

    def committed(self) -> np.ndarray:
        """int64 ``[L]`` records complete."""


class Shape(NamedTuple):
    """What a saved memory and one that is restored from it must have in common to be the same, slot by slot."""

    num_lanes: int
    capacity: int
    """as configured: transitions that a lane is to hold; its slots may be a few more"""
    stack: int
    n_step: int


class Priorities(NamedTuple):
    """Priorities of a memory as `ReplayCut` takes and `ReplayFile` gives them."""

    values: np.ndarray
    """float64 ``[L, slots]``, by slot"""
    low: np.ndarray
    """int64 ``[L]``: records below have none any more"""
    highest: float
    """so far; what a record without a TD error gets"""


class ReplayCut:
    """A replay memory as it is now, to be written to a file while it goes on changing.

    Making it is quick, and holds up the caller; :meth:`write` takes long, and may run in a thread.

    Parameters
    ----------
    memory
        Records ``[L, slots + stack + n_step]`` with a field ``frame``; record ``i`` of a lane lies in slot
        ``i % slots``.
    cursors
        Of the same lanes; others may move them meanwhile.
    capacity, stack, n_step
        As in `Shape`.
    priorities
        None where there are none.
    """

    def __init__(
        self,
        memory: np.ndarray,
        cursors: Cursors,
        *,
        capacity: int,
        stack: int,
        n_step: int,
        priorities: Priorities | None = None,
    ):
        self.shape = Shape(len(memory), capacity, stack, n_step)
        self._memory, self._cursors = memory, cursors
        self._slots = slots = memory.shape[1] - stack - n_step
        self.end = cursors.committed().copy()
        self.origin = np.maximum(cursors.reserved() - slots, 0)
        self.begin = self.origin.copy()
        self._priorities = None
        if priorities is not None:
            self._priorities = Priorities(priorities.values.copy(), priorities.low.copy(), priorities.highest)
        held = min(HELD_RECORDS, HELD_BYTES // (len(memory) * memory.itemsize), slots)
        oldest = (self.origin[:, None] + np.arange(held)) % slots
        self._held = memory[np.arange(len(memory))[:, None], oldest]
        for lane in range(len(memory)):
            self._drop_overwritten(lane, 0)

    def write(self, path: Path) -> None:
        """Write the file and fsync it.

        Raises
        ------
        StorageError
            The disk is full or faulty. The file is removed.
        """
        path, created = Path(path), False
        try:
            with NewFile(path) as file:
                created = True
                fault_point("replay_opened")
                file.attrs.update(schema.header("replay") | self.shape._asdict() | {schema.SLOTS: self._slots})
                outcomes = self._write_frames(file)
                self._write_fields(file, outcomes)
            release_space(path)
            fsync(path)
            fault_point("replay_written")
        except (OSError, RuntimeError) as error:
            if created:
                path.unlink(missing_ok=True)
            raise storage_error("write", path, error) from error

    def _write_frames(self, file: h5py.File) -> np.ndarray:
        """Write the frames of all lanes; return the other fields of their records, ``[L, columns]``."""
        compression, frame = codec.best(), self._memory.dtype["frame"]
        lengths = self.end - self.origin
        columns = max(int(lengths.max()), 1)  # HDF5 makes no chunks of nothing
        step = min(max(CHUNK_RECORDS, CHUNK_BYTES // frame.itemsize), columns)
        names = [name for name in self._memory.dtype.names if name != "frame"]
        outcomes = np.zeros((len(lengths), columns), [(name, self._memory.dtype[name]) for name in names])
        reserve_space(file, _SPARE_BYTES)
        dataset = file.create_group(schema.RECORDS_GROUP).create_dataset(
            "frame",
            shape=(len(lengths), columns, *frame.shape),
            chunks=(1, step, *frame.shape),
            dtype=frame.base,
            **compression.dataset_arguments,
        )
        self._write_chunks(file, dataset, lengths, outcomes)
        return outcomes

    def _write_chunks(self, file: h5py.File, dataset: h5py.Dataset, lengths: np.ndarray, outcomes: np.ndarray) -> None:
        """Write the chunks of frames one by one, while packers are some chunks ahead; fill in ``outcomes``."""
        step, rest, held = dataset.chunks[1], (0,) * (dataset.ndim - 2), self._held.shape[1]
        starts = range(0, outcomes.shape[1], step)
        places = ((int(lane), first) for first in starts for lane in np.flatnonzero(lengths > first))
        packer, under_way, room = _Packer(dataset), deque(), 0
        with ThreadPoolExecutor(PACKERS, "packer", initializer=_give_way) as packers:
            while True:
                for lane, first in itertools.islice(places, PACKERS + PACKED_AHEAD - len(under_way)):
                    last = min(first + step, int(lengths[lane]))
                    packing = packers.submit(self._pack, packer, lane, first, last, outcomes[lane, first:last])
                    under_way.append((lane, first, packing))
                if not under_way:
                    return
                lane, first, packing = under_way.popleft()
                packed = packing.result()
                self._drop_overwritten(lane, int(self.origin[lane]) + max(first, held))
                if room < len(packed) + _SPARE_BYTES:
                    room = max(RESERVED_BYTES, 2 * len(packed) + _SPARE_BYTES)
                    reserve_space(file, room)
                dataset.id.write_direct_chunk((lane, first, *rest), packed)
                room -= len(packed) + _CHUNK_INDEX_BYTES
                fault_point("replay_chunk")

    def _pack(self, packer: "_Packer", lane: int, first: int, last: int, outcomes: np.ndarray) -> bytes:
        """Copy the columns ``first`` to ``last`` of a lane, and compress their frames; runs in a packer's thread."""
        self._copy(lane, first, last, packer.chunk[: last - first], outcomes)
        packer.chunk[last - first :] = 0
        return bytes(packer.compress(packer.chunk))

    def _copy(self, lane: int, first: int, last: int, frames: np.ndarray, outcomes: np.ndarray) -> None:
        """Copy the columns ``first`` to ``last`` of a lane."""
        ahead = min(max(self._held.shape[1] - first, 0), last - first)
        slot = (int(self.origin[lane]) + first + ahead) % self._slots
        until_wrap = min(self._slots - slot, last - first - ahead)
        lane_memory = self._memory[lane]
        parts = (
            (0, self._held[lane, first : first + ahead]),
            (ahead, lane_memory[slot : slot + until_wrap]),
            (ahead + until_wrap, lane_memory[: last - first - ahead - until_wrap]),
        )
        for at, records in parts:
            if len(records):
                frames[at : at + len(records)] = records["frame"]
                for name in outcomes.dtype.names:
                    outcomes[name][at : at + len(records)] = records[name]

    def _drop_overwritten(self, lane: int, first: int) -> None:
        """Let a lane begin behind what its writer has overwritten of the records from ``first`` on, copied just now."""
        oldest = int(self._cursors.reserved()[lane]) - self._slots
        if oldest > first:
            self.begin[lane] = min(max(self.begin[lane], oldest), self.end[lane])

    def _write_fields(self, file: h5py.File, outcomes: np.ndarray) -> None:
        fields = {f"{schema.RECORDS_GROUP}/{name}": outcomes[name] for name in outcomes.dtype.names}
        fields |= {schema.BEGIN: self.begin, schema.END: self.end, schema.ORIGIN: self.origin}
        if self._priorities is not None:
            slots = (self.origin[:, None] + np.arange(outcomes.shape[1])) % self._slots
            fields[schema.PRIORITY] = np.take_along_axis(self._priorities.values, slots, axis=1)
            fields[schema.PRIORITY_LOW] = self._priorities.low
            fields[schema.PRIORITY_HIGHEST] = np.float64(self._priorities.highest)
        for name, values in fields.items():
            reserve_space(file, values.nbytes + _SPARE_BYTES)
            file.create_dataset(name, data=values)


def _give_way() -> None:
    """Let this thread run behind others; only Linux has priorities of single threads."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(PACKER_NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


class _Packer(threading.local):
    """What each thread that packs chunks has of its own."""

    def __init__(self, dataset: h5py.Dataset):
        self.chunk = np.zeros(dataset.chunks[1:], dataset.dtype)
        self.compress = codec.best().compress


class ReplayFile:
    """What :meth:`ReplayCut.write` wrote, read lane by lane and chunk by chunk.

    Parameters
    ----------
    path
        File to read; :meth:`close` it, or use it in a ``with`` statement.

    Raises
    ------
    StorageError
        It is missing, damaged, or of another type or version.
    """

    def __init__(self, path: Path | StateFile):
        self.path = path
        try:
            self._file = open_state(path)
        except (OSError, RuntimeError) as error:
            raise storage_error("read", path, error) from error
        try:
            schema.check_header(self._file.attrs, "replay", path)
            self.shape = Shape(*(int(self._file.attrs[name]) for name in Shape._fields))
            self.slots = int(self._file.attrs[schema.SLOTS])
            self.begin, self.end, self.origin = (
                plain_dataset(self._file, name)[:] for name in (schema.BEGIN, schema.END, schema.ORIGIN)
            )
            group = plain_group(self._file, schema.RECORDS_GROUP)
            self._fields = {name: plain_dataset(group, name) for name in group}
            self._frame = self._fields.pop("frame")
            self._priority = None
            if schema.PRIORITY in self._file:
                self._priority = plain_dataset(self._file, schema.PRIORITY)
                self.priority_low = plain_dataset(self._file, schema.PRIORITY_LOW)[:]
                self.priority_highest = float(plain_dataset(self._file, schema.PRIORITY_HIGHEST)[()])
            self._check_shapes()
        except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
            self.close()
            raise storage_error("read", path, error) from error
        except StorageError:
            self.close()
            raise

    def _check_shapes(self) -> None:
        columns = max(int((self.end - self.origin).max(initial=0)), 1)
        by_lane = (self.shape.num_lanes, columns)
        datasets = [*self._fields.values(), self._frame, *([] if self._priority is None else [self._priority])]
        sound = all(dataset.shape[:2] == by_lane for dataset in datasets)
        sound &= all(cursor.shape == by_lane[:1] for cursor in (self.begin, self.end, self.origin))
        sound &= bool(((self.origin >= 0) & (self.origin <= self.begin) & (self.begin <= self.end)).all())
        if not sound or columns > self.slots or self._frame.chunks is None:
            raise StorageError(f"{self.path}: its datasets do not fit {self.shape}")

    def __enter__(self) -> "ReplayFile":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def frame_dtype(self) -> np.dtype:
        """Type and shape of a frame."""
        return np.dtype((self._frame.dtype, self._frame.shape[2:]))

    @property
    def has_priorities(self) -> bool:
        """Whether the memory was a prioritised one."""
        return self._priority is not None

    def outcomes(self, lane: int) -> np.ndarray:
        """All fields but ``frame`` of the records ``begin`` to ``end`` of a lane, ``[end - begin]``."""
        columns = self._columns(lane)
        found = np.zeros(columns.stop - columns.start, [(name, field.dtype) for name, field in self._fields.items()])
        for name, field in self._fields.items():
            found[name] = self._read(field, lane, columns)
        return found

    def priorities(self, lane: int) -> np.ndarray:
        """float64 ``[end - begin]`` priorities of the same records."""
        return self._read(self._priority, lane, self._columns(lane))

    def frames(self, lane: int):
        """Yield ``(first, frames)``, obs_dtype ``[K, *obs_shape]``, chunk by chunk: frame ``k`` is that of the record
        ``first + k`` of :meth:`outcomes`."""
        columns, step = self._columns(lane), self._frame.chunks[1]
        for first in range(columns.start - columns.start % step, columns.stop, step):
            chunk = slice(max(first, columns.start), min(first + step, columns.stop))
            yield chunk.start - columns.start, self._read(self._frame, lane, chunk)

    def _columns(self, lane: int) -> slice:
        return slice(*(int(cursor[lane] - self.origin[lane]) for cursor in (self.begin, self.end)))

    def _read(self, dataset: h5py.Dataset, lane: int, columns: slice) -> np.ndarray:
        try:
            return dataset[lane, columns]
        except (OSError, RuntimeError) as error:
            raise storage_error("read", self.path, error) from error
