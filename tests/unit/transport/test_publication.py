"""Publication of a vector, in every interleaving of one writer, its readers and the clock."""

from dataclasses import replace

import pytest
from interleavings import CLOCK, Clock, Explorer, Party, ViolationError, vector

from hpcrl.transport.protocol import IDLE, Fetch, Get, PublicationLayout, Publisher, Put, Replace, read_latest

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
        twin.publisher = replace(self.publisher, held=dict(self.publisher.held), clock=lambda: twin.now)
        return twin

    def key(self):
        p = self.publisher
        held = frozenset((reader, state, since, frozenset(slots)) for reader, (state, since, slots) in p.held.items())
        return self.versions, self.published, p.slot, p.previous_slot, held

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
        self.layout, self.index, self.left, self.most_rounds, self.read = layout, index, reads, most_rounds, read
        self.session, self.known = 0, -1
        self.out = vector(-1, layout.nbytes // 8)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.out = self.out.copy()
        return twin

    def key(self):
        return self.left, self.session, self.known, tuple(self.out.tolist())

    def program(self):
        return self.read(self.layout, self.index, self.session, self.known, self.out) if self.left else None

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
        self.session, self.known, self.left = self.session + rounds, version, self.left - 1


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
        longest = layout.readers + 8
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
        pytest.param({"slots": 3, "reads": [2], "versions": 4}, id="1 reader, 3 slots"),
        pytest.param({"slots": 4, "reads": [2], "versions": 5, "elements": 1}, id="1 reader, 4 slots"),
        pytest.param({"slots": 3, "reads": [1, 1], "versions": 2, "elements": 1}, id="2 readers, 3 slots"),
        longer({"slots": 3, "reads": [3], "versions": 6}, id="1 reader, 3 slots, longer"),
        longer({"slots": 4, "reads": [1, 1], "versions": 3, "elements": 1}, id="2 readers, 4 slots"),
        longer({"slots": 3, "reads": [2, 1], "versions": 3, "elements": 1}, id="2 readers, 3 slots, longer"),
    ],
)
def test_without_delays_every_read_is_whole_and_takes_one_round(bounds):
    explored = explore(**bounds, most_rounds=1)
    assert explored.ends > 0


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param({"slots": 3, "reads": [1], "versions": 3, "ticks": 1}, id="expires once"),
        pytest.param({"slots": 4, "reads": [2], "versions": 3, "ticks": 1, "elements": 1}, id="2 reads, 4 slots"),
        longer({"slots": 3, "reads": [1], "versions": 4, "ticks": 2, "elements": 1}, id="expires twice"),
        longer({"slots": 3, "reads": [2], "versions": 5, "ticks": 1}, id="longer"),
        longer({"slots": 3, "reads": [1, 1], "versions": 2, "ticks": 1, "elements": 1}, id="2 readers"),
    ],
)
def test_a_read_takes_one_round_more_each_time_its_protection_expires(bounds):
    explore(**bounds, patience=0, most_rounds=1 + bounds["ticks"])
    with pytest.raises(ViolationError, match=f"took {1 + bounds['ticks']} rounds"):
        explore(**bounds, patience=0, most_rounds=bounds["ticks"])


def test_a_known_version_is_not_read_again():
    layout = PublicationLayout(3, 1, 8)
    program = read_latest(layout, 0, 0, 7, vector(0, 1))
    assert next(program) == Fetch(layout.latest)
    with pytest.raises(StopIteration) as end:
        program.send(7 * 3 + 2)
    assert end.value.value == (7, 0)


def test_with_endless_patience_a_stopped_reader_may_hold_the_last_slot_but_not_one_of_a_spare():
    layout = PublicationLayout(3, 1, 8)
    publisher = Publisher(layout, FOREVER, lambda: 0)
    entered = [layout.slots + 2 + 1]
    assert [attempt(publisher, v, entered) for v in (1, 2, 3)] == [True, True, False]
    pinned = [layout.slots + 2 + 2 + 1]
    assert [attempt(publisher, v, pinned) for v in range(3, 9)] == [True] * 6


