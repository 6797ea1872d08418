"""The one-sided protocols as small state machines, apart from MPI.

A *program* is a generator. It yields one operation, or a tuple of operations that may complete in any order, and is
resumed when all of them are complete at the target, with the value of its ``Fetch`` (a tuple of values for a tuple).
The MPI side runs programs in :func:`hpcrl.transport.window.drive`; a test can run the same programs on a plain dict,
in every interleaving.

All words are int64 and are touched only by atomic operations, by their owner too. Offsets are bytes in the window of
the rank that owns the words (mpi4py reports them so in errors).
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcrl.errors import TransportError

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


class GetMany(NamedTuple):
    """Copy window bytes from each of ``offsets`` into the contiguous row beside it, all of one length (not atomic)."""

    offsets: Sequence[int]
    rows: Sequence[np.ndarray]


class Put(NamedTuple):
    """Copy ``buffer`` into window bytes (not atomic)."""

    offset: int
    buffer: np.ndarray


Operation = Fetch | Replace | Add | FetchMany | Get | GetMany | Put
Program = Generator[Operation | tuple[Operation, ...], object, object]


def round_up(nbytes: int, multiple: int = CACHE_LINE) -> int:
    """Smallest multiple of ``multiple`` that holds ``nbytes``."""
    return -(-nbytes // multiple) * multiple


# ----------------------------------------------------------------------------------------------------------------------
# Publication of one vector: one owner writes, many readers read whole versions
# ----------------------------------------------------------------------------------------------------------------------

ENTRIES = 2**20
"""Readers that the word of the newest version can count."""
CLOSED = 2**40
"""Added to a gate when the readers behind it lose their protection."""


class Latest(NamedTuple):
    """What a vector's word of the newest version says."""

    version: int
    slot: int
    gate: int
    entries: int
    """readers that entered, counted from a start that the owner alone knows"""


@dataclass(frozen=True)
class PublicationLayout:
    """Where the words and slots of a published vector lie in its owner's window."""

    slots: int
    readers: int
    nbytes: int

    @property
    def gates(self) -> int:
        """Enough that one is free however many readers have stopped: each stays behind one gate at most."""
        return self.slots + self.readers

    @property
    def latest(self) -> int:
        """Word of the newest version, see :meth:`pack`; all add to it, readers 1 each time they enter."""
        return 0

    def pack(self, version: int, slot: int, gate: int) -> int:
        """Value of ``latest`` before any reader has entered."""
        return ((version * self.slots + slot) * self.gates + gate) * ENTRIES

    def unpack(self, word: int) -> Latest:
        """What a value of ``latest`` says."""
        word, entries = divmod(word, ENTRIES)
        word, gate = divmod(word, self.gates)
        return Latest(*divmod(word, self.slots), gate, entries)

    def left(self, gate: int) -> int:
        """Word that counts the readers that left through a gate; its owner adds ``CLOSED`` to close it."""
        return CACHE_LINE + gate * WORD

    def data(self, slot: int) -> int:
        """First byte of a slot."""
        return round_up(self.left(self.gates)) + slot * round_up(self.nbytes)

    @property
    def window_bytes(self) -> int:
        """Bytes of the owner's window."""
        return self.data(self.slots)


def read_latest(layout: PublicationLayout, known: int, out: np.ndarray, *, peek: bool) -> Program:
    """Read the newest version into ``out``; the program's result is ``(version, rounds)``.

    One atomic addition both tells which version is the newest and counts this reader in, so that its owner does not
    overwrite that slot before the reader is counted out at the version's gate. So the first round succeeds unless the
    owner lost its patience meanwhile; then the gate is closed before the slot is overwritten, and the reader, which
    sees that as it leaves, reads again. The result has ``rounds == 0`` where the newest version is ``known`` already.

    Parameters
    ----------
    peek : bool
        Look before entering: a step more where there is a new version, a step less where there is none.
    """
    if peek and (yield from look_at_latest(layout)) == known:
        return known, 0
    rounds = 0
    while True:
        latest = layout.unpack((yield Add(layout.latest, 1)))
        if latest.entries > ENTRIES // 2:  # before the count runs over into the version
            raise TransportError(f"version {latest.version} was read more than {ENTRIES // 2} times, which is the most")
        is_new = latest.version != known or rounds > 0
        if is_new:
            rounds += 1
            yield Get(layout.data(latest.slot), out)
        left = yield Add(layout.left(latest.gate), 1)
        if left < CLOSED or not is_new:
            return latest.version, rounds


