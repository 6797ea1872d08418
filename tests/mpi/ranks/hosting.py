"""``hosting.py HOSTS uniform|prioritized SECONDS``: ranks write a global memory while the last one samples it.

The first ranks host the lanes, the next write them, the last draws. A frame is its lane and index all over, so a torn
or misplaced one shows; a record's priority is ``1 + (lane + index) % 4`` at first, and the sampler sets it anew to
``1 + (lane + index + round) % 4``. The sampler counts what it draws by what it may expect: uniform draws by lane, and
prioritised ones, each weighted by 1 over its probability, by lane too; both come to a chi-square over all lanes.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.replay.distributed import (
    MESSAGE_WORDS,
    DistributedLanes,
    DistributedPriorities,
    split_table,
    table_floats,
)
from hpcrl.replay.lanes import record_dtype
from hpcrl.replay.newcomers import Newcomers
from hpcrl.replay.priorities import PriorityTable
from hpcrl.replay.prioritized import PrioritizedReplay
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.replay_host import ReplayHost
from hpcrl.transport.lanes import HostedLanes
from hpcrl.transport.ring import Rings
from hpcrl.transport.waiting import Backoff, wait_for_all

HOSTS, SAMPLING, SECONDS = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
FRAME, STACK, N_STEP, LANES_EACH, CAPACITY, SEND, TAG = (500,), 2, 2, 3, 300, 4, 10_000_000
DTYPE = record_dtype(FRAME, np.dtype(np.int32))

comm = MPI.COMM_WORLD
hosts, writers, sampler = range(HOSTS), range(HOSTS, comm.size - 1), comm.size - 1
num_lanes, prioritized = len(writers) * LANES_EACH, SAMPLING == "prioritized"
first_lane = (comm.rank - HOSTS) * LANES_EACH if comm.rank in writers else 0
mine = range(first_lane, first_lane + LANES_EACH) if comm.rank in writers else ()
lengths = {"stack": STACK, "n_step": N_STEP}
hosted = HostedLanes(
    comm,
    hosts=hosts,
    num_lanes=num_lanes,
    capacity=CAPACITY,
    mirror=STACK + N_STEP,
    record_bytes=DTYPE.itemsize,
    table_floats=table_floats(CAPACITY) if prioritized else 0,
    writes=mine,
)
rings = Rings(
    comm,
    name="priorities",
    producers=range(HOSTS, comm.size),
    record_bytes=dict.fromkeys(hosts, 8 * MESSAGE_WORDS),
    capacity=8,
)
priorities = DistributedPriorities(hosted, rings) if prioritized and comm.rank not in hosts else None
lanes = DistributedLanes(
    hosted,
    FRAME,
    np.dtype(np.int32),
    first_lane=first_lane,
    num_simulators=len(mine),
    send_period=SEND,
    set_priorities=priorities and priorities.set,
    **lengths,
)


def host() -> str:
    table = None
    if prioritized:
        own = hosted.lanes_of(comm.rank)
        values, sums = split_table(hosted.table[: own * table_floats(CAPACITY)])
        table = PriorityTable(values, sums, num_lanes=own, capacity=CAPACITY, stack=STACK, alpha=1.0)
    role, done, backoff = ReplayHost(comm.rank, lanes=hosted, table=table, rings=rings), comm.Ibarrier(), Backoff(comm)
    while not done.Test():
        if role.step():
            backoff.reset()
        else:
            backoff.wait()
    return f"dropped {table.dropped}" if table else ""


def write(until: float) -> str:
    ids, index, no = np.array(mine), 0, np.zeros(LANES_EACH, bool)
    newcomers = None
    if prioritized:
        sizes = {"n_step": N_STEP, "discount": 0.0, "reward_clip": None}
        newcomers = Newcomers(ids, np.zeros(LANES_EACH, np.int64), set_priorities=lanes.hold, **sizes)
    while time.monotonic() < until:
        frame = np.repeat((ids * TAG + index)[:, None], FRAME[0], axis=1).astype(np.int32)
        wanted = (1 + (ids + index) % 4).astype(np.float32)  # with values of 0 the error is the reward
        lanes.append(ids, frame, np.zeros(LANES_EACH, np.int64), wanted, no, no, no | (index == 0))
        if newcomers:
            newcomers.append(np.arange(LANES_EACH), np.zeros((LANES_EACH, 2)), np.zeros(3, int), wanted, no, no)
        index += 1
        if index % SEND == 0:
            lanes.flush()
            time.sleep(1e-3)
    wait_for_all(comm)
    return f"written {index}"


def sample(until: float) -> str:
    rng, counts, draws, rounds = np.random.default_rng(0), np.zeros((num_lanes, 4)), 0, 0
    returns = {"n_step": N_STEP, "discount": 0.5, "reward_clip": None}
    if prioritized:
        sources = {"priorities": priorities, "set_priorities": priorities.set, "beta": lambda: 1.0}
        replay = PrioritizedReplay(lanes, **returns, **sources)
    else:
        replay = UniformReplay(lanes, **returns)
    while time.monotonic() < until:
        batch = replay.sample(64, rng)
        if batch is None:
            continue
        newest = batch.s_tm1[:, -1]
        assert (newest == newest[:, :1]).all(), "a torn frame"
        lane, index = np.divmod(newest[:, 0].astype(np.int64), TAG)
        np.testing.assert_array_equal(batch.s_t[:, -1], newest + N_STEP)
        np.testing.assert_array_equal(batch.s_tm1[:, 0, 0], np.where(index == 0, 0, newest[:, 0] - 1))
        if prioritized:
            np.testing.assert_array_equal(batch.place, np.stack([lane, index], axis=1))
            rounds += 1
            replay.update(batch, 1.0 + (lane + index + rounds) % 4)
        if hosted.committed().min() > CAPACITY:  # all lanes are full: from here on all weigh the same
            weight = batch.weight / batch.weight.sum() * 64 if prioritized else np.ones(64)
            np.add.at(counts, (lane, index % 4), weight)
            draws += 64
    wait_for_all(comm)
    expected = draws / counts.size
    spread = np.sqrt(((counts - expected) ** 2 / expected).sum() / (counts.size - 1)) if draws else -1
    return f"draws {draws} overwritten {replay.overwritten} spread {spread:.3f}"


comm.Barrier()
until = time.monotonic() + SECONDS
said = host() if comm.rank in hosts else write(until) if comm.rank in writers else sample(until)
for line in comm.gather(said) or ():
    print(line, flush=True)
comm.Barrier()
rings.free()
hosted.free()
