"""Publication of a vector, in every interleaving of one writer, its readers and the clock."""

from dataclasses import replace

import pytest
from interleavings import CLOCK, Clock, Explorer, Party, ViolationError, run, vector

from hpcrl.errors import TransportError
from hpcrl.transport.protocol import (
    CLOSED,
    ENTRIES,
    Add,
    Fetch,
    Get,
    Latest,
    PublicationLayout,
    Publisher,
    Put,
    Reading,
    read_latest,
)

FOREVER = 10**6
"""A patience that no clock here exceeds."""


class Writer(Party):
    """Publishes versions 1, 2, … flat out until ``versions`` are out, trying again at once where no slot is free."""

    name, clocked = "writer", True

    def __init__(self, layout, patience, versions, publisher=Publisher):
        self.elements = layout.nbytes // 8
        self.versions, self.published, self.now = versions, 0, 0
        self.publisher = publisher(layout, patience, None)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.publisher = replace(self.publisher, clock=lambda: twin.now)
        return twin

    def key(self):
        return self.versions, self.published, self.publisher.newest, self.publisher.reading

    def program(self):
        if self.published == self.versions:
            return None
        return self.publisher.publish(self.published + 1, vector(self.published + 1, self.elements))

    def finished(self, result):
        self.published += result


class Reader(Party):
    """Reads ``reads`` times; every version's elements are all equal to it."""

    def __init__(self, layout, index, reads, most_rounds, read=read_latest):
        self.name = f"reader {index}"
        self.layout, self.left, self.most_rounds, self.read = layout, reads, most_rounds, read
        self.known, self.peek = -1, False
        self.out = vector(-1, layout.nbytes // 8)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.out = self.out.copy()
        return twin

    def key(self):
        return self.left, self.known, self.peek, tuple(self.out.tolist())

    def program(self):
        return self.read(self.layout, self.known, self.out, peek=self.peek) if self.left else None

    def finished(self, result):
        version, rounds = result
        if rounds > self.most_rounds:
            raise ViolationError(f"{self.name} took {rounds} rounds")
        if set(self.out.tolist()) != {version}:
            raise ViolationError(f"{self.name} got {self.out.tolist()} as version {version}")
        if version < self.known:
            raise ViolationError(f"{self.name} got version {version} after {self.known}")
        if (rounds == 0) != (version == self.known):
            raise ViolationError(f"{self.name} took {rounds} rounds for {version} after {self.known}")
        self.known, self.peek, self.left = version, rounds == 0, self.left - 1


def nobody_waits_for_a_stopped_one(layout, patience):
    """Invariant: each party gets on if all others have stopped here."""
    looked_at = set()

    def check(explorer, state):
        for who, local in enumerate(state.locals):
            if local.done or isinstance(local.party, Clock) or (id(local), state.memory) in looked_at:
                continue
            looked_at.add((id(local), state.memory))
            if isinstance(local.party, Reader):
                left = local.party.left
                explorer.solo(state, who, lambda party, left=left: party.left < left, longest=20)
            elif patience < FOREVER:
                check_writer(explorer, state, who)
        explorer.check_that_it_can_end(state)

    def check_writer(explorer, state, who):
        # It ends what it is at, sees who holds what, loses its patience, and then publishes at the first try.
        attempt, begun, tries = state, state.locals[who].party.published, 0
        longest = 2 * layout.readers + 10
        while attempt.locals[who].party.published == begun:
            if tries == 3:
                raise ViolationError("the writer does not publish, though every reader had stopped long ago")
            now = explorer.memories[attempt.memory][CLOCK]
            attempt = explorer.with_memory(attempt, {CLOCK: now + patience + 1} if tries else {})
            attempt = end_of_attempt(explorer, attempt, who, longest)
            tries += 1

    def end_of_attempt(explorer, state, who, longest):
        state = explorer.step(state, who, state.locals[who].open[0])
        return explorer.solo(state, who, lambda party: True, longest)[0]

    return check


def explore(
    *,
    slots,
    reads,
    versions,
    elements=2,
    patience=FOREVER,
    ticks=0,
    publisher=Publisher,
    read=read_latest,
    most_rounds=None,
) -> Explorer:
    layout = PublicationLayout(slots, len(reads), 8 * elements)
    most_rounds = most_rounds or 1 + ticks
    parties = [Writer(layout, patience, versions, publisher)]
    parties += [Reader(layout, i, n, most_rounds, read) for i, n in enumerate(reads)]
    if ticks:
        parties.append(Clock(ticks))
    return Explorer(parties, invariant=nobody_waits_for_a_stopped_one(layout, patience)).run()


def longer(*values, **options):
    return pytest.param(*values, **options, marks=pytest.mark.long)


# No program looks at the data it moves, so that each element of a vector sees what a vector of one element would, and
# one element stands for any number. Two elements, torn or not, are tried all the same where the search stays short.
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param({"slots": 3, "reads": [2], "versions": 6}, id="1 reader, 3 slots"),
        pytest.param({"slots": 4, "reads": [2], "versions": 5}, id="1 reader, 4 slots"),
        pytest.param({"slots": 2, "reads": [2], "versions": 4}, id="1 reader, 2 slots"),
        pytest.param({"slots": 3, "reads": [2, 1], "versions": 3, "elements": 1}, id="2 readers, 3 slots"),
        longer({"slots": 3, "reads": [2, 2], "versions": 4}, id="2 readers, 3 slots, longer"),
        longer({"slots": 4, "reads": [2, 2], "versions": 5, "elements": 1}, id="2 readers, 4 slots"),
        longer({"slots": 3, "reads": [1, 1, 1], "versions": 3, "elements": 1}, id="3 readers, 3 slots"),
    ],
)
def test_without_delays_every_read_is_whole_and_takes_one_round(bounds):
    explored = explore(**bounds, most_rounds=1)
    assert explored.ends > 0


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param({"slots": 2, "reads": [2], "versions": 4, "ticks": 1}, id="expires once"),
        pytest.param({"slots": 2, "reads": [1], "versions": 4, "ticks": 2}, id="expires twice"),
        pytest.param({"slots": 3, "reads": [1, 1], "versions": 3, "ticks": 1, "elements": 1}, id="2 readers"),
        longer({"slots": 3, "reads": [2, 1], "versions": 4, "ticks": 1}, id="2 readers, longer"),
        longer({"slots": 2, "reads": [1, 1], "versions": 4, "ticks": 2, "elements": 1}, id="2 readers, 2 slots"),
        longer({"slots": 3, "reads": [1, 1, 1], "versions": 3, "ticks": 1, "elements": 1}, id="3 readers"),
    ],
)
def test_a_read_takes_one_round_more_each_time_its_protection_expires(bounds):
    explore(**bounds, patience=0, most_rounds=1 + bounds["ticks"])
    with pytest.raises(ViolationError, match=f"took {1 + bounds['ticks']} rounds"):
        explore(**bounds, patience=0, most_rounds=bounds["ticks"])


