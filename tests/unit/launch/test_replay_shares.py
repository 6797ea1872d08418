"""The replay of a checkpoint in memories of other numbers and sizes: the same transitions with the same priorities."""

from collections import Counter

import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.launch.replay_shares import MemoryShare, share_replay
from hpcrl.replay import local_lanes
from hpcrl.replay.division import leave_open_episodes, transitions
from hpcrl.replay.priorities import local_table
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage import replay as replay_files
from hpcrl.storage.replay import Priorities, ReplayCut, Shape

STACK, N_STEP = 3, 2


class Memory:
    """Lanes of made-up episodes; every frame is ``[lane, number]``, and a priority is a record's number."""

    def __init__(self, shape, slots=None):
        self.shape = shape
        self.lanes = local_lanes(
            shape.num_lanes, (2,), np.int32, capacity=slots or shape.capacity, stack=shape.stack, n_step=shape.n_step
        )
        self.table, _ = local_table(self.lanes, 0.6)
        self.priorities = self.table.by_slot()

    def play(self, lane, name, lengths):
        """Episodes of these lengths; the last stays open."""
        lanes, number = np.array([lane]), 0
        for episode, length in enumerate(lengths):
            for step in range(length):
                self.put(lane, number)
                over = step == length - 1 and episode < len(lengths) - 1
                end = {"terminated": over and episode % 2, "truncated": over and not episode % 2}
                frame, reward = np.array([[name, number]]), number % 3
                self.lanes.append(lanes, frame, action=number % 5, reward=reward, **end, first=step == 0)
                number += 1
            if episode < len(lengths) - 1:
                self.put(lane, number)
                self.lanes.append_final(lanes, np.array([[name, number]]))
                number += 1

    def put(self, lane, number):
        self.priorities[lane, int(self.lanes.cursors.committed()[lane]) % self.lanes.capacity] = number + 0.5

    def cut(self):
        return ReplayCut(
            self.lanes.memory,
            self.lanes.cursors,
            capacity=self.shape.capacity,
            stack=self.shape.stack,
            n_step=self.shape.n_step,
            priorities=Priorities(self.priorities, self.table.low, self.table.highest),
        )

    def transitions(self):
        """Counter of every whole transition with its priority."""
        found = Counter()
        for lane, end in enumerate(self.lanes.cursors.committed()):
            index = np.arange(max(0, end - self.lanes.capacity), end) % self.lanes.capacity
            ring, priority = self.lanes.memory[lane, index], self.priorities[lane, index]
            for t in transitions(ring, stack=self.shape.stack, n_step=self.shape.n_step):
                first = np.flatnonzero(ring["first"][: t + 1])
                begin = max(t - self.shape.stack + 1, first[-1] if first.size else 0)
                record = ring[t]
                key = (ring["frame"][begin : t + 1].tobytes(), int(record["action"]), float(record["reward"]))
                assert priority[t] == record["frame"][1] + 0.5
                over = bool(record["terminated"]) or bool(record["truncated"])
                last = t + 1 if over else t + self.shape.n_step
                found[(*key, ring["frame"][t + 1 : last + 1].tobytes(), float(priority[t]))] += 1
        return found


def save(run_dir, update, memories):
    directory = checkpoints.begin(run_dir, update)
    names = [f"replay-{index}" for index in range(len(memories))]
    for name, memory in zip(names, memories, strict=True):
        memory.cut().write(checkpoints.state_path(directory, name))
    return checkpoints.finish(directory, names, [], {})


def load(checkpoint, shapes):
    shares = share_replay(checkpoint, shapes)
    memories = []
    for index, shape in enumerate(shapes):
        share = MemoryShare(shares, index, shapes)
        memories.append(Memory(shape, share.slots))
        share.restore(memories[-1].lanes, memories[-1].table)
        table = memories[-1].table
        np.testing.assert_array_equal(table.sums(), table.values.sum(axis=1))
        valid, why = memories[-1].lanes.check_valid()
        assert valid, why
    return memories, shares


def shapes_of(number, num_lanes, capacity):
    return [Shape(num_lanes, capacity, STACK, N_STEP)] * number


def whole(memories):
    return sum((memory.transitions() for memory in memories), Counter())


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(replay_files, "CHUNK_RECORDS", 32)
    monkeypatch.setattr(replay_files, "CHUNK_BYTES", 32)


def full_memories(number, num_lanes, capacity):
    memories = [Memory(shape) for shape in shapes_of(number, num_lanes, capacity)]
    for index, memory in enumerate(memories):
        for lane in range(num_lanes):
            name = 100 * index + lane
            memory.play(lane, name, np.random.default_rng(name).integers(1, 90, size=30 + 5 * lane))
    return memories


