"""Replay lanes: the record's layout, the ring, its mirror and its invariants."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_replay import LIFE_LOST, STEP, TERMINATE, TRUNCATE, Writer

from hpcrl.replay import Lanes, LocalCursors, local_lanes, record_dtype

EVENTS = st.sampled_from([STEP, STEP, STEP, LIFE_LOST, TERMINATE, TRUNCATE])


@pytest.mark.parametrize(
    ("obs_shape", "obs_dtype", "itemsize"),
    [((84, 84), np.uint8, 7072), ((4,), np.float32, 32), ((10, 5), np.uint8, 64), ((3,), np.uint8, 16)],
)
def test_a_record_is_aligned_and_padded_to_16_bytes(obs_shape, obs_dtype, itemsize):
    dtype = record_dtype(obs_shape, np.dtype(obs_dtype))
    assert dtype.itemsize == itemsize
    assert dtype.names == ("frame", "action", "reward", "terminated", "truncated", "first", "final")
    assert dtype["frame"] == np.dtype((obs_dtype, obs_shape))
    for name in dtype.names[1:]:
        assert dtype.fields[name][1] % dtype[name].itemsize == 0


def test_a_memory_of_another_shape_is_refused():
    memory = np.zeros((2, 30), record_dtype((3,), np.int32))
    with pytest.raises(ValueError, match=r"\[lanes, 34\], got \(2, 30\)"):
        Lanes(memory, LocalCursors(2), capacity=30, stack=3, n_step=1)


def test_a_short_lane_is_refused():
    with pytest.raises(ValueError, match="at least .* = 14 records, got 13"):
        local_lanes(1, (3,), np.int32, capacity=13, stack=4, n_step=1)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), num_lanes=st.integers(1, 3), stack=st.integers(1, 4), n_step=st.integers(1, 3))
def test_random_episodes_keep_every_invariant(data, num_lanes, stack, n_step):
    capacity = 2 * (stack + n_step) + 4 + data.draw(st.integers(0, 9))
    lanes = local_lanes(num_lanes, (3,), np.int32, capacity=capacity, stack=stack, n_step=n_step)
    writer = Writer(lanes)
    step = st.dictionaries(st.integers(0, num_lanes - 1), EVENTS, min_size=1)
    for events in data.draw(st.lists(step, max_size=60)):
        writer.step(events)
        assert lanes.check_valid() == (True, "")
    windows = lanes.windows(stack + n_step)
    for lane, records in enumerate(writer.records):
        assert lanes.cursors.committed()[lane] == len(records)
        for i in range(max(0, len(records) - capacity), len(records) - stack - n_step + 1):
            window = windows[lane, i % capacity]
            expected = records[i : i + stack + n_step]
            assert [tuple(frame) for frame in window["frame"].tolist()] == [record.frame for record in expected]
            for name in ("action", "reward", "terminated", "truncated", "first", "final"):
                assert window[name].tolist() == [getattr(record, name) for record in expected]


def test_windows_cannot_be_written_to_nor_be_longer_than_the_mirror():
    lanes = local_lanes(1, (3,), np.int32, capacity=20, stack=2, n_step=1)
    with pytest.raises(ValueError, match="at most stack"):
        lanes.windows(4)
    with pytest.raises(ValueError, match="read-only"):
        lanes.windows(3)["action"][:] = 1


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda ring: ring["first"].__setitem__(0, 0), "oldest record of all"),
        (lambda ring: ring["final"].__setitem__(0, 1), "both first and final"),
        (lambda ring: ring["terminated"].__setitem__(3, 1), "ended a step itself"),
        (lambda ring: ring["final"].__setitem__(1, 1), "did not end the episode"),
        (lambda ring: ring["first"].__setitem__(4, 0), "not followed by a first"),
        (lambda ring: ring["final"].__setitem__(3, 0), "does not follow a final"),
        (lambda ring: ring["truncated"].__setitem__(1, 1), "not followed by a final record"),
        (lambda ring: ring["action"].__setitem__(2, 99), "mirror"),
    ],
)
def test_check_valid_finds_a_broken_rule(spoil, why):
    lanes = local_lanes(1, (3,), np.int32, capacity=20, stack=2, n_step=2)
    writer = Writer(lanes)
    for event in (STEP, STEP, TERMINATE, STEP, STEP):
        writer.step({0: event})
    assert lanes.check_valid() == (True, "")
    spoil(lanes.memory[0])
    valid, found = lanes.check_valid()
    assert not valid
    assert why in found