@pytest.mark.parametrize("peek", [True, False])
def test_a_known_version_is_not_read_again(peek):
    layout = PublicationLayout(3, 1, 8)
    program = read_latest(layout, 7, vector(0, 1), peek=peek)
    latest = layout.pack(7, 2, 1)
    if peek:
        assert next(program) == Fetch(layout.latest)
    else:
        assert next(program) == Add(layout.latest, 1)
        assert program.send(latest) == Add(layout.left(1), 1)
        latest = 0
    with pytest.raises(StopIteration) as end:
        program.send(latest)
    assert end.value.value == (7, 0)


def test_the_word_of_the_newest_version_holds_large_numbers():
    layout = PublicationLayout(4, 1000, 8)
    newest = Latest(2**31 - 1, 3, 1003, ENTRIES - 1)
    word = layout.pack(*newest[:3]) + newest.entries
    assert word < 2**63
    assert layout.unpack(word) == newest


def test_more_readings_of_one_version_than_the_word_can_count_are_an_error():
    layout = PublicationLayout(3, 1, 8)
    program = read_latest(layout, -1, vector(0, 1), peek=False)
    next(program)
    with pytest.raises(TransportError, match="version 7 was read more than"):
        program.send(layout.pack(7, 0, 0) + ENTRIES // 2 + 1)


def test_stopped_readers_hold_a_slot_each_until_patience_ends_and_never_more_than_one_gate():
    layout, now, memory = PublicationLayout(4, 3, 8), 0, {}
    publisher, stopped = Publisher(layout, 10, lambda: now), []
    for version in (1, 2, 3):
        assert run(publisher.publish(version, vector(version, 1)), memory)
        stopped.append(read_latest(layout, -1, vector(0, 1), peek=False))
        run(stopped[-1], memory, most_steps=2)  # it has entered and copied
    assert run(publisher.publish(4, vector(4, 1)), memory)
    assert not run(publisher.publish(5, vector(5, 1)), memory), "three readers and the newest hold a slot each"
    now = 11
    for version in range(5, 40):
        assert run(publisher.publish(version, vector(version, 1)), memory)
    assert len([r for r in publisher.reading if r.slot is None]) == 1, "one slot was enough"
    assert [run(reader, memory) for reader in stopped] == [(39, 2), (2, 1), (3, 1)]
    assert run(publisher.publish(40, vector(40, 1)), memory)
    assert run(publisher.publish(41, vector(41, 1)), memory)
    assert publisher.reading == ()
    assert not any(memory[layout.left(gate)] for gate in range(layout.gates) if layout.left(gate) in memory)


def test_the_owner_sees_who_is_in_the_middle_of_a_read():
    layout, now, memory = PublicationLayout(2, 2, 8), 0, {}
    publisher = Publisher(layout, 10, lambda: now)

    def look():
        inside, moves = run(publisher.look(), memory)
        looks.append(moves)
        return inside

    looks = []
    readers = [read_latest(layout, -1, vector(0, 1), peek=False) for _ in range(3)]
    assert look() == 0
    run(readers[0], memory, most_steps=2)
    assert look() == look() == 1
    assert looks[1] == looks[2] != looks[0]
    assert run(publisher.publish(1, vector(1, 1)), memory)
    assert look() == 1, "in a version that is superseded"
    run(readers[1], memory, most_steps=2)
    assert look() == 2
    assert run(readers[0], memory) == (0, 1)
    assert look() == 1
    assert run(publisher.publish(2, vector(2, 1)), memory)
    now = 11
    assert run(publisher.publish(3, vector(3, 1)), memory)
    assert look() == 0, "one that lost its protection does not count"
    assert run(readers[1], memory) == (3, 2)
    assert look() == 0
    assert len(set(looks)) > 5


# ----------------------------------------------------------------------------------------------------------------------
# Broken on purpose: the search finds out
# ----------------------------------------------------------------------------------------------------------------------


class Rewritten(Publisher):
    """The publisher, in parts that can be altered."""

    order = (("data", "resets"), ("index",))
    closing = (("close",),)

    def has_left(self, reading, word):
        return word == reading.all_left

    def is_out_of_patience(self, reading):
        return self.clock() - reading.since > self.patience

    def known_entries(self):
        return self.newest.entries

    def gate(self, reading):
        taken = {self.newest.gate, *(r.gate for r in reading)}
        return next(g for g in range(self.layout.gates) if g not in taken)

    def superseded(self, entries):
        return Reading(self.newest.slot, self.newest.gate, entries, self.clock())

    def publish(self, version, values):
        layout = self.layout
        left = yield tuple(Fetch(layout.left(r.gate)) for r in self.reading)
        over = [r for r, word in zip(self.reading, left, strict=True) if self.has_left(r, word)]
        reading = [r for r in self.reading if r not in over]
        taken = {self.newest.slot, *(r.slot for r in reading)}
        slot = next((s for s in range(layout.slots) if s not in taken), None)
        order = self.order
        if slot is None:
            slowest = next(r for r in reading if r.slot is not None)
            if not self.is_out_of_patience(slowest):
                return False
            slot, order = slowest.slot, (*self.closing, *order)
            reading[reading.index(slowest)] = slowest._replace(slot=None, all_left=slowest.all_left + CLOSED)
        gate = self.gate(reading)
        before = layout.pack(*self.newest[:3]) + self.known_entries()
        steps = {
            "close": [Add(layout.left(r.gate), CLOSED) for r in reading if r.slot is None and r not in self.reading],
            "data": [Put(layout.data(slot), values)],
            "resets": [Add(layout.left(r.gate), -r.all_left) for r in over],
            "index": [Add(layout.latest, layout.pack(version, slot, gate) - before)],
        }
        for names in order:
            operations = [operation for name in names for operation in steps[name]]
            if not operations:
                continue
            replies = yield tuple(operations)
            if "index" in names:
                entries = replies[operations.index(steps["index"][0])] - before
        if entries:
            reading.append(self.superseded(entries))
        self.newest, self.reading = Latest(version, slot, gate, entries), tuple(reading)
        return True


class IndexBeforeData(Rewritten):
    order = (("index",), ("data", "resets"))


class IndexWithData(Rewritten):
    order = (("resets",), ("data", "index"))


class DoesNotReset(Rewritten):
    order = (("data",), ("index",))


class DoesNotClose(Rewritten):
    closing = ()


class ClosesAfterData(Rewritten):
    closing = (("data",), ("close",))


class ClosesWhileItWrites(Rewritten):
    closing = (("close", "data"),)


class IgnoresReaders(Rewritten):
    def has_left(self, reading, word):
        return True


class MissesOneReader(Rewritten):
    def superseded(self, entries):
        return super().superseded(entries - 1)


class ForgetsWhoWasCounted(Rewritten):
    def known_entries(self):
        return 0


class TakesAGateThatIsNotFree(Rewritten):
    def gate(self, reading):
        return super().gate([r for r in reading if r.slot is not None])


class HasOneGate(Rewritten):
    def gate(self, reading):
        return 0


class NeverLosesPatience(Rewritten):
    def is_out_of_patience(self, reading):
        return False


class StartsThePatienceAnew(Rewritten):
    def has_left(self, reading, word):
        self.reading = tuple(r._replace(since=self.clock()) for r in self.reading)
        return super().has_left(reading, word)


def reading(one_round):
    """`read_latest` with another round, which returns the version and whether to be content."""

    def read(layout, known, out, *, peek):
        if peek and layout.unpack((yield Fetch(layout.latest))).version == known:
            return known, 0
        rounds = 0
        while True:
            latest = layout.unpack((yield Add(layout.latest, 1)))
            if latest.version == known and not rounds:
                yield Add(layout.left(latest.gate), 1)
                return known, 0
            rounds += 1
            if (yield from one_round(layout, latest, layout.left(latest.gate), out)):
                return latest.version, rounds

    return read


@reading
def faithful(layout, latest, gate, out):
    yield Get(layout.data(latest.slot), out)
    return (yield Add(gate, 1)) < CLOSED


@reading
def leaves_while_it_copies(layout, latest, gate, out):
    _, left = yield Get(layout.data(latest.slot), out), Add(gate, 1)
    return left < CLOSED


@reading
def leaves_before_it_copies(layout, latest, gate, out):
    left = yield Add(gate, 1)
    yield Get(layout.data(latest.slot), out)
    return left < CLOSED


@reading
def does_not_leave(layout, latest, gate, out):
    yield Get(layout.data(latest.slot), out)
    return (yield Fetch(gate)) < CLOSED


@reading
def leaves_twice(layout, latest, gate, out):
    yield Get(layout.data(latest.slot), out)
    yield Add(gate, 1)
    return (yield Add(gate, 1)) < CLOSED


@reading
def leaves_by_another_gate(layout, latest, gate, out):
    yield Get(layout.data(latest.slot), out)
    return (yield Add(layout.left((latest.gate + 1) % layout.gates), 1)) < CLOSED


@reading
def copies_another_slot(layout, latest, gate, out):
    yield Get(layout.data((latest.slot + 1) % layout.slots), out)
    return (yield Add(gate, 1)) < CLOSED


@reading
def does_not_check(layout, latest, gate, out):
    yield Get(layout.data(latest.slot), out)
    yield Add(gate, 1)
    return True


@reading
def checks_while_it_copies(layout, latest, gate, out):
    _, left = yield Get(layout.data(latest.slot), out), Fetch(gate)
    yield Add(gate, 1)
    return left < CLOSED


def looks_before_it_enters(layout, known, out, *, peek):
    latest = layout.unpack((yield Fetch(layout.latest)))
    if latest.version == known:
        return known, 0
    yield Add(layout.latest, 1)
    yield Get(layout.data(latest.slot), out)
    yield Add(layout.left(latest.gate), 1)
    return latest.version, 1


def stays_where_nothing_is_new(layout, known, out, *, peek):
    latest = layout.unpack((yield Add(layout.latest, 1)))
    if latest.version == known:
        return known, 0
    yield Get(layout.data(latest.slot), out)
    yield Add(layout.left(latest.gate), 1)
    return latest.version, 1


PROMPT = {"slots": 3, "reads": [2], "versions": 4}
TWO = {"slots": 3, "reads": [2, 1], "versions": 3, "elements": 1}
EXPIRING = {"slots": 2, "reads": [2], "versions": 4, "patience": 0, "ticks": 1}


@pytest.mark.parametrize("bounds", [PROMPT, EXPIRING])
def test_the_altered_programs_are_sound_before_they_are_altered(bounds):
    original, rewritten = explore(**bounds), explore(**bounds, publisher=Rewritten, read=faithful)
    assert rewritten.states == original.states


TORN, ROUNDS = r"got \[", "took . rounds"
BLOCKED, ALONE, ENDLESS = "does not publish", "does not get on alone", "do not come to an end"


@pytest.mark.parametrize(
    ("publisher", "bounds", "violation"),
    [
        (IndexBeforeData, PROMPT, TORN),
        (IndexWithData, PROMPT, TORN),
        (DoesNotReset, PROMPT, f"{TORN}|{ENDLESS}"),
        (DoesNotClose, EXPIRING, TORN),
        (ClosesAfterData, EXPIRING, TORN),
        (ClosesWhileItWrites, EXPIRING, TORN),
        (IgnoresReaders, PROMPT, TORN),
        (MissesOneReader, PROMPT, f"{TORN}|{ENDLESS}"),
        (ForgetsWhoWasCounted, PROMPT, f"{TORN}|{ENDLESS}"),
        (TakesAGateThatIsNotFree, EXPIRING, f"{TORN}|{ROUNDS}|{ALONE}|{ENDLESS}"),
        (HasOneGate, PROMPT, f"{TORN}|{ENDLESS}"),
        (NeverLosesPatience, EXPIRING, BLOCKED),
        (StartsThePatienceAnew, EXPIRING, BLOCKED),
    ],
)
def test_a_broken_publisher_is_found_out(publisher, bounds, violation):
    with pytest.raises(ViolationError, match=violation):
        explore(**bounds, publisher=publisher)


@pytest.mark.parametrize(
    ("read", "bounds", "violation"),
    [
        (looks_before_it_enters, PROMPT, TORN),
        (leaves_before_it_copies, PROMPT, TORN),
        (leaves_while_it_copies, PROMPT, TORN),
        (does_not_leave, PROMPT, ENDLESS),
        (stays_where_nothing_is_new, {"slots": 2, "reads": [2], "versions": 2}, ENDLESS),
        (leaves_twice, PROMPT, f"{TORN}|{ENDLESS}"),
        (leaves_by_another_gate, PROMPT, f"{TORN}|{ENDLESS}"),
        (copies_another_slot, PROMPT, TORN),
        (does_not_check, EXPIRING, TORN),
        (checks_while_it_copies, EXPIRING, TORN),
    ],
)
def test_a_broken_reader_is_found_out(read, bounds, violation):
    with pytest.raises(ViolationError, match=violation):
        explore(**bounds, read=read)
