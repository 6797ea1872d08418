"""Priorities of a hosted lane, in every interleaving of the actor, the host and a learner.

The actor writes records and sends each a priority; the host, who alone writes priorities, takes what comes; the learner
reads priorities one-sided, draws by them, and sends a new one. The host's step here is that of
:class:`hpcrl.roles.replay_host.ReplayHost`, made of the same programs.
"""

from dataclasses import replace

import numpy as np
import pytest
from interleavings import Explorer, Party, ViolationError, vector

from hpcrl.transport.lane_protocol import LanesLayout, LaneWriter, look, overtaken, read
from hpcrl.transport.protocol import Consumer, Get, Producer, Put, RingLayout

CAPACITY = 1
LANE = LanesLayout(0, 1, CAPACITY, 0, 8)
RINGS = [RingLayout(1024, 3, 16), RingLayout(2048, 2, 16)]
"""From the actor and from the learner; a message is an index and its priority."""
PRIORITIES = 4096
"""One word for each slot; 0 where nothing may be drawn."""
NOTHING = -1


def own(index):
    """Priority that the actor gives to a record; its content, too."""
    return index + 1


def learned(index):
    """Priority that the learner gives to it."""
    return 100 + index


class Actor(Party):
    name = "actor"

    def __init__(self, records):
        self.left, self.writer, self.ring, self.written = records, LaneWriter(LANE, 0), Producer(RINGS[0]), False

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.writer, twin.ring = replace(self.writer), replace(self.ring)
        return twin

    def key(self):
        return self.left, self.writer.index, self.written, self.ring.head, self.ring.tail

    def program(self):
        if not self.left:
            return None
        if not self.written:
            return self.writer.write(vector(own(self.writer.index), 1))
        index = self.writer.index - 1
        return self.ring.push(np.array([index, own(index)], np.int64))

    def finished(self, result):
        if self.written and result:
            self.left, self.written = self.left - 1, False
        else:
            self.written = True


class Host(Party):
    name = "host"

    def __init__(self, messages, serve):
        self.left, self.serve, self.low, self.turn = messages, serve, 0, 0
        self.consumers = [Consumer(ring) for ring in RINGS]

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.consumers = [replace(consumer) for consumer in self.consumers]
        return twin

    def key(self):
        return self.left, self.low, self.turn, tuple((c.head, c.tail) for c in self.consumers)

    def program(self):
        return self.serve(self, self.consumers[self.turn]) if self.left else None

    def finished(self, result):
        self.left -= result
        self.turn = (self.turn + 1) % len(self.consumers)

    def forget(self, reserved):
        """Operations that take the priority of all that is overwritten, or is about to be."""
        low, self.low = self.low, max(self.low, reserved - CAPACITY)
        return tuple(Put(slot(index), vector(0, 1)) for index in range(low, self.low))

    def set(self, index, priority):
        return (Put(slot(index), vector(priority, 1)),) if index >= self.low else ()


def slot(index):
    return PRIORITIES + 8 * (index % CAPACITY)


def serve(host, ring):
    """Take in one message: see it, look at the cursors, forget, set, give it back."""
    if ring.head == ring.tail:
        yield from ring.look()
        if ring.head == ring.tail:
            return 0
    cursors = yield from look(LANE)
    message = vector(0, 2)
    yield Get(ring.layout.data(ring.tail), message)
    yield host.forget(int(cursors[0, 0]))
    if message[0] != NOTHING:
        yield host.set(*message.tolist())
    yield from ring.pop()
    return 1


