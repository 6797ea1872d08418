"""Transitions divided over other lanes: none lost, none doubled, none changed, whatever the numbers of lanes."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_replay import LIFE_LOST, STEP, TERMINATE, TRUNCATE, Record, Writer, transition

from hpcrl.replay import UniformReplay, local_lanes
from hpcrl.replay.division import divide, leave_open_episodes, records_needed, select, transitions

STACK, N_STEP = 3, 2
EVENTS = st.sampled_from([STEP] * 6 + [LIFE_LOST, TERMINATE, TRUNCATE])


def make(num_lanes, capacity=40, stack=STACK, n_step=N_STEP):
    return local_lanes(num_lanes, (3,), np.int32, capacity=capacity, stack=stack, n_step=n_step)


def stored(lanes, lane):
    """Records of a lane, oldest first, as in memory."""
    end = int(lanes.cursors.committed()[lane])
    return lanes.memory[lane, np.arange(max(0, end - lanes.capacity), end) % lanes.capacity]


def as_records(ring):
    return [Record(tuple(map(int, r["frame"])), *(r[name].item() for name in r.dtype.names[1:])) for r in ring]


def whole(records, stack, n_step):
    """Slowly: the transitions that can be told from these records, with the frame that names each."""
    found = {}
    for i, record in enumerate(records):
        if record.final:
            continue
        back = i
        while back > 0 and i - back < stack - 1 and not records[back].first:
            back -= 1
        if i - back < stack - 1 and not records[back].first:
            continue
        steps = 0
        while steps < n_step and i + steps < len(records):
            steps += 1
            if records[i + steps - 1].terminated or records[i + steps - 1].truncated:
                break
        else:
            if steps < n_step:
                continue
        # The record behind must be of the same episode: frames name lane and episode.
        if i + steps < len(records) and records[i + steps].frame[:2] == record.frame[:2]:
            found[i] = transition(records, i, stack=stack, n_step=n_step, discount=0.9, clip=1.0)
    return found


def key(s_tm1, a_tm1, r_t, discount_t, s_t):
    """Something to compare transitions by; where nothing is bootstrapped from ``s_t``, it does not count."""
    s_t = np.asarray(s_t, np.int32).tobytes() if discount_t else b""
    return np.asarray(s_tm1, np.int32).tobytes(), int(a_tm1), round(float(r_t), 4), round(float(discount_t), 4), s_t


def multiset(lanes, stack=STACK, n_step=N_STEP):
    rings = (as_records(stored(lanes, lane)) for lane in range(lanes.num_lanes))
    return Counter(key(*found) for ring in rings for found in whole(ring, stack, n_step).values())


def play(lanes, data, most=120):
    writer = Writer(lanes)
    step = st.dictionaries(st.integers(0, lanes.num_lanes - 1), EVENTS, min_size=1)
    for events in data.draw(st.lists(step, max_size=most)):
        writer.step(events)
    return writer


def move(lanes, num_lanes, capacity, stack=STACK, n_step=N_STEP):
    """What a resumed run does, in one process."""
    rings = [stored(lanes, lane) for lane in range(lanes.num_lanes)]
    sizes = {"stack": stack, "n_step": n_step}
    shares = divide([len(transitions(ring, **sizes)) for ring in rings], [capacity] * num_lanes)
    parts = [[(p.lane, *select(rings[p.lane], p.low, p.high, **sizes)) for p in pieces] for pieces in shares]
    longest = max(sum(len(positions) for _, positions, _ in lane) for lane in parts)
    moved = make(num_lanes, max(capacity, records_needed(longest)), **sizes)
    for lane, pieces in enumerate(parts):
        end = 0
        for old, positions, final in pieces:
            records = rings[old][positions]
            records["final"] = final
            moved.load(lane, end, records["frame"], records)
            end += len(records)
        moved.cursors.reserve(np.array([lane]), end)
        moved.cursors.commit(np.array([lane]), end)
    return moved


@settings(max_examples=40, deadline=None)
@given(data=st.data(), numbers=st.lists(st.integers(1, 6), min_size=1, max_size=3), stack=st.integers(1, 4))
def test_what_can_be_drawn_stays_the_same_through_any_numbers_of_lanes(data, numbers, stack):
    n_step = data.draw(st.integers(1, 3))
    lanes = make(data.draw(st.integers(1, 4)), data.draw(st.integers(18, 40)), stack, n_step)
    play(lanes, data)
    expected = multiset(lanes, stack, n_step)
    total = lanes.num_lanes * lanes.capacity
    for number in [*numbers, lanes.num_lanes]:
        lanes = move(lanes, number, max(18, -(-total // number)), stack, n_step)
        assert lanes.check_valid() == (True, "")
        assert multiset(lanes, stack, n_step) == expected


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_all_of_it_is_drawn_and_nothing_else_and_playing_goes_on(data):
    lanes = make(2)
    play(lanes, data)
    moved = move(lanes, data.draw(st.integers(1, 5)), 60)
    expected = multiset(lanes)
    # New episodes behind the old ones: what waited for records behind it can be drawn now, and no lane is spoilt.
    writer = Writer(moved)
    writer._episode = [100] * moved.num_lanes
    for _ in range(N_STEP + 1):
        writer.step(dict.fromkeys(range(moved.num_lanes), STEP))
    assert moved.check_valid() == (True, "")
    replay = UniformReplay(moved, n_step=N_STEP, discount=0.9, reward_clip=1.0)
    drawn = {
        key(*row) for row in zip(*replay.sample(1500, np.random.default_rng(0))[:5], strict=True) if row[0][-1, 1] < 100
    }
    assert drawn <= expected.keys()
    if len(expected) < 100:
        assert drawn == expected.keys()


def test_what_has_no_room_is_the_oldest_of_each_lane():
    lanes = make(2, 60)
    writer = Writer(lanes)
    for _ in range(50):
        writer.step({0: STEP, 1: STEP})
    moved = move(lanes, 3, 20)
    assert sum(multiset(moved).values()) == 60
    # Of each lane the newest 30 of 48 transitions; the last n_step records begin none.
    oldest = min(record.frame[2] for lane in range(3) for record in as_records(stored(moved, lane)) if not record.final)
    assert oldest == 50 - N_STEP - 30 + 1


def test_as_many_lanes_as_before_stay_as_they_are():
    assert divide([5, 0, 90], [50, 50, 50]) == [[(0, 0, 5)], [], [(2, 40, 90)]]


def test_equal_shares_and_no_empty_pieces():
    assert divide([10, 0, 10], [8] * 5) == [
        [(0, 0, 4)],
        [(0, 4, 8)],
        [(0, 8, 10), (2, 0, 2)],
        [(2, 2, 6)],
        [(2, 6, 10)],
    ]
    assert divide([0, 0], [8]) == [[]]
    assert divide([7, 3], [20, 10, 5]) == [[(0, 0, 5)], [(0, 5, 7), (1, 0, 1)], [(1, 1, 3)]]


def test_a_cut_costs_only_context():
    lanes = make(1)
    writer = Writer(lanes)
    for _ in range(20):
        writer.step({0: STEP})
    positions, final = select(stored(lanes, 0), 8, 12, stack=STACK, n_step=N_STEP)
    assert positions.tolist() == list(range(6, 14))
    assert final.tolist() == [3, 3, 0, 0, 0, 0, 2, 2]


def test_a_longer_return_than_was_saved_for_never_reaches_into_the_neighbour():
    lanes = make(2)
    writer = Writer(lanes)
    for _ in range(30):
        writer.step({0: STEP, 1: STEP})
    merged = move(lanes, 1, 80)
    longer = move(merged, 1, 80, stack=5, n_step=4)
    valid, why = longer.check_valid()
    assert valid, why
    # 28 per lane were whole; the longer return and stack cost 2 at each end, where the episode does not begin.
    assert sum(multiset(longer, 5, 4).values()) == 2 * 26
    replay = UniformReplay(longer, n_step=4, discount=0.9, reward_clip=1.0)
    s_t = replay.sample(500, np.random.default_rng(0)).s_t
    assert (s_t[:, :, 0].max(axis=1) == s_t[:, -1, 0]).all()


@pytest.mark.parametrize("last", [STEP, LIFE_LOST, TERMINATE, TRUNCATE])
def test_an_episode_that_never_goes_on_leads_into_no_other(last):
    lanes = make(1, 20)
    writer = Writer(lanes)
    for event in [*[STEP] * 21, last]:
        writer.step({0: event})
    before = multiset(lanes)
    leave_open_episodes(lanes, np.array([0]))
    assert lanes.check_valid() == (True, "")
    assert multiset(lanes) == before
    writer._episode[0], writer._t[0] = 100, 0
    for _ in range(5):
        writer.step({0: STEP})
    assert lanes.check_valid() == (True, "")
    replay = UniformReplay(lanes, n_step=N_STEP, discount=0.9, reward_clip=1.0)
    batch = replay.sample(500, np.random.default_rng(0))
    goes_on = batch.discount_t > 0
    assert (batch.s_tm1[goes_on, -1, 1] == batch.s_t[goes_on, -1, 1]).all()
