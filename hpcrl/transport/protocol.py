"""The one-sided protocols as small state machines, apart from MPI.

A *program* is a generator. It yields one operation, or a tuple of operations that may complete in any order, and is
resumed when all of them are complete at the target, with the value of its ``Fetch`` (a tuple of values for a tuple).
The MPI side runs programs in :func:`hpcrl.transport.window.drive`; a test can run the same programs on a plain dict,
in every interleaving.

All words are int64 and are touched only by atomic operations, by their owner too. Offsets are bytes in the window of
the rank that owns the words (mpi4py reports them so in errors).
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

WORD = 8
"""Bytes of one int64 word."""
CACHE_LINE = 64
"""Words with different writers, and all data, start on a cache line of their own."""


class Fetch(NamedTuple):
    """Atomic read of a word."""

    offset: int


class Replace(NamedTuple):
    """Atomic write of a word; the result is the old value."""

    offset: int
    value: int


class Add(NamedTuple):
    """Atomic addition to a word; the result is the old value."""

    offset: int
    value: int


class FetchMany(NamedTuple):
    """Read the consecutive words that fill ``buffer``, int64, each of them atomically, in any order."""

    offset: int
    buffer: np.ndarray


class Get(NamedTuple):
    """Copy window bytes into ``buffer`` (not atomic)."""

    offset: int
    buffer: np.ndarray


class Put(NamedTuple):
    """Copy ``buffer`` into window bytes (not atomic)."""

    offset: int
    buffer: np.ndarray


Operation = Fetch | Replace | Add | FetchMany | Get | Put
Program = Generator[Operation | tuple[Operation, ...], object, object]


def round_up(nbytes: int, multiple: int = CACHE_LINE) -> int:
    """Smallest multiple of ``multiple`` that holds ``nbytes``."""
    return -(-nbytes // multiple) * multiple


# ----------------------------------------------------------------------------------------------------------------------
# Publication of one vector: one owner writes, many readers read whole versions
# ----------------------------------------------------------------------------------------------------------------------

IDLE = 0


@dataclass(frozen=True)
class PublicationLayout:
    """Where the words and slots of a published vector lie in its owner's window."""

    slots: int
    readers: int
    nbytes: int

    @property
    def latest(self) -> int:
        """Word ``version * slots + slot`` of the newest complete version; written by the owner."""
        return 0

    def slot_version(self, slot: int) -> int:
        """Word with the version that a slot holds, -1 while it is overwritten; written by the owner."""
        return CACHE_LINE + slot * WORD

    def state(self, reader: int) -> int:
        """Word ``session * (slots + 2) + code`` of a reader (code 1: entering, 2 + s: reads slot s) or IDLE."""
        return round_up(CACHE_LINE + self.slots * WORD) + reader * CACHE_LINE

    def data(self, slot: int) -> int:
        """First byte of a slot."""
        return self.state(self.readers) + slot * round_up(self.nbytes)

    @property
    def window_bytes(self) -> int:
        """Bytes of the owner's window."""
        return self.data(self.slots)


def read_latest(layout: PublicationLayout, reader: int, session: int, known: int, out: np.ndarray) -> Program:
    """Read the newest version into ``out``; the program's result is ``(version, rounds)``.

    A reader first says that it enters, then looks which slot is the newest, then pins that one slot while it copies.
    The owner never overwrites what a reader that it has seen may be copying, so the first round succeeds unless the
    reader slept for longer than the owner's patience; the slot's version, read after the copy, tells. The result has
    ``rounds == 0`` where the newest version is ``known`` already.
    """
    latest = yield Fetch(layout.latest)
    if latest // layout.slots == known:
        return known, 0
    rounds = 0
    while True:
        rounds += 1
        base = (session + rounds) * (layout.slots + 2)
        yield Replace(layout.state(reader), base + 1)
        latest = yield Fetch(layout.latest)
        version, slot = divmod(latest, layout.slots)
        # Entering protects this slot until the pin arrives, so the two need no order.
        yield Replace(layout.state(reader), base + 2 + slot), Get(layout.data(slot), out)
        seen = yield Fetch(layout.slot_version(slot))
        yield Replace(layout.state(reader), IDLE)
        if seen == version:
            return version, rounds


