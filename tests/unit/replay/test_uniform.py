"""Uniform replay against a slow replay made of lists, against hand-made tables, and against a racing writer."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_replay import LIFE_LOST, STEP, TERMINATE, TRUNCATE, Writer, drawable, transition

from hpcrl.replay import Lanes, LocalCursors, UniformReplay, local_lanes, record_dtype
from hpcrl.replay.lanes import OLDEST_MARGIN_RECORDS

DISCOUNT, CLIP = 0.9, 2.0
EVENTS = st.sampled_from([STEP, STEP, STEP, LIFE_LOST, TERMINATE, TRUNCATE])


def make(*, num_lanes=1, capacity=30, stack=2, n_step=1):
    lanes = local_lanes(num_lanes, (3,), np.int32, capacity=capacity, stack=stack, n_step=n_step)
    return Writer(lanes), UniformReplay(lanes, n_step=n_step, discount=DISCOUNT, reward_clip=CLIP)


def assert_matches(writer, batch, stack, n_step):
    """Every row is the slow replay's transition of the index that its newest frame names."""
    for row in range(len(batch.a_tm1)):
        lane, i = writer.index_of(batch.s_tm1[row, -1])
        expected = transition(writer.records[lane], i, stack=stack, n_step=n_step, discount=DISCOUNT, clip=CLIP)
        assert batch.s_tm1[row].tolist() == expected.s_tm1
        assert batch.a_tm1[row] == expected.a_tm1
        assert batch.r_t[row] == pytest.approx(expected.r_t, rel=1e-6, abs=1e-6)
        assert batch.discount_t[row] == pytest.approx(expected.discount_t, rel=1e-6)
        assert batch.s_t[row].tolist() == expected.s_t


@settings(max_examples=80, deadline=None)
@given(data=st.data(), num_lanes=st.integers(1, 3), stack=st.integers(1, 4), n_step=st.integers(1, 4))
def test_samples_equal_the_slow_replay(data, num_lanes, stack, n_step):
    capacity = 2 * (stack + n_step) + 4 + data.draw(st.integers(0, 9))
    writer, replay = make(num_lanes=num_lanes, capacity=capacity, stack=stack, n_step=n_step)
    step = st.dictionaries(st.integers(0, num_lanes - 1), EVENTS, min_size=1)
    for events in data.draw(st.lists(step, min_size=1, max_size=60)):
        writer.step(events)
    limits = {"capacity": capacity, "stack": stack, "n_step": n_step, "margin": OLDEST_MARGIN_RECORDS}
    valid = {(lane, i) for lane, records in enumerate(writer.records) for i in drawable(records, **limits)}
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    if not valid:
        assert replay.sample(1, rng) is None
        return
    batch = replay.sample(40, rng)
    assert_matches(writer, batch, stack, n_step)
    assert {writer.index_of(frames[-1]) for frames in batch.s_tm1} <= valid
    finals = sum(record.final for records in writer.records for record in records)
    assert len(valid) <= len(replay) <= len(valid) + finals
    assert writer.lanes.check_valid() == (True, "")  # zeroing before an episode touches the copy alone


def test_types_and_shapes():
    lanes = local_lanes(2, (6, 6), np.uint8, capacity=20, stack=4, n_step=1)
    for t in range(12):
        frame = np.full((2, 6, 6), t, np.uint8)
        zeros = np.zeros(2, bool)
        lanes.append(np.arange(2), frame, np.array([t, t]), np.ones(2, np.float32), zeros, zeros, zeros | (t == 0))
    batch = UniformReplay(lanes, n_step=1, discount=0.99, reward_clip=None).sample(5, np.random.default_rng(0))
    assert batch.s_tm1.shape == batch.s_t.shape == (5, 4, 6, 6)
    assert batch.s_tm1.dtype == batch.s_t.dtype == np.uint8
    assert (batch.a_tm1.dtype, batch.r_t.dtype, batch.discount_t.dtype) == (np.int64, np.float32, np.float32)


def test_every_transition_is_drawn_equally_often():
    """Chi-square over all valid indices of lanes of unequal length, finals among them rejected."""
    writer, replay = make(num_lanes=3, capacity=40, stack=3, n_step=2)
    for t in range(70):
        events = {lane: STEP for lane in range(3) if lane < 2 or t < 20}
        events[0] = (STEP, STEP, STEP, TERMINATE)[t % 4]
        writer.step(events)
    limits = {"capacity": 40, "stack": 3, "n_step": 2, "margin": OLDEST_MARGIN_RECORDS}
    valid = {(lane, i) for lane, records in enumerate(writer.records) for i in drawable(records, **limits)}
    draws = 40_000
    batch = replay.sample(draws, np.random.default_rng(5))
    names, counts = np.unique(batch.s_tm1[:, -1], axis=0, return_counts=True)
    assert {writer.index_of(name) for name in names} == valid
    expected = draws / len(valid)
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    freedom = len(valid) - 1
    assert chi_square < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("n_step", [1, 3])
def test_a_truncated_episode_bootstraps_from_its_final_frame(n_step):
    writer, replay = make(stack=1, n_step=n_step)
    for event in (STEP, STEP, TRUNCATE, STEP, STEP, STEP, STEP):
        writer.step({0: event})
    batch = replay.sample(300, np.random.default_rng(0))
    last = [tuple(frame) == (1, 1, 3) for frame in batch.s_tm1[:, -1]]
    assert any(last)
    np.testing.assert_array_equal(batch.s_t[last][:, 0], np.tile([1, 1, 4], (sum(last), 1)))
    np.testing.assert_allclose(batch.discount_t[last], DISCOUNT)


