"""Lanes of records, in every interleaving of a writer and its readers."""

from dataclasses import replace

import numpy as np
import pytest
from interleavings import Explorer, Party, ViolationError, vector

from hpcrl.replay.lanes import Lanes, LocalCursors, record_dtype
from hpcrl.transport.lane_protocol import LanesLayout, LaneWriter, look, overtaken, read
from hpcrl.transport.protocol import CACHE_LINE, Fetch, Get, Put, Replace

RUN = 2
"""records of one read; a record is one int64, its own index plus 1"""


class Writer(Party):
    """Writes ``batches`` of so many records each."""

    def __init__(self, layout, batches, writer=LaneWriter, lane=0):
        self.name, self.batches, self.writer = f"writer {lane}", batches, writer(layout, lane)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.writer = replace(self.writer)
        return twin

    def key(self):
        return self.batches, self.writer.index

    def program(self):
        if not self.batches:
            return None
        first = self.writer.index + 1
        return self.writer.write(np.arange(first, first + self.batches[0], dtype=np.int64))

    def finished(self, result):
        self.batches = self.batches[1:]


class Reader(Party):
    """Copies the run at ``place`` (0: oldest, -1: newest) of those that may be drawn, ``attempts`` times."""

    def __init__(self, layout, place, attempts, margin=0, attempt=None, index=0, lane=0):
        self.name, self.layout, self.lane = f"reader {index}", layout, lane
        self.place, self.left, self.margin, self.attempt = place, attempts, margin, attempt or copy_a_run
        self.reserved = self.committed = self.good = 0

    def key(self):
        return self.left, self.reserved, self.committed, self.good

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def choices(self, committed):
        """First indices of the runs that may be drawn, given the last look."""
        oldest = max(0, self.reserved - self.layout.capacity + self.margin)
        return range(oldest, committed - RUN + 1)

    def program(self):
        return self.attempt(self) if self.left else None

    def finished(self, result):
        self.left -= 1
        cursors, first, out, is_whole = result
        reserved, committed = cursors[self.lane].tolist()
        if committed < self.committed or reserved < self.reserved:
            raise ViolationError(f"{self.name} saw cursors run backwards")
        if first is not None and is_whole:
            if out.tolist() != list(range(first + 1, first + RUN + 1)):
                raise ViolationError(f"{self.name} got {out.tolist()} as records from {first}")
            self.good += 1
        if first is not None and not is_whole and reserved - self.reserved <= self.margin:
            raise ViolationError(f"{self.name} lost a run though the writer had not got on")
        self.reserved, self.committed = reserved, committed


def copy_a_run(reader):
    """An attempt as the readers of hpcrl make it: draw by the last look, copy, look again."""
    choices = reader.choices(reader.committed)
    if not choices:
        return (yield from look(reader.layout)), None, None, False
    first, out = choices[reader.place], vector(-1, RUN)
    cursors = yield from read(reader.layout, [reader.layout.data(reader.lane, first)], [out])
    return cursors, first, out, not overtaken(cursors[reader.lane, 0], first, reader.layout.capacity)


def nobody_waits(explorer, state):
    """Invariant: with all others stopped here, a writer ends what it is at, and a reader gets a run if there is one."""
    for who, local in enumerate(state.locals):
        if local.done:
            continue
        party = local.party
        if isinstance(party, Writer):
            explorer.solo(state, who, lambda p, index=party.writer.index: p.writer.index > index, longest=20)
        elif party.left >= 3:  # one attempt that was going on, one look, one run
            reserved, committed = cursors(explorer, state, party.layout, party.lane)
            if committed - RUN >= max(0, reserved - party.layout.capacity + party.margin):
                explorer.solo(state, who, lambda p, n=party.good: p.good > n, longest=30)
    explorer.check_that_it_can_end(state)
    if not explorer.actions(state):
        check_nothing_is_lost(explorer, state)


def cursors(explorer, state, layout, lane):
    memory = explorer.memories[state.memory]
    return memory.get(layout.reserved(lane), 0), memory.get(layout.committed(lane), 0)


def check_nothing_is_lost(explorer, state):
    memory = explorer.memories[state.memory]
    for writer in (local.party.writer for local in state.locals if isinstance(local.party, Writer)):
        layout, lane, written = writer.layout, writer.lane, writer.index
        if cursors(explorer, state, layout, lane) != (written, written):
            raise ViolationError(f"lane {lane} ends with cursors {cursors(explorer, state, layout, lane)}")
        for index in range(max(0, written - layout.capacity), written):
            slot = index % layout.capacity
            copies = [slot] + [layout.capacity + slot] * (slot < layout.mirror)
            found = {memory.get(layout.slot(lane, copy), 0) for copy in copies}
            if found != {index + 1}:
                raise ViolationError(f"lane {lane} holds {found} where record {index} should be")


