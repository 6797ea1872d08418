"""A window's transfers without MPI: cut, bounded in number, complete after the flush and not before."""

import random
import threading
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

from hpcrl.transport.protocol import WORD, Add, Fetch, FetchMany, Get, Put, Replace
from hpcrl.transport.window import Window, drive

REGION_BYTES, REGIONS, RANKS = 240, 4, 3
WORDS = REGIONS * REGION_BYTES
"""Offset of a region of words behind those of bytes."""


class LazyWin:
    """An MPI window that does nothing before a flush, and then what was begun in any order."""

    def __init__(self, order: random.Random):
        self.memory = [np.zeros(WORDS + REGIONS * WORD, np.uint8) for _ in range(RANKS)]
        self.order, self.begun = order, defaultdict(list)
        self.most = self.longest = 0

    def _begin(self, rank, do):
        self.begun[rank].append(do)
        self.most = max(self.most, len(self.begun[rank]))

    def _place(self, rank, spec):
        offset, nbytes, _ = spec
        self.longest = max(self.longest, nbytes)
        return self.memory[rank][offset : offset + nbytes]

    def Put(self, origin, rank, spec):
        place = self._place(rank, spec)
        self._begin(rank, lambda: place.__setitem__(slice(None), origin[0].view(np.uint8)))

    def Get(self, origin, rank, spec):
        place = self._place(rank, spec)
        self._begin(rank, lambda: origin[0].view(np.uint8).__setitem__(slice(None), place))

    def Fetch_and_op(self, operand, result, rank, offset, op):
        def do():
            word = self.memory[rank][offset : offset + WORD].view(np.int64)
            result[:] = word
            if op in (MPI.REPLACE, MPI.SUM):
                word[:] = operand + (word if op == MPI.SUM else 0)
            else:
                assert op == MPI.NO_OP

        self._begin(rank, do)

    def Get_accumulate(self, _, result, rank, spec, op):
        offset, words, _ = spec
        place = self.memory[rank][offset : offset + words * WORD]
        self._begin(rank, lambda: result[0].view(np.uint8).__setitem__(slice(None), place))

    def Flush(self, rank):
        self.order.shuffle(self.begun[rank])
        for do in self.begun.pop(rank):
            do()

    def Sync(self):
        pass


def lazy_window(order: random.Random, max_requests: int, max_transfer_bytes: int) -> Window:
    """A window of rank 0 over `LazyWin`, made without a communicator."""
    window = object.__new__(Window)
    window.name, window.rank, window.win = "test", 0, LazyWin(order)
    window.local, window._in_flight, window._mapped, window._alone = window.win.memory[0], {}, {}, None
    window.max_requests, window.max_transfer_bytes = max_requests, max_transfer_bytes
    return window


OPERATIONS = st.one_of(
    st.tuples(st.sampled_from(["put", "get"]), st.integers(0, REGION_BYTES)),
    st.tuples(st.sampled_from(["add", "replace"]), st.integers(-(2**40), 2**40)),
    st.tuples(st.sampled_from(["fetch", "fetch many"]), st.integers(1, 1)),
)
STEPS = st.lists(st.dictionaries(st.integers(0, REGIONS - 1), OPERATIONS, min_size=1), max_size=4)
"""operations that are begun together, each on a region of its own"""


