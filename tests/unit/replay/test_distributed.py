"""A distributed memory over stand-ins for windows and rings: what is written and sent when, and read back."""

import numpy as np
from slow_replay import STEP, TERMINATE, Writer

from hpcrl.replay.distributed import (
    MESSAGE_ROWS,
    DistributedLanes,
    DistributedPriorities,
    SharedPriorities,
    decode_message,
    split_table,
    table_floats,
)
from hpcrl.replay.lanes import local_lanes
from hpcrl.replay.priorities import BLOCK_SLOTS, PriorityTable
from hpcrl.replay.uniform import UniformReplay

LANES, CAPACITY, STACK, N_STEP = 5, 300, 2, 1


class Hosted:
    """`HostedLanes` of two hosts, kept in ordinary lanes and arrays."""

    hosts = (10, 11)

    def __init__(self):
        self.lanes = local_lanes(LANES, (3,), np.int32, capacity=CAPACITY, stack=STACK, n_step=N_STEP)
        self.num_lanes, self.capacity, self.written = LANES, CAPACITY, []
        self.seen, self.looks = None, 0
        self.tables = [np.zeros(self.lanes_of(host) * table_floats(CAPACITY)) for host in range(2)]

    def lanes_of(self, host):
        return len(range(host, LANES, 2))

    def look(self):
        self.looks += 1
        self.seen = [cursor.copy() for cursor in self.lanes.cursors.look()]
        return self.seen

    def recent(self):
        return self.seen or self.look()

    def read(self, lane, first, out):
        out[:], overtaken = self.lanes.read(lane, first, out.shape[1])
        self.look()
        return overtaken

    def write(self, records):
        self.written.append({lane: len(rows) for lane, rows in records.items()})
        for lane, rows in records.items():
            for row in rows:
                slot = int(self.lanes.cursors.committed()[lane]) % CAPACITY
                self.lanes.memory[lane, slot] = row
                if slot < self.lanes.mirror:
                    self.lanes.memory[lane, CAPACITY + slot] = row
                self.lanes.cursors.reserve(np.array([lane]), 1)
                self.lanes.cursors.commit(np.array([lane]), 1)

    def read_tables(self, wanted):
        for host, parts in wanted.items():
            for first, out in parts:
                out.reshape(-1)[:] = self.tables[host][first : first + out.size]


class Rings:
    """Takes so many messages and is full then."""

    def __init__(self, room):
        self.room, self.messages = room, []

    def push(self, records):
        if not self.room:
            return False
        self.room -= 1
        for rank, parts in records.items():
            data = np.concatenate([part.reshape(-1).view(np.uint8) for part in parts])
            self.messages.append((rank, *(column.tolist() for column in decode_message(data))))
        return True


def make(set_priorities=None):
    hosted = Hosted()
    sizes = {"stack": STACK, "n_step": N_STEP, "first_lane": 0, "num_simulators": LANES, "send_period": 4}
    return hosted, DistributedLanes(hosted, (3,), np.int32, set_priorities=set_priorities, **sizes)


def test_steps_are_gathered_and_written_together():
    hosted, lanes = make()
    writer = Writer(lanes)
    for _ in range(3):
        writer.step({lane: TERMINATE if lane == 1 else STEP for lane in range(LANES - 1)})
    assert hosted.written == []
    lanes.flush()
    lanes.flush()
    assert hosted.written == [{0: 3, 1: 6, 2: 3, 3: 3}]
    assert hosted.lanes.check_valid() == (True, "")
    for _ in range(200):
        writer.step(dict.fromkeys(range(LANES), STEP))
        lanes.flush()
    batch = UniformReplay(lanes, n_step=1, discount=0.9, reward_clip=None).sample(64, np.random.default_rng(0))
    for row in range(64):
        lane, i = writer.index_of(batch.s_tm1[row, -1])
        assert batch.s_t[row, -1].tolist() == list(writer.records[lane][i + 1].frame)