def attempt(publisher: Publisher, version: int, states: list[int]) -> bool:
    """One publication that sees the readers' words as ``states``."""
    program = publisher.publish(version, vector(version, 1))
    next(program)
    reply = tuple(states)
    while True:
        try:
            program.send(reply)
        except StopIteration as stop:
            return stop.value
        reply = 0


# ----------------------------------------------------------------------------------------------------------------------
# Broken on purpose: the search finds out
# ----------------------------------------------------------------------------------------------------------------------


class Rewritten(Publisher):
    """The publisher, with its writing apart so that it can be altered."""

    def publish(self, version, values):
        states = yield tuple(Fetch(self.layout.state(r)) for r in range(self.layout.readers))
        protected = self.protected(states)
        free = [s for s in range(self.layout.slots) if s not in protected]
        self.previous_slot = self.slot
        if not free:
            return False
        slot, layout = free[0], self.layout
        steps = {
            "invalid": Replace(layout.slot_version(slot), -1),
            "data": Put(layout.data(slot), values),
            "valid": Replace(layout.slot_version(slot), version),
            "index": Replace(layout.latest, version * layout.slots + slot),
        }
        for step in self.order:
            yield steps[step] if isinstance(step, str) else tuple(steps[name] for name in step)
        self.slot = slot
        return True

    order = ("invalid", "data", "valid", "index")


class IndexBeforeData(Rewritten):
    order = ("invalid", "valid", "index", "data")


class IndexWithData(Rewritten):
    order = ("invalid", ("data", "valid", "index"))


class NeverInvalid(Rewritten):
    order = ("data", "valid", "index")


class InvalidWithData(Rewritten):
    order = (("invalid", "data"), "valid", "index")


class IgnoresReaders(Publisher):
    def protected(self, states):
        return {self.slot}


class IgnoresEntering(Publisher):
    def protected(self, states):
        return super().protected([IDLE if s % (self.layout.slots + 2) == 1 else s for s in states])


class ForgetsPreviousSlot(Publisher):
    def protected(self, states):
        self.previous_slot = self.slot
        return super().protected(states)


class ForgetsEarlierLooks(Publisher):
    def protected(self, states):
        self.held = {reader: (state, since, set()) for reader, (state, since, _) in self.held.items()}
        return super().protected(states)


class SeesNoSessions(Publisher):
    def protected(self, states):
        period = self.layout.slots + 2
        return super().protected([s and period + s % period for s in states])


class NeverLosesPatience(Publisher):
    def protected(self, states):
        self.clock = lambda: 0
        return super().protected(states)


class StartsThePatienceAnew(Publisher):
    def protected(self, states):
        self.held = {reader: (state, self.clock(), slots) for reader, (state, _, slots) in self.held.items()}
        return super().protected(states)


def reading(one_round):
    """`read_latest` with another round, which returns the version and whether to be content."""

    def read(layout, reader, session, known, out):
        latest = yield Fetch(layout.latest)
        if latest // layout.slots == known:
            return known, 0
        rounds = 0
        while True:
            rounds += 1
            base = (session + rounds) * (layout.slots + 2)
            version, content = yield from one_round(layout, layout.state(reader), base, out)
            if content:
                return version, rounds

    return read


@reading
def faithful(layout, state, base, out):
    yield Replace(state, base + 1)
    version, slot = divmod((yield Fetch(layout.latest)), layout.slots)
    yield Replace(state, base + 2 + slot), Get(layout.data(slot), out)
    seen = yield Fetch(layout.slot_version(slot))
    yield Replace(state, IDLE)
    return version, seen == version


@reading
def does_not_enter(layout, state, base, out):
    version, slot = divmod((yield Fetch(layout.latest)), layout.slots)
    yield Replace(state, base + 2 + slot)
    yield Get(layout.data(slot), out)
    seen = yield Fetch(layout.slot_version(slot))
    yield Replace(state, IDLE)
    return version, seen == version