def look_at_latest(layout: PublicationLayout) -> Program:
    """See which version is the newest; that is the program's result."""
    return layout.unpack((yield Fetch(layout.latest))).version


class Reading(NamedTuple):
    """A superseded version that readers may still be copying."""

    slot: int | None
    """None: overwritten all the same"""
    gate: int
    all_left: int
    """the gate's word when the last of them has left"""
    since: float
    """when it was superseded"""


@dataclass
class Publisher:
    """Owner's side of a published vector; the memory of which versions readers may be copying.

    Attributes
    ----------
    patience : float
        How long a superseded version is kept for its readers where its slot is wanted, in the unit of ``clock``; so a
        stopped reader blocks nobody. It notices when it goes on, and reads again.
    """

    layout: PublicationLayout
    patience: float
    clock: Callable[[], float]
    newest: Latest = Latest(0, 0, 0, 0)
    """as it was published, when it had the entries of the version before it"""
    reading: tuple[Reading, ...] = ()
    """oldest first"""

    def publish(self, version: int, values: np.ndarray) -> Program:
        """Write a new version; the result is False, and nothing was written, where no slot is free just now."""
        layout, newest = self.layout, self.newest
        left = yield tuple(Fetch(layout.left(r.gate)) for r in self.reading)
        over = [r for r, word in zip(self.reading, left, strict=True) if word == r.all_left]
        reading = [r for r in self.reading if r not in over]
        slot = _first_free(layout.slots, {newest.slot, *(r.slot for r in reading)})
        if slot is None:
            slowest = next(r for r in reading if r.slot is not None)
            if self.clock() - slowest.since <= self.patience:
                return False
            yield Add(layout.left(slowest.gate), CLOSED)
            slot = slowest.slot
            reading[reading.index(slowest)] = slowest._replace(slot=None, all_left=slowest.all_left + CLOSED)
        gate = _first_free(layout.gates, {newest.gate, *(r.gate for r in reading)})
        yield Put(layout.data(slot), values), *(Add(layout.left(r.gate), -r.all_left) for r in over)
        # The entries start again from those that this version had: how many are known only when they are seen.
        before = layout.pack(newest.version, newest.slot, newest.gate) + newest.entries
        seen = yield Add(layout.latest, layout.pack(version, slot, gate) - before)
        entries = seen - before
        if entries:
            reading.append(Reading(newest.slot, newest.gate, entries, self.clock()))
        self.newest, self.reading = Latest(version, slot, gate, entries), tuple(reading)
        return True

    def look(self) -> Program:
        """See how many readers are in a version that is whole, and how often any has entered or left.

        The result is that pair of numbers; the second only tells whether something has changed since the last look.
        """
        layout, newest = self.layout, self.newest
        gates = [newest.gate, *(r.gate for r in self.reading if r.slot is not None)]
        word, *left = yield Fetch(layout.latest), *(Fetch(layout.left(gate)) for gate in gates)
        entered = word - layout.pack(newest.version, newest.slot, newest.gate) - newest.entries
        all_left = entered + sum(r.all_left for r in self.reading if r.slot is not None)
        return all_left - sum(left), word + sum(left)


def _first_free(numbers: int, taken: set[int]) -> int | None:
    return next((n for n in range(numbers) if n not in taken), None)


# ----------------------------------------------------------------------------------------------------------------------
# Ring of fixed-size records: one producer, one consumer (the owner of the memory)
# ----------------------------------------------------------------------------------------------------------------------


ANSWERS = 2
ANSWER_BITS = 12
"""A consumer answers each record with a small number, and the word that gives a slot back carries the last two: who
sees a record consumed sees what became of it, without a look more."""
_ANSWERS_LIMIT = 2 ** (ANSWERS * ANSWER_BITS)