def test_three_step_returns_by_hand():
    """Rewards 1, 5 (clipped to 2), -1, then the end: n-step sums stop there."""
    lanes = local_lanes(1, (1,), np.int32, capacity=20, stack=1, n_step=3)
    lane, no, yes = np.array([0]), np.array([False]), np.array([True])
    for t, (reward, terminated, first) in enumerate([(1, no, yes), (5, no, no), (-1, yes, no)]):
        reward = np.array([reward], np.float32)
        lanes.append(lane, np.array([[t + 1]]), np.array([t]), reward, terminated, no, first)
    lanes.append_final(lane, np.array([[4]]))
    for t in range(4):
        lanes.append(lane, np.array([[10 + t]]), np.array([9]), np.float32([100]), no, no, np.array([t == 0]))
    replay = UniformReplay(lanes, n_step=3, discount=0.5, reward_clip=2.0)
    batch = replay.sample(200, np.random.default_rng(0))
    drawn = Counter(
        zip(
            batch.s_tm1.ravel().tolist(),
            batch.a_tm1.tolist(),
            batch.r_t.tolist(),
            batch.discount_t.tolist(),
            batch.s_t.ravel().tolist(),
            strict=True,
        )
    )
    assert set(drawn) == {
        (1, 0, 1 + 0.5 * 2 - 0.25, 0.0, 4),
        (2, 1, 2 - 0.5, 0.0, 4),
        (3, 2, -1.0, 0.0, 4),
        (10, 9, 2 + 1 + 0.5, 0.125, 13),
    }


def test_rewards_are_raw_without_a_clip():
    writer, _ = make()
    for _ in range(10):
        writer.step({0: STEP})
    replay = UniformReplay(writer.lanes, n_step=1, discount=1.0, reward_clip=None)
    assert set(replay.sample(200, np.random.default_rng(0)).r_t.tolist()) == {-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0}


def test_n_step_longer_than_that_of_the_lanes_is_refused():
    lanes = local_lanes(1, (3,), np.int32, capacity=20, stack=1, n_step=2)
    with pytest.raises(ValueError, match="from 1 to 2"):
        UniformReplay(lanes, n_step=3, discount=0.9, reward_clip=None)


class RacingCursors(LocalCursors):
    """A writer in another rank that acts each time the reader has looked and before it copies."""

    race = staticmethod(lambda: None)

    def look(self):
        seen = self.reserved().copy(), self.committed().copy()
        self.race()
        return seen


@pytest.mark.parametrize("n_step", [1, 3])
def test_samples_overwritten_during_the_copy_are_drawn_again_and_counted(n_step):
    stack, capacity = 2, 24
    cursors = RacingCursors(2)
    memory = np.zeros((2, capacity + stack + n_step), record_dtype((3,), np.int32))
    writer = Writer(Lanes(memory, cursors, capacity=capacity, stack=stack, n_step=n_step))
    replay = UniformReplay(writer.lanes, n_step=n_step, discount=DISCOUNT, reward_clip=CLIP)
    events = iter([STEP, STEP, LIFE_LOST, STEP, TRUNCATE, STEP, TERMINATE] * 300)
    for _ in range(capacity):
        writer.step({0: next(events), 1: STEP})
    rng = np.random.default_rng(0)
    for _ in range(40):
        cursors.race = lambda: [writer.step({0: next(events), 1: STEP}) for _ in range(6)]
        batch = replay.sample(16, rng)
        cursors.race = lambda: None
        assert_matches(writer, batch, stack, n_step)
    assert replay.overwritten > 0


def test_a_writer_that_is_one_step_ahead_loses_no_sample():
    """A record and a final frame, reserved after the draw, touch only the margin."""
    cursors = RacingCursors(1)
    memory = np.zeros((1, 24 + 3), record_dtype((3,), np.int32))
    writer = Writer(Lanes(memory, cursors, capacity=24, stack=2, n_step=1))
    replay = UniformReplay(writer.lanes, n_step=1, discount=DISCOUNT, reward_clip=CLIP)
    for _ in range(30):
        writer.step({0: STEP})
    cursors.race = lambda: writer.step({0: TERMINATE})
    batch = replay.sample(500, np.random.default_rng(0))
    assert replay.overwritten == 0
    assert_matches(writer, batch, 2, 1)


def test_the_age_of_a_minibatch_is_in_steps_of_each_lane():
    writer, replay = make(num_lanes=2)
    assert np.isnan(replay.age)
    for t in range(25):
        writer.step({0: STEP} if t % 3 else {0: STEP, 1: STEP})
    batch = replay.sample(200, np.random.default_rng(0))
    places = [writer.index_of(frames[-1]) for frames in batch.s_tm1]
    assert replay.age == pytest.approx(np.mean([len(writer.records[lane]) - 1 - i for lane, i in places]))


def test_the_first_record_of_all_is_drawn_until_it_is_overwritten():
    """Its stack reaches back before index 0, to slots that the writer may be filling."""
    writer, replay = make(capacity=24, stack=4)
    for _ in range(24 - OLDEST_MARGIN_RECORDS):
        writer.step({0: STEP})
    batch = replay.sample(500, np.random.default_rng(0))
    assert (0, 0) in {writer.index_of(frames[-1]) for frames in batch.s_tm1}
    assert replay.overwritten == 0
    assert_matches(writer, batch, 4, 1)
