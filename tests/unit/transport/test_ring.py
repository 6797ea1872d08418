"""Rings of records, in every interleaving of producers and their consumer."""

from dataclasses import replace

import numpy as np
import pytest
from interleavings import Explorer, Party, State, ViolationError, run, vector

from hpcrl.transport.protocol import (
    ANSWER_BITS,
    ANSWERS,
    CACHE_LINE,
    Consumer,
    Fetch,
    Get,
    Producer,
    Put,
    Replace,
    RingLayout,
)

ELEMENTS = 3
"""of a record, pushed in two parts"""


class Pusher(Party):
    """Pushes records 1, 2, …, each but once or, if ``patient``, until it is in."""

    def __init__(self, layout, records, *, patient, producer=Producer, name="producer"):
        self.name, self.records, self.patient, self.next = name, records, patient, 1
        self.producer, self.accepted, self.answered = producer(layout), (), 0

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.producer = replace(self.producer)
        return twin

    def key(self):
        return self.next, self.producer.head, self.producer.tail, self.producer.answers, self.accepted, self.answered

    def program(self):
        if self.next > self.records:
            return None
        return self.producer.push(vector(self.next, 1), vector(self.next, ELEMENTS - 1))

    def finished(self, result):
        if result:
            self.accepted += (self.next,)
        if result or not self.patient:
            self.next += 1
        for index in range(max(self.answered, self.producer.tail - ANSWERS), self.producer.tail):
            if self.producer.answer(index) != answer_to(index):
                raise ViolationError(f"{self.name} got {self.producer.answer(index)} as the answer to record {index}")
        self.answered = self.producer.tail


class Popper(Party):
    """Takes records of its rings in turn, at most ``looks`` looks at each (None: until ``records`` are there)."""

    def __init__(self, layouts, *, records=None, looks=None, consume=None, consumer=Consumer, name="consumer"):
        self.name, self.records, self.looks, self.consume = name, records, looks, consume or take_oldest
        self.consumers = [consumer(layout) for layout in layouts]
        self.taken, self.turn = ((),) * len(layouts), 0
        self.out = vector(-1, ELEMENTS)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.consumers, twin.out = [replace(c) for c in self.consumers], self.out.copy()
        return twin

    def key(self):
        return self.looks, self.turn, self.taken, tuple((c.head, c.tail) for c in self.consumers)

    def program(self):
        if self.looks == 0 or (self.looks is None and all(len(t) == self.records for t in self.taken)):
            return None
        return self.consume(self.consumers[self.turn], self.out)

    def finished(self, result):
        if result:
            values = set(self.out.tolist())
            if len(values) > 1:
                raise ViolationError(f"{self.name} got a torn record {self.out.tolist()}")
            self.taken = tuple(t + (*values,) if i == self.turn else t for i, t in enumerate(self.taken))
        self.out[:] = -1
        self.turn = (self.turn + 1) % len(self.consumers)
        self.looks = None if self.looks is None else self.looks - 1


def answer_to(index):
    return (0, 2**ANSWER_BITS - 1, 1234)[index % 3]


def take_oldest(consumer, out):
    """What a consumer does, with its reading of the record, which lies in its own memory, as steps."""
    if consumer.head == consumer.tail:
        yield from consumer.look()
        if consumer.head == consumer.tail:
            return False
    yield Get(consumer.layout.data(consumer.tail), out)
    yield from consumer.pop(answer_to(consumer.tail))
    return True


def check(explorer: Explorer, state: State) -> None:
    """What was taken is what was pushed, in order; and nobody waits for one that has stopped."""
    *pushers, popper = (local.party for local in state.locals)
    for pusher, taken in zip(pushers, popper.taken, strict=True):
        pushed = pusher.accepted + (pusher.next,)  # the last may be on its way
        if taken != pushed[: len(taken)]:
            raise ViolationError(f"{popper.name} got {taken} where {pushed} were pushed")
    for who, local in enumerate(state.locals):
        if not local.done and local.replies:  # inside a program: it returns, whatever the others do
            explorer.solo(state, who, lambda party: True, longest=3 + 2 * ELEMENTS)
    explorer.check_that_it_can_end(state)
    if not explorer.actions(state) and popper.looks is None:
        for pusher, taken in zip(pushers, popper.taken, strict=True):
            if taken != pusher.accepted:
                raise ViolationError(f"{popper.name} got {taken} of {pusher.accepted}")


def layouts(rings: int, capacity: int) -> list[RingLayout]:
    found, start = [], CACHE_LINE
    for _ in range(rings):
        found.append(RingLayout(start, capacity, vector(0, ELEMENTS).nbytes))
        start = found[-1].end
    return found


def explore(
    *, capacity, records, producers=1, patient=True, looks=None, producer=Producer, consume=None, consumer=Consumer
):
    rings = layouts(producers, capacity)
    parties = [
        Pusher(ring, records, patient=patient, producer=producer, name=f"producer {i}") for i, ring in enumerate(rings)
    ]
    parties.append(Popper(rings, records=records, looks=looks, consume=consume, consumer=consumer))
    return Explorer(parties, invariant=check).run()


@pytest.mark.parametrize(("capacity", "records"), [(1, 4), (2, 6), (3, 7)])
def test_a_waiting_producer_loses_nothing(capacity, records):
    explored = explore(capacity=capacity, records=records)
    assert explored.ends > 0