@dataclass(frozen=True)
class RingLayout:
    """Where the words and slots of a ring lie; ``start`` is its first byte in the consumer's window, and ``head_word``
    where its head is, if not there: beside those of other rings, whose consumer then reads all heads at once."""

    start: int
    capacity: int
    record_bytes: int
    head_word: int | None = None

    @property
    def head(self) -> int:
        """Word with the number of records ever published; written by the producer alone."""
        return self.start if self.head_word is None else self.head_word

    @property
    def tail(self) -> int:
        """Word with the number of records ever consumed and the last :data:`ANSWERS` answers (see `Consumer.pop`);
        written by the consumer alone."""
        return self.start + CACHE_LINE

    @cached_property
    def slot_bytes(self) -> int:
        """Bytes from one record to the next."""
        return round_up(self.record_bytes)

    def data(self, index: int) -> int:
        """First byte of the slot of record ``index``."""
        return self.start + 2 * CACHE_LINE + (index % self.capacity) * self.slot_bytes

    def until_wrap(self, index: int) -> int:
        """How many slots, from that of record ``index`` on, lie side by side."""
        return self.capacity - index % self.capacity

    @property
    def end(self) -> int:
        """First byte after the ring."""
        return self.start + 2 * CACHE_LINE + self.capacity * self.slot_bytes


@dataclass
class Producer:
    """Producer's side of a ring: data first, then the index that publishes it."""

    layout: RingLayout
    head: int = 0
    tail: int = 0
    """the consumer's index as last seen: at most the true one"""
    answers: int = 0
    """its last answers then, the newest in the lowest bits"""

    def room(self) -> int:
        """Records that had room when the ring was last looked at."""
        return self.layout.capacity - (self.head - self.tail)

    def look(self) -> Program:
        """Read the consumer's index again."""
        self.tail, self.answers = divmod((yield Fetch(self.layout.tail)), _ANSWERS_LIMIT)
        return self.tail

    def answer(self, index: int) -> int:
        """The consumer's answer to record ``index``, one of the last :data:`ANSWERS` that it was seen to consume."""
        return self.answers >> (self.tail - 1 - index) * ANSWER_BITS & (2**ANSWER_BITS - 1)

    def push(self, *parts: np.ndarray) -> Program:
        """Write the next record, given in contiguous ``parts``; the result is False where the ring is full."""
        if not self.room():
            yield from self.look()
            if not self.room():
                return False
        begin = offset = self.layout.data(self.head)
        puts = []
        for part in parts:
            puts.append(Put(offset, part))
            offset += part.nbytes
        if offset - begin > self.layout.record_bytes:
            raise ValueError(f"a record of this ring has at most {self.layout.record_bytes} bytes")
        yield puts[0] if len(puts) == 1 else tuple(puts)
        self.head += 1
        yield Replace(self.layout.head, self.head)
        return True

    def push_many(self, records: np.ndarray) -> Program:
        """Write as many of ``records``, contiguous ``[n, ...]`` with ``slot_bytes`` each, as there is room for.

        All become visible at once; the result is their number.
        """
        if self.room() < len(records):
            yield from self.look()
        taken = min(self.room(), len(records))
        if taken:
            first = min(taken, self.layout.until_wrap(self.head))
            runs = ((self.head, records[:first]), (self.head + first, records[first:taken]))
            yield tuple(Put(self.layout.data(index), run) for index, run in runs if len(run))
            self.head += taken
            yield Replace(self.layout.head, self.head)
        return taken


@dataclass
class Consumer:
    """Consumer's side of a ring; the consumer owns the memory and reads records where they lie."""

    layout: RingLayout
    tail: int = 0
    head: int = 0
    """the producer's index as last seen: at most the true one"""
    answers: int = 0

    def look(self) -> Program:
        """Read the producer's index again."""
        self.head = yield Fetch(self.layout.head)
        return self.head

    def side_by_side(self) -> int:
        """How many of the oldest records that wait lie side by side."""
        return min(self.head - self.tail, self.layout.until_wrap(self.tail))

    def pop(self, answer: int = 0, count: int = 1) -> Program:
        """Give the slots of the oldest ``count`` records back to the producer, each with the same answer.

        An answer is below ``2**ANSWER_BITS``.
        """
        self.tail += count
        for _ in range(min(count, ANSWERS)):
            self.answers = (self.answers << ANSWER_BITS | answer) % _ANSWERS_LIMIT
        yield Replace(self.layout.tail, self.tail * _ANSWERS_LIMIT + self.answers)