@pytest.mark.parametrize("numbers", [(2, 5, 2), (5, 2, 5), (2, 3, 1, 2)])
def test_the_same_capacity_in_other_numbers_of_bundles_loses_nothing(tmp_path, numbers):
    lanes, total = 2, 1800
    memories = full_memories(numbers[0], lanes, total // numbers[0] // lanes)
    expected = whole(memories)
    assert len(expected) > 1700
    for update, number in enumerate(numbers[1:]):
        checkpoint = save(tmp_path, update, memories)
        memories, shares = load(checkpoint, shapes_of(number, lanes, total // number // lanes))
        assert whole(memories) == expected
        assert f"{len(expected):,} transitions kept, 0 dropped" in shares.text
        assert max(memory.lanes.capacity for memory in memories) < 1.2 * total / number / lanes
        held = [sum(memory.transitions().values()) for memory in memories]
        assert max(held) - min(held) <= 2 * lanes  # every bundle learns from as much


def test_another_number_of_simulators_and_nodes_of_unequal_size(tmp_path):
    memories = full_memories(2, 4, 200)
    expected = whole(memories)
    shapes = [Shape(6, 150, STACK, N_STEP), Shape(3, 300, STACK, N_STEP)]
    memories, shares = load(save(tmp_path, 1, memories), shapes)
    assert whole(memories) == expected
    assert "2 memories of 4 lanes x 200 records then, 1 memory of 6 lanes x 150" in shares.text


def test_what_has_no_room_is_dropped_and_counted(tmp_path):
    memories = full_memories(5, 2, 200)
    before = whole(memories)
    memories, shares = load(save(tmp_path, 1, memories), shapes_of(2, 2, 200))
    after = whole(memories)
    assert sum(after.values()) == 800
    assert not after - before
    assert f"800 transitions kept, {sum(before.values()) - 800:,} dropped for lack of room" in shares.text


def test_memories_of_the_same_shape_are_the_same_slot_by_slot(tmp_path):
    memories = full_memories(2, 3, 100)
    restored, shares = load(save(tmp_path, 1, memories), shapes_of(2, 3, 100))
    assert shares.same
    for old, new in zip(memories, restored, strict=True):
        np.testing.assert_array_equal(new.lanes.cursors.committed(), old.lanes.cursors.committed())
        assert new.lanes.memory.tobytes() == old.lanes.memory.tobytes()
        np.testing.assert_array_equal(new.priorities, old.priorities)


def test_a_divided_memory_is_the_same_from_then_on(tmp_path):
    divided, _ = load(save(tmp_path, 1, full_memories(2, 2, 150)), shapes_of(1, 3, 200))
    assert divided[0].lanes.capacity > 200
    again, shares = load(save(tmp_path, 2, divided), shapes_of(1, 3, 200))
    assert shares.same
    assert again[0].lanes.memory.tobytes() == divided[0].lanes.memory.tobytes()


def test_playing_goes_on_in_divided_lanes(tmp_path):
    memories, _ = load(save(tmp_path, 1, full_memories(2, 2, 150)), shapes_of(3, 2, 100))
    for memory in memories:
        for lane in range(2):
            leave_open_episodes(memory.lanes, np.array([lane]))
            memory.play(lane, 1000 + lane, (30, 40))
        assert memory.lanes.check_valid() == (True, "")


def test_lanes_that_were_never_written_to(tmp_path):
    memories = [Memory(shape) for shape in shapes_of(2, 2, 50)]
    memories[0].play(0, 7, (9, 3))
    expected = whole(memories)
    for number in (1, 2, 5):
        memories, _ = load(save(tmp_path, number, memories), shapes_of(number, 2, 50))
        assert whole(memories) == expected


def test_no_replay_in_the_checkpoint(tmp_path):
    directory = checkpoints.begin(tmp_path, 1)
    assert share_replay(checkpoints.finish(directory, [], [], {}), shapes_of(1, 1, 50)) is None


def test_frames_of_another_kind_are_refused(tmp_path):
    checkpoint = save(tmp_path, 1, full_memories(1, 1, 50))
    shapes = shapes_of(1, 1, 50)
    share = MemoryShare(share_replay(checkpoint, shapes), 0, shapes)
    other = local_lanes(1, (3,), np.int32, capacity=50, stack=STACK, n_step=N_STEP)
    with pytest.raises(StorageError, match="expected frames of .* found .*: give another run.dir"):
        share.restore(other)