def explore(*, batches, readers, capacity=3, margin=0, writer=LaneWriter, attempt=None, lanes=1):
    layout = LanesLayout(0, lanes, capacity, RUN, 8)
    parties = [Writer(layout, tuple(batches), writer, lane) for lane in range(lanes)]
    parties += [
        Reader(layout, place, attempts, margin, attempt, i, lane=i % lanes)
        for i, (place, attempts) in enumerate(readers)
    ]
    return Explorer(parties, invariant=nobody_waits).run()


OLDEST, NEWEST = 0, -1


def longer(*values, **options):
    return pytest.param(*values, **options, marks=pytest.mark.long)


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param({"batches": [1] * 6, "readers": [(OLDEST, 4)]}, id="oldest"),
        pytest.param({"batches": [1] * 6, "readers": [(NEWEST, 4)]}, id="newest"),
        pytest.param({"batches": [3, 2, 3], "readers": [(OLDEST, 4)], "capacity": 4}, id="several records at once"),
        pytest.param({"batches": [1] * 6, "readers": [(OLDEST, 4)], "capacity": 4, "margin": 1}, id="a margin"),
        pytest.param({"batches": [2, 2], "readers": [(OLDEST, 2), (NEWEST, 2)]}, id="two readers"),
        pytest.param({"batches": [2, 1], "readers": [(NEWEST, 2)], "lanes": 2}, id="two writers"),
        longer({"batches": [1] * 9, "readers": [(OLDEST, 5)], "capacity": 4}, id="oldest, longer"),
        longer({"batches": [1] * 6, "readers": [(OLDEST, 3), (NEWEST, 3)]}, id="two readers, longer"),
        longer({"batches": [2, 1], "readers": [(NEWEST, 2), (OLDEST, 2)], "lanes": 2}, id="two of each"),
    ],
)
def test_every_read_is_whole_and_nobody_waits(bounds):
    explored = explore(**bounds)
    assert explored.ends > 0
    readers = [local.party for local in explored.local_ids.values() if isinstance(local.party, Reader)]
    assert any(reader.good for reader in readers)
    if bounds["batches"] == [1] * 6 and bounds["readers"] == [(OLDEST, 4)] and "margin" not in bounds:
        lost = [reader for reader in readers if reader.left == reader.good == 0 and reader.committed > RUN]
        assert lost, "some are overtaken every time"


