"""``sharing.py SECONDS``: ranks write replay lanes in node memory, rank 0 samples them meanwhile.

Every element of a frame is its lane and index. Of 13 records the first begins an episode, the twelfth is cut off and
the last is the final frame; so everything about a transition follows from its first frame.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.replay.lanes import Lanes, record_dtype, shortest_capacity
from hpcrl.replay.uniform import UniformReplay
from hpcrl.transport.shared import NodeMemory, SharedCursors

SECONDS = float(sys.argv[1])
FRAME, STACK, N_STEP, DISCOUNT, PERIOD, LANES_EACH = (3000,), 2, 2, 0.5, 13, 2
LANE_TAG = 10_000_000

comm = MPI.COMM_WORLD
node = comm.Split_type(MPI.COMM_TYPE_SHARED)
writers = node.size - 1
num_lanes = writers * LANES_EACH
capacity = shortest_capacity(STACK, N_STEP)
memory = NodeMemory(
    node,
    shape=(num_lanes, capacity + STACK + N_STEP),
    dtype=record_dtype(FRAME, np.dtype(np.int32)),
    words=2 * num_lanes + 1,
)
over = 2 * num_lanes
lanes = Lanes(memory.array, SharedCursors(memory, num_lanes), capacity=capacity, stack=STACK, n_step=N_STEP)
rng = np.random.default_rng(node.rank)


def tags(lane: np.ndarray, index: np.ndarray) -> np.ndarray:
    return (lane + 1) * LANE_TAG + index


def action_of(lane, index):
    return (5 * index + lane) % 18


def reward_of(lane, index):
    return ((index + lane) % 7).astype(np.float32)


def write(until: float) -> int:
    mine = np.arange(LANES_EACH) + (node.rank - 1) * LANES_EACH
    index = np.zeros(LANES_EACH, np.int64)
    while time.monotonic() < until:
        frame = np.repeat(tags(mine, index)[:, None], FRAME[0], axis=1).astype(np.int32)
        place = int(index[0]) % PERIOD
        if place == PERIOD - 1:
            lanes.append_final(mine, frame)
        else:
            no = np.zeros(LANES_EACH, bool)
            cut, first = no | (place == PERIOD - 2), no | (place == 0)
            lanes.append(mine, frame, action_of(mine, index), reward_of(mine, index), no, cut, first)
        index += 1
        if rng.random() < 0.02:
            time.sleep(rng.random() * 2e-3)
    memory.add(over, 1)
    return int(index.sum())


def newest(frames: np.ndarray) -> np.ndarray:
    """int64 ``[B]`` tags of frames ``[B, FRAME]``, each the same all over."""
    assert (frames == frames[:, :1]).all(), "a torn frame"
    return frames[:, 0].astype(np.int64)


def check(batch) -> None:
    tag = newest(batch.s_tm1[:, -1])
    lane, index = tag // LANE_TAG - 1, tag % LANE_TAG
    place = index % PERIOD
    assert ((lane >= 0) & (lane < num_lanes) & (place < PERIOD - 1)).all(), tag
    steps = np.minimum(N_STEP, PERIOD - 1 - place)
    before = newest(batch.s_tm1[:, 0])
    np.testing.assert_array_equal(before, np.where(place == 0, 0, tag - 1))
    np.testing.assert_array_equal(newest(batch.s_t[:, -1]), tag + steps)
    np.testing.assert_array_equal(newest(batch.s_t[:, 0]), tag + steps - 1)
    np.testing.assert_array_equal(batch.a_tm1, action_of(lane, index))
    second = np.where(steps == 2, DISCOUNT * reward_of(lane, index + 1), 0)
    np.testing.assert_allclose(batch.r_t, reward_of(lane, index) + second)
    np.testing.assert_allclose(batch.discount_t, DISCOUNT**steps)


def sample() -> tuple[int, int]:
    replay = UniformReplay(lanes, n_step=N_STEP, discount=DISCOUNT, reward_clip=None)
    drawn = 0
    while memory.add(over, 0) < writers:
        if len(replay) == 0:
            continue
        check(replay.sample(32, rng))
        drawn += 32
    return drawn, replay.overwritten


node.Barrier()
mine = sample() if node.rank == 0 else write(time.monotonic() + SECONDS)
node.Barrier()
assert lanes.check_valid() == (True, "")
written = node.gather(mine)
if node.rank == 0:
    assert int(lanes.cursors.committed().sum()) == sum(written[1:])
    print(f"written {sum(written[1:])} drawn {mine[0]} overwritten {mine[1]}", flush=True)
node.Barrier()
memory.free()