def test_batches_are_drawn_by_what_was_seen_after_the_one_before():
    """Nothing looks at the cursors in between; what writers overwrote meanwhile is found out and drawn again."""
    hosted, lanes = make()
    writer, rng = Writer(lanes), np.random.default_rng(0)
    replay = UniformReplay(lanes, n_step=1, discount=0.9, reward_clip=None)
    assert replay.sample(1, rng) is None
    for rounds in range(20):
        for _ in range(50):
            writer.step(dict.fromkeys(range(LANES), STEP))
            lanes.flush()
        hosted.looks = 0
        batch = replay.sample(64, rng)
        assert hosted.looks < 8  # one for each reading
        for row in range(64):
            lane, i = writer.index_of(batch.s_tm1[row, -1])
            assert i > 50 * (rounds + 1) - CAPACITY
            assert batch.s_t[row, -1].tolist() == list(writer.records[lane][i + 1].frame)
    assert replay.overwritten > 100


def test_priorities_of_new_records_go_out_after_the_records():
    given = []
    hosted, lanes = make(lambda *columns: given.append((len(hosted.written), *(c.tolist() for c in columns))))
    writer = Writer(lanes)
    writer.step({0: STEP})
    lanes.hold(np.array([0]), np.array([0]), np.array([0.5]))
    lanes.hold(np.array([1, 0]), np.array([7, 1]), np.array([1.5, np.nan]))
    assert given == []
    lanes.flush()
    ((writes, lane, index, delta),) = given
    assert (writes, lane, index, delta[:2]) == (1, [0, 1, 0], [0, 7, 1], [0.5, 1.5])
    assert np.isnan(delta[2])
    lanes.flush()
    assert len(given) == 1


def test_priorities_are_sent_to_the_host_of_their_lane_and_kept_while_its_ring_is_full():
    rings = Rings(room=1)
    priorities = DistributedPriorities(Hosted(), rings)
    priorities.set(np.array([0, 2, 4]), np.array([5, 6, 7]), np.array([0.5, 1.0, 2.0]))
    assert rings.messages == [(10, [0, 1, 2], [5, 6, 7], [0.5, 1.0, 2.0])]
    priorities.set(np.array([3]), np.array([8]), np.array([3.0]))
    assert len(rings.messages) == 1
    rings.room = 9
    count = MESSAGE_ROWS + 3
    priorities.set(np.zeros(count, np.int64), np.arange(count), np.ones(count))
    assert rings.messages[1:2] == [(11, [1], [8], [3.0])]
    assert [len(message[1]) for message in rings.messages[2:]] == [MESSAGE_ROWS, 3]
    assert sum((message[2] for message in rings.messages[2:]), []) == list(range(count))


def test_blocks_are_read_from_the_host_that_has_them():
    hosted = Hosted()
    expected = np.zeros((LANES, CAPACITY))
    rng = np.random.default_rng(0)
    for host in range(2):
        own = hosted.lanes_of(host)
        values, sums = split_table(hosted.tables[host])
        table = PriorityTable(values, sums, num_lanes=own, capacity=CAPACITY, stack=STACK, alpha=1.0)
        for place in range(own):
            delta = rng.exponential(size=CAPACITY)
            table.set(np.full(CAPACITY, place), np.arange(CAPACITY), delta)
            expected[host + 2 * place] = delta
    priorities = DistributedPriorities(hosted, Rings(0))
    blocks = -(-CAPACITY // BLOCK_SLOTS)
    padded = np.pad(expected, ((0, 0), (0, blocks * BLOCK_SLOTS - CAPACITY))).reshape(-1, BLOCK_SLOTS)
    np.testing.assert_allclose(priorities.sums(), padded.sum(axis=1), rtol=1e-3)
    drawn = rng.integers(len(padded), size=40)
    np.testing.assert_allclose(priorities.slots(drawn), padded[drawn], rtol=1e-3, atol=1e-5)


def test_shared_priorities_are_read_as_they_are_and_sent_to_the_one_who_keeps_them():
    memory, rings = np.zeros(LANES * table_floats(CAPACITY)), Rings(room=1)
    values, sums = split_table(memory)
    table = PriorityTable(values, sums, num_lanes=LANES, capacity=CAPACITY, stack=STACK, alpha=1.0)
    priorities = SharedPriorities(memory, 7, rings)
    priorities.set(np.array([0, 4]), np.array([5, 6]), np.array([0.5, 2.0]))
    assert rings.messages == [(7, [0, 4], [5, 6], [0.5, 2.0])]
    before = priorities.sums()
    table.set(np.array([4]), np.array([6]), np.array([2.0]))
    block = 4 * -(-CAPACITY // BLOCK_SLOTS)
    assert before[block] == 0  # a draw under way goes on with what it has read
    assert priorities.sums()[block] == priorities.slots(np.array([block]))[0, 6] > 1.9
