"""Prioritised replay: how often what is drawn while data and priorities change, and what weights make of it."""

from collections import Counter

import numpy as np
import pytest
from slow_replay import LIFE_LOST, STEP, TERMINATE, TRUNCATE, Writer, drawable, transition

from hpcrl.replay import local_lanes
from hpcrl.replay.lanes import OLDEST_MARGIN_RECORDS
from hpcrl.replay.priorities import local_table
from hpcrl.replay.prioritized import PrioritizedReplay

DISCOUNT, CLIP, ALPHA = 0.9, 2.0, 0.7
CAPACITY, STACK, N_STEP, LANES = 300, 2, 2, 3
EVENTS = (STEP, STEP, LIFE_LOST, STEP, TERMINATE, STEP, STEP, TRUNCATE)


class Played:
    """A memory that is written, gets priorities for what may be drawn, and is sampled."""

    def __init__(self, beta=0.5, alpha=ALPHA, source=lambda table: table):
        lanes = local_lanes(LANES, (3,), np.int32, capacity=CAPACITY, stack=STACK, n_step=N_STEP)
        self.writer, self.rng, self.t = Writer(lanes), np.random.default_rng(0), 0
        self.table, self.set = local_table(lanes, alpha)
        self.replay = PrioritizedReplay(
            lanes,
            n_step=N_STEP,
            discount=DISCOUNT,
            reward_clip=CLIP,
            priorities=source(self.table),
            set_priorities=self.set,
            beta=lambda: beta,
        )
        self.known: dict[tuple[int, int], float] = {}

    def valid(self) -> set[tuple[int, int]]:
        limits = {"capacity": CAPACITY, "stack": STACK, "n_step": N_STEP, "margin": OLDEST_MARGIN_RECORDS}
        return {(k, i) for k, records in enumerate(self.writer.records) for i in drawable(records, **limits)}

    def play(self, steps: int) -> None:
        """Write; what may now be drawn gets its first priority."""
        for _ in range(steps):
            self.writer.step({lane: EVENTS[(self.t + 3 * lane) % len(EVENTS)] for lane in range(LANES)})
            self.t += 1
        valid = self.valid()
        new = sorted(valid - self.known.keys())
        self.known = {place: error for place, error in self.known.items() if place in valid}
        self.prioritize(new)

    def prioritize(self, places) -> None:
        errors = self.rng.exponential(size=len(places)) ** 2
        self.set(*np.array(places).T, errors)
        self.known.update(zip(places, errors, strict=True))

    def probabilities(self) -> dict[tuple[int, int], float]:
        raised = {place: (error + 1e-6) ** ALPHA for place, error in self.known.items()}
        total = sum(raised.values())
        return {place: priority / total for place, priority in raised.items()}


def chi_square(observed, expected) -> float:
    """Standard score of Pearson's statistic; bins with little to expect are put together."""
    keys = sorted(expected, key=expected.get)
    bins, o, e = [], 0.0, 0.0
    for key in keys:
        o, e = o + observed.get(key, 0), e + expected[key]
        if e >= 20:
            bins.append((o, e))
            o = e = 0.0
    statistic = sum((o - e) ** 2 / e for o, e in bins)
    return (statistic - (len(bins) - 1)) / np.sqrt(2 * (len(bins) - 1))


def test_draws_follow_the_priorities_while_data_is_overwritten_and_priorities_change():
    memory = Played()
    memory.play(250)
    observed, expected, rng = Counter(), Counter(), np.random.default_rng(1)
    for _ in range(60):
        memory.play(7)
        places = sorted(memory.known)
        memory.prioritize([places[k] for k in rng.choice(len(places), 40, replace=False)])
        batch = memory.replay.sample(1000, rng)
        observed.update(map(tuple, batch.place.tolist()))
        for place, probability in memory.probabilities().items():
            expected[place] += 1000 * probability
    assert observed.keys() <= expected.keys()
    assert len(memory.writer.records[0]) > 2 * CAPACITY
    assert abs(chi_square(observed, expected)) < 4


def test_the_score_of_a_wrong_distribution_is_far_off():
    memory = Played(alpha=0.0)
    memory.play(200)
    batch = memory.replay.sample(60_000, np.random.default_rng(1))
    expected = {place: 60_000 * p for place, p in memory.probabilities().items()}
    assert chi_square(Counter(map(tuple, batch.place.tolist())), expected) > 50