@reading
def looks_while_it_enters(layout, state, base, out):
    _, latest = yield Replace(state, base + 1), Fetch(layout.latest)
    version, slot = divmod(latest, layout.slots)
    yield Replace(state, base + 2 + slot), Get(layout.data(slot), out)
    seen = yield Fetch(layout.slot_version(slot))
    yield Replace(state, IDLE)
    return version, seen == version


@reading
def leaves_while_it_copies(layout, state, base, out):
    yield Replace(state, base + 1)
    version, slot = divmod((yield Fetch(layout.latest)), layout.slots)
    yield Replace(state, base + 2 + slot)
    yield Get(layout.data(slot), out), Replace(state, IDLE)
    seen = yield Fetch(layout.slot_version(slot))
    return version, seen == version


@reading
def pins_another_slot(layout, state, base, out):
    yield Replace(state, base + 1)
    version, slot = divmod((yield Fetch(layout.latest)), layout.slots)
    yield Replace(state, base + 2 + (slot + 1) % layout.slots), Get(layout.data(slot), out)
    seen = yield Fetch(layout.slot_version(slot))
    yield Replace(state, IDLE)
    return version, seen == version


@reading
def does_not_check(layout, state, base, out):
    yield Replace(state, base + 1)
    version, slot = divmod((yield Fetch(layout.latest)), layout.slots)
    yield Replace(state, base + 2 + slot), Get(layout.data(slot), out)
    yield Replace(state, IDLE)
    return version, True


@reading
def checks_while_it_copies(layout, state, base, out):
    yield Replace(state, base + 1)
    version, slot = divmod((yield Fetch(layout.latest)), layout.slots)
    _, _, seen = yield Replace(state, base + 2 + slot), Get(layout.data(slot), out), Fetch(layout.slot_version(slot))
    yield Replace(state, IDLE)
    return version, seen == version


def keeps_its_session(layout, reader, session, known, out):
    return read_latest(layout, reader, 0, known, out)


PROMPT = {"slots": 3, "reads": [2], "versions": 4}
EXPIRING = {"slots": 3, "reads": [1], "versions": 3, "patience": 0, "ticks": 1}


@pytest.mark.parametrize("bounds", [PROMPT, EXPIRING])
def test_the_altered_programs_are_sound_before_they_are_altered(bounds):
    original, rewritten = explore(**bounds), explore(**bounds, publisher=Rewritten, read=faithful)
    assert rewritten.states == original.states


ROUNDS, TORN = "took . rounds", r"got \["
BLOCKED, ALONE = "does not publish", "does not get on alone"


@pytest.mark.parametrize(
    ("publisher", "bounds", "violation"),
    [
        (IndexBeforeData, PROMPT, TORN),
        (IndexWithData, PROMPT, f"{TORN}|{ROUNDS}|{ALONE}"),
        (NeverInvalid, EXPIRING, TORN),
        (InvalidWithData, EXPIRING, TORN),
        (IgnoresReaders, PROMPT, ROUNDS),
        (IgnoresEntering, PROMPT, ROUNDS),
        (ForgetsPreviousSlot, PROMPT, ROUNDS),
        (ForgetsEarlierLooks, PROMPT, ROUNDS),
        (SeesNoSessions, PROMPT, ROUNDS),
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
        (does_not_enter, PROMPT, ROUNDS),
        (looks_while_it_enters, PROMPT, ROUNDS),
        (leaves_while_it_copies, PROMPT, ROUNDS),
        (pins_another_slot, PROMPT, ROUNDS),
        (does_not_check, EXPIRING, TORN),
        (checks_while_it_copies, EXPIRING, TORN),
        (keeps_its_session, PROMPT, ROUNDS),
    ],
)
def test_a_broken_reader_is_found_out(read, bounds, violation):
    with pytest.raises(ViolationError, match=violation):
        explore(**bounds, read=read)
