"""Rings of records, in every interleaving of producers and their consumer."""

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
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


class TightLayout(RingLayout):
    """Records without gaps, so that the search has fewer steps."""

    @property
    def slot_bytes(self):
        return self.record_bytes


class Pusher(Party):
    """Pushes records 1, 2, …, each but once or, if ``patient``, until it is in; several at once if ``batch``."""

    def __init__(self, layout, records, *, patient, producer=Producer, name="producer", batch=0):
        self.name, self.records, self.patient, self.next, self.batch = name, records, patient, 1, batch
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
        if self.batch:
            numbers = np.arange(self.next, min(self.next + self.batch, self.records + 1))
            return self.producer.push_many(np.repeat(numbers, self.producer.layout.record_bytes // 8))
        return self.producer.push(vector(self.next, 1), vector(self.next, ELEMENTS - 1))

    def finished(self, result):
        pushed = int(result)
        self.accepted += tuple(range(self.next, self.next + pushed))
        self.next += pushed if self.patient else max(1, self.batch)
        for index in range(max(self.answered, self.producer.tail - ANSWERS), self.producer.tail):
            expected = 0 if self.batch else answer_to(index)
            if self.producer.answer(index) != expected:
                raise ViolationError(f"{self.name} got {self.producer.answer(index)} as the answer to record {index}")
        self.answered = self.producer.tail


class Popper(Party):
    """Takes records of its rings in turn, at most ``looks`` looks at each (None: until ``records`` are there)."""

    def __init__(self, layouts, *, records=None, looks=None, consume=None, consumer=Consumer, name="consumer"):
        self.name, self.records, self.looks, self.consume = name, records, looks, consume or take_oldest
        self.consumers = [consumer(layout) for layout in layouts]
        self.taken, self.turn = ((),) * len(layouts), 0
        self.elements = layouts[0].record_bytes // 8
        self.out = vector(-1, self.elements * layouts[0].capacity)

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
        records = self.out.reshape(-1, self.elements)[: int(result)]
        if (records != records[:, :1]).any():
            raise ViolationError(f"{self.name} got a torn record {records.tolist()}")
        values = tuple(records[:, 0].tolist())
        self.taken = tuple(t + values if i == self.turn else t for i, t in enumerate(self.taken))
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
    yield Get(consumer.layout.data(consumer.tail), out[:ELEMENTS])
    yield from consumer.pop(answer_to(consumer.tail))
    return True


def take_side_by_side(consumer, out):
    """The same with all records up to where the ring wraps."""
    if consumer.head == consumer.tail:
        yield from consumer.look()
    count = consumer.side_by_side()
    if count:
        yield Get(consumer.layout.data(consumer.tail), out[: count * consumer.layout.record_bytes // 8])
        yield from consumer.pop(count=count)
    return count


def check(explorer: Explorer, state: State) -> None:
    """What was taken is what was pushed, in order; and nobody waits for one that has stopped."""
    *pushers, popper = (local.party for local in state.locals)
    for pusher, taken in zip(pushers, popper.taken, strict=True):
        on_the_way = range(pusher.next, pusher.next + max(1, pusher.batch))
        pushed = (*pusher.accepted, *on_the_way)
        if taken != pushed[: len(taken)]:
            raise ViolationError(f"{popper.name} got {taken} where {pushed} were pushed")
    for who, local in enumerate(state.locals):
        if not local.done and local.replies:  # inside a program: it returns, whatever the others do
            explorer.solo(state, who, lambda party: True, longest=4 + 2 * popper.out.size)
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


@pytest.mark.parametrize(
    ("capacity", "records", "batch", "patient"), [(3, 7, 2, True), (2, 6, 3, True), (3, 6, 2, False), (2, 6, 3, False)]
)
def test_records_pushed_and_taken_many_at_once_are_those_one_by_one(capacity, records, batch, patient):
    layout = TightLayout(CACHE_LINE, capacity, vector(0, 1).nbytes)
    pusher = Pusher(layout, records, patient=patient, batch=batch)
    limits = {"records": records} if patient else {"looks": 4}
    explored = Explorer([pusher, Popper([layout], consume=take_side_by_side, **limits)], invariant=check).run()
    taken = {local.party.taken[0] for local in explored.local_ids.values() if isinstance(local.party, Popper)}
    fits = [n for n in range(1, records + 1) if (n - 1) % batch < capacity]  # of each batch, where it finds a free ring
    assert tuple(range(1, records + 1) if patient else fits) in taken
    assert explored.ends > 0


class IndexBeforeManyRecords(Producer):
    def push_many(self, records):
        yield from self.look()
        taken = min(self.room(), len(records))
        if taken:
            yield Replace(self.layout.head, self.head + taken)
            yield Put(self.layout.data(self.head), records[:taken])
            self.head += taken
        return taken


class DoesNotWrap(Producer):
    def push_many(self, records):
        yield from self.look()
        taken = min(self.room(), len(records))
        if taken:
            yield Put(self.layout.data(self.head), records[:taken])
            self.head += taken
            yield Replace(self.layout.head, self.head)
        return taken


class FillsOneTooMany(Producer):
    def room(self):
        return super().room() + 1


@pytest.mark.parametrize("producer", [IndexBeforeManyRecords, DoesNotWrap, FillsOneTooMany])
def test_a_producer_that_is_broken_with_many_at_once_is_found_out(producer):
    layout = TightLayout(CACHE_LINE, 3, vector(0, 1).nbytes)
    parties = [Pusher(layout, 6, patient=True, batch=2, producer=producer)]
    parties.append(Popper([layout], records=6, consume=take_side_by_side))
    with pytest.raises(ViolationError, match=WRONG):
        Explorer(parties, invariant=check).run()


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
    assert not producer.room()
    assert run(consumer.look(), memory) == 2
    run(consumer.pop(), memory)
    assert not producer.room(), "as it was when last looked at"
    assert run(producer.push(*one), memory)
    assert run(consumer.look(), memory) - consumer.tail == 2


@settings(deadline=None)
@given(
    capacity=st.integers(1, 9),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.just(1)),
            st.tuples(st.just("push many"), st.integers(0, 20)),
            st.tuples(st.just("push what has room"), st.integers(0, 20)),
            st.tuples(st.just("take"), st.integers(1, 12)),
        ),
        max_size=60,
    ),
)
def test_any_sequence_of_operations_does_what_a_queue_of_that_length_does(capacity, steps):
    layout = TightLayout(CACHE_LINE, capacity, vector(0, 2).nbytes)
    producer, consumer, memory = Producer(layout), Consumer(layout), {}
    queue, number, dropped, expected_drops = deque(), 0, 0, 0
    for what, count in steps:
        records = np.repeat(np.arange(number, number + count), 2)
        room = capacity - len(queue)
        if what == "push":
            dropped += not run(producer.push(records[:1], records[1:]), memory)
        elif what == "push many":
            dropped += count - run(producer.push_many(records.reshape(count, 2)), memory)
        elif what == "push what has room":
            run(producer.look(), memory)
            assert producer.room() == room
            count = min(count, room)
            assert run(producer.push_many(records.reshape(-1, 2)[:count]), memory) == count
        else:
            assert run(consumer.look(), memory) - consumer.tail == len(queue)
            count, out = min(count, consumer.side_by_side()), vector(-1, 2 * capacity)
            assert (count > 0) == bool(queue)
            run(reading(layout, consumer.tail, out[: 2 * count]), memory)
            run(consumer.pop(count=count), memory)
            assert out[: 2 * count].tolist() == [element for _ in range(count) for element in [queue.popleft()] * 2]
            continue
        queue.extend(range(number, number + min(count, room)))
        expected_drops += max(0, count - room)
        number += count
        assert dropped == expected_drops
    assert number == producer.head + dropped


def reading(layout, index, out):
    yield Get(layout.data(index), out)


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
        if not self.room():
            yield from self.look()
            if not self.room():
                return False
        self.head += 1
        yield Replace(self.layout.head, self.head)
        yield Put(self.layout.data(self.head - 1), np.concatenate(parts))
        return True


class IndexWithData(Producer):
    def push(self, *parts):
        if not self.room():
            yield from self.look()
            if not self.room():
                return False
        self.head += 1
        data = Put(self.layout.data(self.head - 1), np.concatenate(parts))
        yield data, Replace(self.layout.head, self.head)
        return True


class OneTooMany(Producer):
    def room(self):
        return super().room() + 1


class NeverFull(Producer):
    def room(self):
        return 1


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
    yield Get(consumer.layout.data(consumer.tail - 1), out[:ELEMENTS])
    return True


def pops_while_it_reads(consumer, out):
    yield from consumer.look()
    if consumer.head == consumer.tail:
        return False
    (pop,) = consumer.pop(answer_to(consumer.tail))
    yield Get(consumer.layout.data(consumer.tail - 1), out[:ELEMENTS]), pop
    return True


def reads_while_it_looks(consumer, out):
    consumer.head, _ = yield Fetch(consumer.layout.head), Get(consumer.layout.data(consumer.tail), out[:ELEMENTS])
    if consumer.head == consumer.tail:
        return False
    yield from consumer.pop(answer_to(consumer.tail))
    return True


def does_not_look(consumer, out):
    yield Get(consumer.layout.data(consumer.tail), out[:ELEMENTS])
    yield from consumer.pop(answer_to(consumer.tail))
    return True


def reads_and_never_pops(consumer, out):
    yield from consumer.look()
    if consumer.head == consumer.tail:
        return False
    yield Get(consumer.layout.data(consumer.tail), out[:ELEMENTS])
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
