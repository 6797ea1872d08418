"""Priorities of slots, against a dictionary; and the first priorities of new data, against the slow replay."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_replay import LIFE_LOST, STEP, TERMINATE, TRUNCATE, Writer, transition

from hpcrl.replay import local_lanes
from hpcrl.replay.newcomers import Newcomers
from hpcrl.replay.priorities import BLOCK_SLOTS, PRIORITY_FLOOR, PriorityTable, blocks_per_lane

DISCOUNT, CLIP = 0.9, 2.0


def table(num_lanes=2, capacity=20, stack=2, alpha=1.0):
    blocks = num_lanes * blocks_per_lane(capacity)
    values, sums = np.zeros((blocks, BLOCK_SLOTS)), np.zeros(blocks)
    return PriorityTable(values, sums, num_lanes=num_lanes, capacity=capacity, stack=stack, alpha=alpha)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), capacity=st.sampled_from([20, BLOCK_SLOTS, BLOCK_SLOTS + 1, 3 * BLOCK_SLOTS - 7]))
def test_a_table_equals_a_dictionary(data, capacity):
    stack, alpha, num_lanes = 3, 0.7, 2
    priorities, model, dropped = table(num_lanes, capacity, stack, alpha), {}, 0
    reserved, low = np.zeros(num_lanes, np.int64), np.zeros(num_lanes, np.int64)
    for _ in range(data.draw(st.integers(1, 12))):
        reserved += data.draw(st.lists(st.integers(0, capacity), min_size=num_lanes, max_size=num_lanes))
        priorities.forget(reserved)
        low = np.where(reserved > capacity - 2, reserved - (capacity - 2) + stack - 1, 0)
        for lane in range(num_lanes):
            model = {(k, i): p for (k, i), p in model.items() if k != lane or i >= low[lane]}
        wanted = data.draw(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2 * capacity), st.floats(-9, 9))))
        wanted = [(k, reserved[k] - 1 - i, d) for k, i, d in wanted if reserved[k] - 1 - i >= 0]
        if not wanted:
            continue
        lane, index, delta = (np.array(column) for column in zip(*wanted, strict=True))
        priorities.set(lane, index, delta)
        for k, i, d in wanted:
            dropped += i < low[k]
            if i >= low[k]:
                model[k, i] = (abs(d) + PRIORITY_FLOOR) ** alpha
    found = {}
    flat = priorities.values.reshape(num_lanes, -1)
    for lane, slot in zip(*np.nonzero(flat), strict=True):
        assert slot < capacity
        newest = reserved[lane] - 1
        found[lane, newest - (newest - slot) % capacity] = flat[lane, slot]
    assert found.keys() == model.keys()
    assert all(found[place] == pytest.approx(priority) for place, priority in model.items())
    np.testing.assert_array_equal(priorities.block_sums, priorities.values.sum(axis=1))
    assert priorities.dropped == dropped


@pytest.mark.parametrize("operations", [50_000, pytest.param(3_000_000, marks=pytest.mark.long)])
def test_sums_do_not_drift(operations):
    """Random errors over sixteen orders of magnitude, and records overwritten meanwhile, against brute force."""
    num_lanes, capacity, stack, batch = 3, 4 * BLOCK_SLOTS - 5, 3, 500
    priorities, rng = table(num_lanes, capacity, stack), np.random.default_rng(0)
    expected = np.zeros((num_lanes, capacity))
    owner = np.full((num_lanes, capacity), -1)
    reserved = np.full(num_lanes, capacity)
    for _ in range(operations // batch):
        reserved += rng.integers(40, size=num_lanes)
        priorities.forget(reserved)
        low = reserved - (capacity - 2) + stack - 1
        expected[owner < low[:, None]] = 0
        lane = rng.integers(num_lanes, size=batch)
        index = rng.integers(low[lane], reserved[lane])
        delta = 10 ** rng.uniform(-8, 8, batch)
        priorities.set(lane, index, delta)
        for k, i, d in zip(lane, index, delta, strict=True):
            expected[k, i % capacity], owner[k, i % capacity] = d + PRIORITY_FLOOR, i
    np.testing.assert_array_equal(priorities.by_slot(), expected)
    padded = np.zeros((num_lanes, blocks_per_lane(capacity) * BLOCK_SLOTS))
    padded[:, :capacity] = expected
    np.testing.assert_allclose(priorities.block_sums, padded.reshape(-1, BLOCK_SLOTS).sum(axis=1), rtol=1e-13)
    assert priorities.dropped == 0


def test_what_has_no_error_gets_the_highest_priority_so_far():
    priorities = table(alpha=0.5)
    place = np.zeros(3, np.int64), np.arange(3)
    priorities.set(*place, np.array([np.nan, 4.0, np.inf]))
    np.testing.assert_allclose(priorities.values[0, :3], [2, 2, 2], rtol=1e-6)
    priorities.set(*place, np.array([0.25, 0.0, np.nan]))
    np.testing.assert_allclose(priorities.values[0, :3], [0.5, np.sqrt(PRIORITY_FLOOR), 2], rtol=1e-5)


def test_an_error_of_zero_can_still_be_drawn():
    priorities = table(alpha=1.0)
    priorities.set(np.array([0]), np.array([0]), np.array([0.0]))
    assert priorities.block_sums[0] > 0


class Following(Writer):
    """A writer whose records `Newcomers` follow; the values of a frame follow from its numbers."""

    def __init__(self, lanes, n_step, known):
        super().__init__(lanes)
        self.given, self.known = {}, known
        self.newcomers = Newcomers(
            np.arange(lanes.num_lanes),
            np.zeros(lanes.num_lanes, np.int64),
            n_step=n_step,
            discount=DISCOUNT,
            reward_clip=CLIP,
            set_priorities=self._take,
        )

    def _take(self, lane, index, delta):
        for place, error in zip(zip(lane.tolist(), index.tolist(), strict=True), delta.tolist(), strict=True):
            assert place not in self.given, "given twice"
            self.given[place] = error

    def _append(self, lanes, rows):
        super()._append(lanes, rows)
        q = np.array([values(row.frame) for row in rows], np.float32)
        columns = (np.array([getattr(row, name) for row in rows]) for name in ("reward", "terminated", "truncated"))
        actions = np.array([row.action % 4 for row in rows])
        self.newcomers.append(np.array(lanes), q if self.known else None, actions, *columns)

    def step(self, events):
        super().step(events)
        over = [lane for lane, event in events.items() if event in (TERMINATE, TRUNCATE)]
        if over:
            self.newcomers.append_final(np.array(over))


def values(frame):
    return [frame[0] + 0.5 * frame[1] - (k - 1) * frame[2] for k in range(4)]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n_step=st.integers(1, 4), known=st.booleans())
def test_new_data_gets_the_actors_own_error_as_soon_as_its_steps_are_over(data, n_step, known):
    lanes = local_lanes(2, (3,), np.int32, capacity=200, stack=1, n_step=n_step)
    writer = Following(lanes, n_step, known)
    event = st.sampled_from([STEP, STEP, STEP, LIFE_LOST, TERMINATE, TRUNCATE])
    for events in data.draw(st.lists(st.dictionaries(st.integers(0, 1), event, min_size=1), max_size=30)):
        writer.step(events)
    expected = {}
    for lane, records in enumerate(writer.records):
        for i in range(len(records) - n_step):
            if not records[i].final:
                t = transition(records, i, stack=1, n_step=n_step, discount=DISCOUNT, clip=CLIP)
                ended = any(record.final and record.frame == tuple(t.s_t[-1]) for record in records[i : i + n_step + 1])
                best = max(values(t.s_t[-1])) if not (ended and t.discount_t) else np.nan
                bootstrap = t.discount_t * best if t.discount_t else 0
                expected[lane, i] = t.r_t + bootstrap - values(records[i].frame)[records[i].action % 4]
    assert writer.given.keys() == expected.keys()
    for place, error in expected.items():
        error = error if known else np.nan  # which stands for the highest so far
        assert writer.given[place] == pytest.approx(error, rel=1e-4, abs=1e-4, nan_ok=True)