def test_samples_are_the_transitions_that_they_say_with_weights_of_their_probabilities():
    memory = Played(beta=0.6)
    memory.play(400)
    batch = memory.replay.sample(300, np.random.default_rng(2))
    p = memory.probabilities()
    for row, (lane, i) in enumerate(batch.place.tolist()):
        expected = transition(memory.writer.records[lane], i, stack=STACK, n_step=N_STEP, discount=DISCOUNT, clip=CLIP)
        assert batch.s_tm1[row].tolist() == expected.s_tm1
        assert batch.s_t[row].tolist() == expected.s_t
        assert batch.r_t[row] == pytest.approx(expected.r_t, rel=1e-6)
    drawn = np.array([p[tuple(place)] for place in batch.place.tolist()])
    np.testing.assert_allclose(batch.weight, (drawn.min() / drawn) ** 0.6, rtol=1e-5)
    assert batch.weight.dtype == np.float32
    assert memory.replay.mean_priority == pytest.approx(memory.table.block_sums.sum() / len(memory.replay))


class Moving:
    """Priorities that are written again between the two steps of a draw, as by another rank."""

    def __init__(self, table):
        self.table, self.race = table, lambda: None

    def sums(self):
        seen = self.table.sums().copy()
        self.race()
        return seen

    def slots(self, blocks):
        return self.table.slots(blocks)


def test_stale_sums_leave_no_bias():
    """Each transition counts 1 over the probability of its draw: all come to the same, whatever was read when."""
    memory = Played(source=Moving, beta=1.0)
    memory.play(250)
    places = sorted(memory.known)
    sums, draws, rng = Counter(), 0, np.random.default_rng(3)
    memory.replay._priorities.race = lambda: memory.prioritize(
        [places[k] for k in rng.choice(len(places), 200, replace=False)]
    )
    for _ in range(400):
        draw = memory.replay._propose(500, rng)
        draws += 500
        for place, p in zip(zip(draw.lane.tolist(), draw.index.tolist(), strict=True), draw.probability, strict=True):
            sums[place] += 1 / p
    assert sums.keys() == set(places)
    found = np.array([sums[place] for place in places]) / draws  # each has an expectation of 1
    lanes = np.array([lane for lane, _ in places])
    for lane in range(LANES):
        assert found[lanes == lane].mean() == pytest.approx(1.0, abs=0.1)


def test_learning_changes_priorities_and_what_is_gone_is_dropped_and_counted():
    memory = Played()
    memory.play(100)
    batch = memory.replay.sample(32, np.random.default_rng(0))
    memory.replay.update(batch, np.full(32, 1e6, np.float32))
    again = memory.replay.sample(500, np.random.default_rng(0))
    assert {tuple(place) for place in again.place.tolist()} <= {tuple(place) for place in batch.place.tolist()}
    assert memory.table.dropped == 0
    memory.play(CAPACITY)
    memory.replay.update(batch, np.ones(32, np.float32))
    assert memory.table.dropped == 32


def test_nothing_is_drawn_before_there_are_priorities():
    memory = Played()
    rng = np.random.default_rng(0)
    assert memory.replay.sample(4, rng) is None
    for _ in range(10):
        memory.writer.step({0: STEP})
    assert memory.replay.sample(4, rng) is None
    memory.set(np.array([0]), np.array([3]), np.array([0.1]))
    assert set(map(tuple, memory.replay.sample(4, rng).place.tolist())) == {(0, 3)}


def test_a_priority_that_its_owner_is_late_to_take_back():
    """It leads to nothing until the record in its place may be drawn, and then to that one, whole."""
    memory, rng = Played(), np.random.default_rng(0)
    for _ in range(CAPACITY - 10):
        memory.writer.step({0: STEP, 1: STEP})
    memory.set(np.array([0, 1]), np.array([5, 200]), np.array([9.0, 1.0]))
    for _ in range(10 + 5 + 1 + N_STEP):
        memory.writer.step({0: STEP})
        batch = memory.replay.sample(50, rng)
        drawn = set(map(tuple, batch.place.tolist()))
        written = len(memory.writer.records[0])
        low = max(0, written - CAPACITY + OLDEST_MARGIN_RECORDS + STACK - 1)
        may_be = {(0, i) for i in (5, CAPACITY + 5) if (low <= i or written <= CAPACITY - 2) and i < written - N_STEP}
        assert drawn == {(1, 200)} | may_be
        for row, (lane, i) in enumerate(batch.place.tolist()):
            assert memory.writer.index_of(batch.s_tm1[row, -1]) == (lane, i)