class Learner(Party):
    name = "learner"

    def __init__(self, attempts):
        self.left, self.ring, self.reply = attempts, Producer(RINGS[1]), None

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.ring = replace(self.ring)
        return twin

    def key(self):
        return self.left, self.reply, self.ring.head, self.ring.tail

    def program(self):
        if not self.left:
            return None
        if self.reply is None:
            return self._draw()
        return self.ring.push(np.array([self.reply, learned(self.reply)], np.int64))

    def _draw(self):
        cursors, priorities = (yield from look(LANE)), vector(0, CAPACITY)
        yield Get(PRIORITIES, priorities)
        committed = int(cursors[0, 1])
        low = max(0, int(cursors[0, 0]) - CAPACITY)
        drawn = [i for i in range(low, committed) if priorities[i % CAPACITY]]
        if not drawn:
            return None
        index, out = drawn[0], vector(0, 1)
        cursors = yield from read(LANE, [LANE.data(0, index)], [out])
        if overtaken(int(cursors[0, 0]), index, CAPACITY):
            return None
        return index, int(out[0]), int(priorities[index % CAPACITY])

    def finished(self, result):
        if self.reply is not None:
            if result:
                self.left, self.reply = self.left - 1, None
            return
        self.reply = NOTHING
        if result is not None:
            index, content, priority = result
            if content != own(index):
                raise ViolationError(f"record {index} was read as {content}")
            # The host may be late to take back that of the record which was there before, never early with another.
            may_be = {make(i) for make in (own, learned) for i in range(index, -1, -CAPACITY)}
            if priority not in may_be:
                raise ViolationError(f"record {index} was drawn by priority {priority}")
            self.reply = index


def check(explorer, state):
    actor, host, _ = (local.party for local in state.locals)
    for who, local in enumerate(state.locals):
        if not local.done and local.replies:  # inside a program: it returns, whatever the others do
            explorer.solo(state, who, lambda party: True, longest=12)
    explorer.check_that_it_can_end(state)
    if not explorer.actions(state):
        memory = explorer.memories[state.memory]
        for index in range(actor.writer.index - CAPACITY, actor.writer.index):
            if memory.get(slot(index), 0) not in (own(index), learned(index)):
                raise ViolationError(f"record {index} ends with priority {memory.get(slot(index), 0)}")


def explore(*, records, attempts, serve=serve):
    return Explorer([Actor(records), Host(records + attempts, serve), Learner(attempts)], invariant=check).run()


@pytest.mark.parametrize(
    ("records", "attempts"), [(4, 0), (3, 1), pytest.param(3, 2, marks=pytest.mark.long, id="longer")]
)
def test_every_record_ends_with_a_priority_of_its_own_and_is_drawn_by_none_but_its_own(records, attempts):
    assert explore(records=records, attempts=attempts).ends > 0


# ----------------------------------------------------------------------------------------------------------------------
# Broken on purpose: the search finds out
# ----------------------------------------------------------------------------------------------------------------------


def looks_at_the_lane_first(host, ring):
    cursors = yield from look(LANE)
    yield from ring.look()
    if ring.head == ring.tail:
        return 0
    message = vector(0, 2)
    yield Get(ring.layout.data(ring.tail), message)
    yield host.forget(int(cursors[0, 0]))
    if message[0] != NOTHING:
        yield host.set(*message.tolist())
    yield from ring.pop()
    return 1


def sets_before_it_forgets(host, ring):
    yield from ring.look()
    if ring.head == ring.tail:
        return 0
    cursors = yield from look(LANE)
    message = vector(0, 2)
    yield Get(ring.layout.data(ring.tail), message)
    if message[0] != NOTHING:
        yield host.set(*message.tolist())
    yield host.forget(int(cursors[0, 0]))
    yield from ring.pop()
    return 1


def drops_nothing(host, ring):
    yield from ring.look()
    if ring.head == ring.tail:
        return 0
    cursors = yield from look(LANE)
    message = vector(0, 2)
    yield Get(ring.layout.data(ring.tail), message)
    yield host.forget(int(cursors[0, 0]))
    if message[0] != NOTHING:
        yield Put(slot(int(message[0])), message[1:])
    yield from ring.pop()
    return 1


@pytest.mark.parametrize("broken", [looks_at_the_lane_first, sets_before_it_forgets, drops_nothing])
def test_a_broken_host_is_found_out(broken):
    with pytest.raises(ViolationError, match="ends with priority|drawn by priority"):
        explore(records=3, attempts=1, serve=broken)