@pytest.mark.parametrize(("capacity", "records", "looks"), [(1, 5, 5), (2, 5, 5)])
def test_a_dropping_producer_and_a_slow_consumer_agree_on_what_is_in(capacity, records, looks):
    explored = explore(capacity=capacity, records=records, looks=looks, patient=False)
    accepted = {local.party.accepted for local in explored.local_ids.values() if isinstance(local.party, Pusher)}
    taken = {local.party.taken[0] for local in explored.local_ids.values() if isinstance(local.party, Popper)}
    assert tuple(range(1, records + 1)) in accepted
    assert tuple(range(1, capacity + 1)) + (records,) in accepted, "a full ring, then room for the last"
    assert {(), tuple(range(1, records + 1))} <= taken


@pytest.mark.parametrize(("capacity", "records"), [(1, 2), (2, 2)])
def test_two_producers_do_not_disturb_each_other(capacity, records):
    explored = explore(capacity=capacity, records=records, producers=2)
    assert explored.ends > 0


def test_full_and_empty():
    (layout,) = layouts(1, 2)
    producer, consumer = Producer(layout), Consumer(layout)
    memory: dict[int, object] = {}
    one = [vector(1, ELEMENTS)]
    assert run(consumer.look(), memory) == 0
    assert [run(producer.push(*one), memory) for _ in range(3)] == [True, True, False]
    assert producer.full()
    assert run(consumer.look(), memory) == 2
    run(consumer.pop(), memory)
    assert producer.full(), "as it was when last looked at"
    assert run(producer.push(*one), memory)
    assert run(consumer.look(), memory) - consumer.tail == 2


def test_rings_side_by_side_and_their_slots_share_no_cache_line():
    for capacity in (1, 2, 5):
        lines = set()
        for ring in layouts(3, capacity):
            starts = [ring.head, ring.tail, *(ring.data(i) for i in range(capacity))]
            sizes = [8, 8, *[ring.record_bytes] * capacity]
            for start, size in zip(starts, sizes, strict=True):
                assert start % CACHE_LINE == 0
                own = set(np.arange(start // CACHE_LINE, (start + size - 1) // CACHE_LINE + 1).tolist())
                assert not own & lines
                assert start + size <= ring.end
                lines |= own


# ----------------------------------------------------------------------------------------------------------------------
# Broken on purpose: the search finds out
# ----------------------------------------------------------------------------------------------------------------------


class IndexBeforeData(Producer):
    def push(self, *parts):
        if self.full():
            yield from self.look()
            if self.full():
                return False
        self.head += 1
        yield Replace(self.layout.head, self.head)
        yield Put(self.layout.data(self.head - 1), np.concatenate(parts))
        return True


class IndexWithData(Producer):
    def push(self, *parts):
        if self.full():
            yield from self.look()
            if self.full():
                return False
        self.head += 1
        data = Put(self.layout.data(self.head - 1), np.concatenate(parts))
        yield data, Replace(self.layout.head, self.head)
        return True


class OneTooMany(Producer):
    def full(self):
        return self.head - self.tail > self.layout.capacity


class NeverFull(Producer):
    def full(self):
        return False


class NextSlot(Producer):
    def push(self, *parts):
        self.head += 1
        pushed = yield from super().push(*parts)
        self.head -= 1
        return pushed


def pops_before_it_reads(consumer, out):
    if consumer.head == consumer.tail:
        yield from consumer.look()
        if consumer.head == consumer.tail:
            return False
    yield from consumer.pop(answer_to(consumer.tail))
    yield Get(consumer.layout.data(consumer.tail - 1), out)
    return True


def pops_while_it_reads(consumer, out):
    yield from consumer.look()
    if consumer.head == consumer.tail:
        return False
    (pop,) = consumer.pop(answer_to(consumer.tail))
    yield Get(consumer.layout.data(consumer.tail - 1), out), pop
    return True


def reads_while_it_looks(consumer, out):
    consumer.head, _ = yield Fetch(consumer.layout.head), Get(consumer.layout.data(consumer.tail), out)
    if consumer.head == consumer.tail:
        return False
    yield from consumer.pop(answer_to(consumer.tail))
    return True


def does_not_look(consumer, out):
    yield Get(consumer.layout.data(consumer.tail), out)
    yield from consumer.pop(answer_to(consumer.tail))
    return True


def reads_and_never_pops(consumer, out):
    yield from consumer.look()
    if consumer.head == consumer.tail:
        return False
    yield Get(consumer.layout.data(consumer.tail), out)
    return True


class AnswersLate(Consumer):
    def pop(self, answer=0):
        self.tail += 1
        yield Replace(self.layout.tail, self.tail << ANSWERS * ANSWER_BITS)
        yield from Consumer(self.layout, self.tail - 1, answers=self.answers).pop(answer)
        self.answers = (self.answers << ANSWER_BITS | answer) % 2 ** (ANSWERS * ANSWER_BITS)


WRONG = "torn|where .* were pushed|do not come to an end"


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize("producer", [IndexBeforeData, IndexWithData, OneTooMany, NeverFull, NextSlot])
def test_a_broken_producer_is_found_out(producer, capacity):
    with pytest.raises(ViolationError, match=WRONG):
        explore(capacity=capacity, records=capacity + 2, producer=producer)


@pytest.mark.parametrize("capacity", [1, 2])
@pytest.mark.parametrize(
    "consume",
    [pops_before_it_reads, pops_while_it_reads, reads_while_it_looks, does_not_look, reads_and_never_pops],
)
def test_a_broken_consumer_is_found_out(consume, capacity):
    with pytest.raises(ViolationError, match=WRONG):
        explore(capacity=capacity, records=capacity + 2, consume=consume)


@pytest.mark.parametrize("capacity", [1, 2])
def test_an_answer_that_comes_after_its_index_is_found_out(capacity):
    with pytest.raises(ViolationError, match="as the answer to record 1"):
        explore(capacity=capacity, records=capacity + 2, consumer=AnswersLate)