class Model:
    """What one rank's memory holds, operation by operation; makes the operations and checks their results."""

    def __init__(self, rng: np.random.Generator):
        self.rng, self.bytes = rng, np.zeros(WORDS, np.uint8)
        self.words = [0] * REGIONS

    def program(self, steps):
        for step in steps:
            operations, checks = zip(*(self.operation(r, *what) for r, what in step.items()), strict=True)
            if len(operations) == 1:
                checks[0]((yield operations[0]))
                continue
            for check, reply in zip(checks, (yield operations), strict=True):
                check(reply)
        return len(steps)

    def operation(self, region, kind, number):
        begin, word = region * REGION_BYTES, WORDS + region * WORD
        if kind == "put":
            data = self.rng.integers(0, 256, number).astype(np.uint8)
            self.bytes[begin : begin + number] = data
            return Put(begin, data), self.is_none
        if kind == "get":
            return self.read(Get, begin, np.zeros(number, np.uint8), self.bytes[begin : begin + number].copy())
        old = self.words[region]
        if kind == "fetch many":
            return self.read(FetchMany, word, np.zeros(1, np.int64), np.array([old]))
        if kind == "fetch":
            return Fetch(word), lambda reply: self.is_equal(reply, old)
        self.words[region] = old + number if kind == "add" else number
        return (Add if kind == "add" else Replace)(word, number), lambda reply: self.is_equal(reply, old)

    def read(self, kind, offset, out, expected):
        def check(reply):
            self.is_none(reply)
            np.testing.assert_array_equal(out, expected)

        return kind(offset, out), check

    def is_none(self, reply):
        assert reply is None

    def is_equal(self, reply, expected):
        assert reply == expected


@settings(deadline=None)
@given(
    max_requests=st.integers(1, 6),
    max_transfer_bytes=st.integers(1, 300),
    steps=st.lists(STEPS, min_size=RANKS, max_size=RANKS),
    seed=st.integers(0, 2**32),
)
def test_programs_side_by_side_are_exact_and_within_the_bounds(max_requests, max_transfer_bytes, steps, seed):
    window = lazy_window(random.Random(seed), max_requests, max_transfer_bytes)
    rng = np.random.default_rng(seed)
    models = [Model(rng) for _ in range(RANKS)]
    programs = [(rank, models[rank].program(steps[rank])) for rank in range(RANKS)]
    assert drive(window, programs) == [len(s) for s in steps]
    for memory, model in zip(window.win.memory, models, strict=True):
        np.testing.assert_array_equal(memory[:WORDS], model.bytes)
        assert memory[WORDS:].view(np.int64).tolist() == model.words
    assert window.win.most <= max_requests
    assert window.win.longest <= max_transfer_bytes
    assert not window.win.begun


@settings(deadline=None)
@given(steps=STEPS, seed=st.integers(0, 2**32))
def test_the_only_rank_there_is_does_everything_itself(steps, seed):
    window, model = Window(MPI.COMM_SELF, WORDS + REGIONS * WORD, name="alone"), Model(np.random.default_rng(seed))
    win, window.win = window.win, LazyWin(random.Random(seed))
    assert drive(window, [(0, model.program(steps))]) == [len(steps)]
    np.testing.assert_array_equal(window.local[:WORDS], model.bytes)
    assert window.local[WORDS:].view(np.int64).tolist() == model.words
    assert window.win.most == 0, "MPI was asked"
    window.win = win
    window.free()


def test_threads_of_the_only_rank_add_exactly():
    window = Window(MPI.COMM_SELF, WORD, name="alone")
    seen = [[], []]
    add = Add(0, 1)
    adds = [threading.Thread(target=lambda s=s: s.extend(window.word(add, 0) for _ in range(20_000))) for s in seen]
    for thread in adds:
        thread.start()
    for thread in adds:
        thread.join()
    assert sorted(seen[0] + seen[1]) == list(range(40_000))
    window.free()


def test_a_transfer_is_cut_into_as_few_as_the_limit_allows():
    window = lazy_window(random.Random(0), 64, 100)
    window.start(Put(0, np.ones(201, np.uint8)), 1)
    assert len(window.win.begun[1]) == 3
    assert not window.win.memory[1].any(), "nothing has happened yet"
    window.flush(1)
    assert window.win.memory[1].sum() == 201


def test_nothing_is_flushed_where_nothing_was_begun():
    window = lazy_window(random.Random(0), 4, 100)
    window.win.Flush = None
    window.flush(1)
    window.start(Put(0, np.ones(8, np.uint8)), 0)
    window.flush(0)
    assert window.local[:8].all(), "own memory is written at once"


def test_a_buffer_with_gaps_is_refused():
    window = lazy_window(random.Random(0), 4, 100)
    with pytest.raises(ValueError, match="contiguous"):
        window.start(Get(0, np.zeros((4, 4))[:, 1]), 1)
