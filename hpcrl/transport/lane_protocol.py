"""Lanes of records: one writer for each, any number of readers, none of whom ever waits for another.

A lane is a ring of records with absolute indices, which never wrap, and two cursors that its writer alone moves:
records below ``committed`` were once whole, and those below ``reserved - capacity`` may be overwritten already.

======  =====================================  ========================================================
step    writer                                 reader
======  =====================================  ========================================================
1       ``reserved += count``                  look at both cursors (or remember an earlier look)
2       store the records, and their mirrors   choose below ``committed``, not below ``reserved - capacity``
3       ``committed += count``                 copy
4                                              look again: what ``reserved`` has overtaken is lost
======  =====================================  ========================================================

Every step is complete before the next begins. A writer has three steps whatever readers do; a reader draws again only
where the writer got on meanwhile, so a writer that stops for ever makes nobody wait.

Here are the steps with one-sided operations, for lanes in another rank's window. Lanes in the memory of a node
(:class:`hpcrl.transport.shared.SharedCursors`, :meth:`hpcrl.replay.lanes.Lanes.append`) take the same with loads and
stores in place of ``Get`` and ``Put``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hpcrl.transport.protocol import WORD, FetchMany, GetMany, Program, Put, Replace, round_up


@dataclass(frozen=True)
class LanesLayout:
    """Where the cursors and records of all lanes in one window lie; ``start`` is their first byte.

    The cursors lie side by side, so that one request reads them all. The first ``mirror`` slots of a lane are repeated
    behind its last, so that up to ``mirror`` consecutive records are one contiguous read.
    """

    start: int
    lanes: int
    capacity: int
    mirror: int
    record_bytes: int

    def reserved(self, lane: int) -> int:
        """Word with the number of records ever begun; written by the lane's writer alone."""
        return self.start + 2 * lane * WORD

    def committed(self, lane: int) -> int:
        """Word with the number of records ever complete; written by the lane's writer alone."""
        return self.reserved(lane) + WORD

    def data(self, lane: np.ndarray, index: np.ndarray) -> np.ndarray:
        """First byte of record ``index``, and of the up to ``mirror - 1`` that follow it; numbers or arrays."""
        return self.slot(lane, index % self.capacity)

    def slot(self, lane: int, slot: int) -> int:
        """First byte of a slot; those from ``capacity`` on are mirrors."""
        place = lane * (self.capacity + self.mirror) + slot
        return self.start + round_up(2 * self.lanes * WORD) + place * self.record_bytes

    @property
    def end(self) -> int:
        """First byte after the lanes."""
        return self.slot(self.lanes, 0)

    def places(self, first: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Where ``count`` records from index ``first`` go: first slot, and begin and end within them."""
        begin = 0
        while begin < count:
            slot = (first + begin) % self.capacity
            end = min(count, begin + self.capacity - slot)
            yield slot, begin, end
            if slot < self.mirror:
                yield self.capacity + slot, begin, min(end, begin + self.mirror - slot)
            begin = end


@dataclass
class LaneWriter:
    """Writer's side of one lane."""

    layout: LanesLayout
    lane: int
    index: int = 0
    """records ever written"""

    def write(self, records: np.ndarray) -> Program:
        """Append ``records``, contiguous, ``[count, ...]`` with ``record_bytes`` each and ``count <= capacity``."""
        return write((self,), (records,))


def write(writers: Sequence[LaneWriter], records: Sequence[np.ndarray]) -> Program:
    """Append to each of several lanes of one window; see `LaneWriter.write`."""
    puts, reserved, committed = [], [], []
    for writer, rows in zip(writers, records, strict=True):
        layout, lane, first = writer.layout, writer.lane, writer.index
        if len(rows) > layout.capacity:
            raise ValueError(f"a lane of {layout.capacity} records cannot take {len(rows)} at once")
        puts += [Put(layout.slot(lane, slot), rows[begin:end]) for slot, begin, end in layout.places(first, len(rows))]
        writer.index += len(rows)
        reserved.append(Replace(layout.reserved(lane), writer.index))
        committed.append(Replace(layout.committed(lane), writer.index))
    yield tuple(reserved)
    yield tuple(puts)
    yield tuple(committed)


def look(layout: LanesLayout) -> Program:
    """Read the cursors of all lanes; the result is int64 ``[lanes, 2]``, ``reserved`` and ``committed``."""
    cursors = np.empty(2 * layout.lanes, np.int64)
    yield FetchMany(layout.reserved(0), cursors)
    return cursors.reshape(-1, 2)


def read(layout: LanesLayout, offsets: Sequence[int], rows: Sequence[np.ndarray]) -> Program:
    """Copy runs of consecutive records, then look at the cursors.

    Parameters
    ----------
    offsets
        First byte of each run; see `LanesLayout.data`.
    rows
        Where each run is copied to, contiguous, all of one length.

    Returns
    -------
    int64 [lanes, 2]
        What :func:`look` gives; it tells which runs were :func:`overtaken`.
    """
    yield GetMany(offsets, rows)
    return (yield from look(layout))


def overtaken(reserved, first, capacity: int):
    """Whether a copy of records from index ``first`` on may be of newer ones; ``reserved`` was read after the copy."""
    return first < reserved - capacity