def test_lanes_of_a_node_take_the_steps_of_the_program():
    """The same order of reserve, store and commit, and the same slots, mirrors among them."""
    stack, n_step, capacity = 1, 1, 8
    layout = LanesLayout(0, 1, capacity, stack + n_step, record_dtype((1,), np.dtype(np.int64)).itemsize)
    memory = np.zeros((1, capacity + stack + n_step), record_dtype((1,), np.dtype(np.int64)))
    log = []

    class Watched(LocalCursors):
        def reserve(self, lanes, counts):
            first = super().reserve(lanes, counts)
            log.append(("reserved", int(self.reserved()[0]), *written()))
            return first

        def commit(self, lanes, counts):
            super().commit(lanes, counts)
            log.append(("committed", int(self.committed()[0]), *written()))

    def written():
        return sorted(np.flatnonzero(memory["frame"][0, :, 0] == index + 1).tolist())

    lanes, writer = Lanes(memory, Watched(1), capacity=capacity, stack=stack, n_step=n_step), LaneWriter(layout, 0)
    no = np.array([False])
    for index in range(2 * capacity + 1):
        log.clear()
        lanes.append(np.array([0]), np.array([[index + 1]]), np.array([0]), np.zeros(1, np.float32), no, no, no)
        (reserve,), store, (commit,) = writer.write(np.zeros((1, layout.record_bytes), np.uint8))
        slots = [(put.offset - layout.slot(0, 0)) // layout.record_bytes for put in store]
        assert reserve == Replace(layout.reserved(0), index + 1)
        assert commit == Replace(layout.committed(0), index + 1)
        assert log == [("reserved", index + 1), ("committed", index + 1, *slots)]


def test_places_cover_every_record_once_and_its_mirror():
    layout = LanesLayout(CACHE_LINE, 3, 7, 3, 16)
    for first in range(15):
        for count in range(8):
            slots = {}
            for slot, begin, end in layout.places(first, count):
                slots |= {slot + i: first + begin + i for i in range(end - begin)}
            expected = {index % 7: index for index in range(first, first + count)}
            assert slots == expected | {7 + slot: index for slot, index in expected.items() if slot < 3}
    assert layout.slot(1, 0) == layout.slot(0, 10) <= layout.end
    assert layout.committed(2) + 8 <= layout.slot(0, 0)
    assert layout.slot(0, 0) % CACHE_LINE == 0


def test_more_records_than_a_lane_holds_are_refused():
    with pytest.raises(ValueError, match="cannot take 5 at once"):
        next(LaneWriter(LanesLayout(0, 1, 4, 2, 8), 0).write(vector(0, 5)))


# ----------------------------------------------------------------------------------------------------------------------
# Broken on purpose: the search finds out
# ----------------------------------------------------------------------------------------------------------------------


class Reordered(LaneWriter):
    order = ("reserve", "store", "commit")

    def write(self, records):
        layout, first = self.layout, self.index
        self.index += len(records)
        steps = {
            "reserve": (Replace(layout.reserved(self.lane), self.index),),
            "store": tuple(
                Put(layout.slot(self.lane, s), records[b:e]) for s, b, e in self.places(first, len(records))
            ),
            "commit": (Replace(layout.committed(self.lane), self.index),),
        }
        for step in self.order:
            names = (step,) if isinstance(step, str) else step
            yield tuple(operation for name in names for operation in steps[name])

    def places(self, first, count):
        return self.layout.places(first, count)


class StoresBeforeItReserves(Reordered):
    order = ("store", "reserve", "commit")


class StoresWhileItReserves(Reordered):
    order = (("reserve", "store"), "commit")


class CommitsBeforeItStores(Reordered):
    order = ("reserve", "commit", "store")


class CommitsWhileItStores(Reordered):
    order = ("reserve", ("store", "commit"))


class ForgetsMirrors(Reordered):
    def places(self, first, count):
        return (place for place in self.layout.places(first, count) if place[0] < self.layout.capacity)


class NextSlot(Reordered):
    def places(self, first, count):
        return self.layout.places(first + 1, count)


class NeverCommits(Reordered):
    order = ("reserve", "store")


PLAIN = {"batches": [1] * 6, "readers": [(OLDEST, 4)]}
WRONG, LOST, HOLDS = r"got \[", "had not got on", "holds|ends with cursors"


@pytest.mark.parametrize("bounds", [PLAIN, {"batches": [3, 2, 3], "readers": [(NEWEST, 3)]}])
def test_the_altered_writer_is_sound_before_it_is_altered(bounds):
    assert explore(**bounds, writer=Reordered).states == explore(**bounds).states


@pytest.mark.parametrize(
    ("writer", "violation"),
    [
        (StoresBeforeItReserves, WRONG),
        (StoresWhileItReserves, WRONG),
        (CommitsBeforeItStores, WRONG),
        (CommitsWhileItStores, WRONG),
        (ForgetsMirrors, f"{WRONG}|{HOLDS}"),
        (NextSlot, f"{WRONG}|{HOLDS}"),
        (NeverCommits, HOLDS),
    ],
)
def test_a_broken_writer_is_found_out(writer, violation):
    for place in (OLDEST, NEWEST):
        with pytest.raises(ViolationError, match=violation):
            explore(batches=[1] * 6, readers=[(place, 4)], writer=writer)


def copying(one_attempt):
    """`copy_a_run` with another way to copy once ``first`` is chosen."""

    def attempt(reader):
        choices = reader.choices(reader.committed)
        if not choices:
            return (yield from look(reader.layout)), None, None, False
        return (yield from one_attempt(reader, choices[reader.place], vector(-1, RUN)))

    return attempt


@copying
def does_not_check(reader, first, out):
    return (yield from read(reader.layout, [reader.layout.data(0, first)], [out])), first, out, True


@copying
def checks_while_it_copies(reader, first, out):
    _, reserved, committed = yield (
        Get(reader.layout.data(0, first), out),
        Fetch(reader.layout.reserved(0)),
        Fetch(reader.layout.committed(0)),
    )
    return np.array([[reserved, committed]]), first, out, not overtaken(reserved, first, reader.layout.capacity)


@copying
def checks_what_is_committed(reader, first, out):
    cursors = yield from read(reader.layout, [reader.layout.data(0, first)], [out])
    return cursors, first, out, not overtaken(cursors[0, 1], first, reader.layout.capacity)


@copying
def is_content_with_one_less(reader, first, out):
    cursors = yield from read(reader.layout, [reader.layout.data(0, first)], [out])
    return cursors, first, out, not overtaken(cursors[0, 0] - 1, first, reader.layout.capacity)


@copying
def asks_for_one_more(reader, first, out):
    cursors = yield from read(reader.layout, [reader.layout.data(0, first)], [out])
    return cursors, first, out, not overtaken(cursors[0, 0] + 1, first, reader.layout.capacity)


def draws_what_is_reserved(reader):
    choices = reader.choices(reader.reserved)
    if not choices:
        return (yield from look(reader.layout)), None, None, False
    first, out = choices[NEWEST], vector(-1, RUN)
    cursors = yield from read(reader.layout, [reader.layout.data(0, first)], [out])
    return cursors, first, out, not overtaken(cursors[0, 0], first, reader.layout.capacity)


@pytest.mark.parametrize(
    ("attempt", "violation"),
    [
        (does_not_check, WRONG),
        (checks_while_it_copies, WRONG),
        (checks_what_is_committed, WRONG),
        (is_content_with_one_less, WRONG),
        (asks_for_one_more, LOST),
        (draws_what_is_reserved, WRONG),
    ],
)
def test_a_broken_reader_is_found_out(attempt, violation):
    with pytest.raises(ViolationError, match=violation):
        explore(**PLAIN, attempt=attempt)