@dataclass
class Publisher:
    """Owner's side of a published vector; the memory of what each reader may be copying.

    Attributes
    ----------
    patience : float
        A reader that stays in one session for longer, in the unit of ``clock``, loses its protection, so that a
        stopped reader blocks nobody. It notices when it goes on, and reads again.
    """

    layout: PublicationLayout
    patience: float
    clock: Callable[[], float]
    slot: int = 0
    previous_slot: int = 0
    held: dict[int, tuple[int, float, set[int]]] = field(default_factory=dict)
    """reader -> (state word as last seen, when its session was first seen, slots it may be copying)"""

    def protected(self, states: Sequence[int]) -> set[int]:
        """Slots that must not be overwritten, given the readers' state words as just read."""
        now, period, slots = self.clock(), self.layout.slots + 2, {self.slot}
        for reader, state in enumerate(states):
            if state == IDLE:
                self.held.pop(reader, None)
                continue
            session, code = divmod(state, period)
            last, since, may_copy = self.held.get(reader, (IDLE, now, set()))
            if last // period != session:
                # It entered after the previous look, when the newest was `previous_slot`, or since.
                since, may_copy = now, {self.previous_slot, self.slot}
            may_copy = may_copy | {self.slot} if code == 1 else {code - 2}
            self.held[reader] = (state, since, may_copy)
            if now - since <= self.patience:
                slots |= may_copy
        return slots

    def publish(self, version: int, values: np.ndarray) -> Program:
        """Write a new version; the result is False, and nothing was written, where no slot is free just now."""
        states = yield tuple(Fetch(self.layout.state(r)) for r in range(self.layout.readers))
        protected = self.protected(states)
        # The slot that was the newest at this look counts as such until the next look (see `protected`).
        free = [s for s in range(self.layout.slots) if s not in protected]
        self.previous_slot = self.slot
        if not free:
            return False
        slot = free[0]
        yield Replace(self.layout.slot_version(slot), -1)
        yield Put(self.layout.data(slot), values)
        yield Replace(self.layout.slot_version(slot), version)
        yield Replace(self.layout.latest, version * self.layout.slots + slot)
        self.slot = slot
        return True


# ----------------------------------------------------------------------------------------------------------------------
# Ring of fixed-size records: one producer, one consumer (the owner of the memory)
# ----------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RingLayout:
    """Where the words and slots of a ring lie; ``start`` is its first byte in the consumer's window."""

    start: int
    capacity: int
    record_bytes: int

    @property
    def head(self) -> int:
        """Word with the number of records ever published; written by the producer alone."""
        return self.start

    @property
    def tail(self) -> int:
        """Word with the number of records ever consumed; written by the consumer alone."""
        return self.start + CACHE_LINE

    def data(self, index: int) -> int:
        """First byte of the slot of record ``index``."""
        return self.start + 2 * CACHE_LINE + (index % self.capacity) * round_up(self.record_bytes)

    @property
    def end(self) -> int:
        """First byte after the ring."""
        return self.start + 2 * CACHE_LINE + self.capacity * round_up(self.record_bytes)


@dataclass
class Producer:
    """Producer's side of a ring: data first, then the index that publishes it."""

    layout: RingLayout
    head: int = 0
    tail: int = 0
    """the consumer's index as last seen: at most the true one"""

    def full(self) -> bool:
        """Whether the ring was full when last looked at."""
        return self.head - self.tail >= self.layout.capacity

    def look(self) -> Program:
        """Read the consumer's index again."""
        self.tail = yield Fetch(self.layout.tail)
        return self.tail

    def push(self, *parts: np.ndarray) -> Program:
        """Write the next record, given in contiguous ``parts``; the result is False where the ring is full."""
        if self.full():
            yield from self.look()
            if self.full():
                return False
        offset, puts = self.layout.data(self.head), []
        for part in parts:
            puts.append(Put(offset, part))
            offset += part.nbytes
        if offset - self.layout.data(self.head) > self.layout.record_bytes:
            raise ValueError(f"a record of this ring has at most {self.layout.record_bytes} bytes")
        yield tuple(puts)
        self.head += 1
        yield Replace(self.layout.head, self.head)
        return True


@dataclass
class Consumer:
    """Consumer's side of a ring; the consumer owns the memory and reads records where they lie."""

    layout: RingLayout
    tail: int = 0
    head: int = 0
    """the producer's index as last seen: at most the true one"""

    def look(self) -> Program:
        """Read the producer's index again."""
        self.head = yield Fetch(self.layout.head)
        return self.head

    def pop(self) -> Program:
        """Give the oldest record's slot back to the producer."""
        self.tail += 1
        yield Replace(self.layout.tail, self.tail)
