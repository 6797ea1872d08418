"""The ranks of ``hpcrl bench replay``: ours and the bare calls in turn, over the same memory.

``python -m hpcrl.bench._replay_ranks local|remote``, under mpiexec: the last rank is the client, all others are hosts,
which wait as servers do. The client prints one line, `MARK` and then as JSON ``{row: [[ours, bare], ...]}``: seconds of
one call, for each pair; ``bare`` is null where there is nothing to compare with.
"""

import json
import sys
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from hpcrl.bench._jobs import MARK
from hpcrl.bench._transport_ranks import Pairs, pairs, seconds
from hpcrl.replay.distributed import DistributedLanes
from hpcrl.replay.lanes import Lanes, StepWriter, local_lanes, record_dtype
from hpcrl.replay.priorities import local_table
from hpcrl.replay.prioritized import PrioritizedReplay
from hpcrl.replay.uniform import UniformReplay
from hpcrl.transport.lanes import HostedLanes
from hpcrl.transport.waiting import Backoff

SIMULATORS, STACK, N_STEP, BATCH_SIZE = 4, 4, 1, 32
WINDOW = STACK + N_STEP
FRAME, DISCOUNT = (84, 84), 0.99
CAPACITY = 20_000
"""records of a lane; all lanes together are far larger than a processor's caches"""
SEND_PERIOD = 8
ADDS, BATCHES, REPEATS = 2000, 200, 9
SLOTS, PRIORITIZED_N_STEP = 1_000_000, 3

DTYPE = record_dtype(FRAME, np.dtype(np.uint8))


class Stepper:
    """Appends steps of all simulators, as an actor does."""

    def __init__(self, lanes: StepWriter):
        self.lanes, self.ids = lanes, np.arange(SIMULATORS)
        self.frame = np.random.default_rng(0).integers(255, size=(SIMULATORS, *FRAME), dtype=np.uint8)
        self.action, self.reward = np.zeros(SIMULATORS, np.int64), np.zeros(SIMULATORS, np.float32)
        self.no = np.zeros(SIMULATORS, bool)

    def append(self) -> None:
        self.lanes.append(self.ids, self.frame, self.action, self.reward, self.no, self.no, self.no)


class BareRing:
    """A numpy ring with the same bytes: one array for each field, each simulator at an index of its own, as episodes
    do not end together."""

    def __init__(self, stepper: Stepper, capacity: int = CAPACITY):
        self.stepper, self.capacity, self.index = stepper, capacity, np.zeros(SIMULATORS, np.int64)
        self.frames = np.ones((SIMULATORS, capacity, *FRAME), np.uint8)
        self.actions, self.rewards = (np.zeros((SIMULATORS, capacity), t) for t in (np.int32, np.float32))
        self.flags = [np.zeros((SIMULATORS, capacity), np.uint8) for _ in range(4)]
        self.rng = np.random.default_rng(1)

    def append(self) -> None:
        step, lane, i = self.stepper, self.stepper.ids, self.index % self.capacity
        self.frames[lane, i], self.actions[lane, i], self.rewards[lane, i] = step.frame, step.action, step.reward
        for flag in self.flags:
            flag[lane, i] = step.no
        self.index += 1

    def sample(self) -> tuple[np.ndarray, ...]:
        lane = self.rng.integers(SIMULATORS, size=BATCH_SIZE)
        i = self.rng.integers(self.capacity - WINDOW, size=BATCH_SIZE)
        frames, taken = self.frames[lane[:, None], i[:, None] + np.arange(WINDOW)], i + STACK - 1
        action, reward, terminated, *_ = (f[lane, taken] for f in (self.actions, self.rewards, *self.flags))
        return bare_batch(frames, action, reward, terminated)


def bare_batch(frames: np.ndarray, action: np.ndarray, reward: np.ndarray, terminated: np.ndarray) -> tuple:
    """The parts of a batch of one-step transitions that do not cross the end of an episode."""
    discount_t = np.where(terminated, np.float32(0), np.float32(DISCOUNT))
    return frames[:, :STACK], action.astype(np.int64), np.clip(reward, -1, 1), discount_t, frames[:, N_STEP:]


def times(do: Callable[[], object], count: int) -> Callable[[], None]:
    """Do it ``count`` times."""

    def repeated() -> None:
        for _ in range(count):
            do()

    return repeated


def per_call(found: Pairs, count: int) -> Pairs:
    return [(ours / count, bare / count) for ours, bare in found]


def sampler(lanes: Lanes | DistributedLanes) -> Callable[[], object]:
    replay, rng = UniformReplay(lanes, n_step=N_STEP, discount=DISCOUNT, reward_clip=1.0), np.random.default_rng(2)
    return lambda: replay.sample(BATCH_SIZE, rng)


def local() -> dict[str, Pairs]:
    """Own memory against a bare ring; and prioritised batches from a million slots."""
    lanes = local_lanes(SIMULATORS, FRAME, np.uint8, capacity=CAPACITY, stack=STACK, n_step=N_STEP)
    stepper = Stepper(lanes)
    ring = BareRing(stepper)
    times(stepper.append, CAPACITY)()
    return {
        "add.local": per_call(pairs(times(stepper.append, ADDS), times(ring.append, ADDS), 1), ADDS),
        "sample.local": per_call(pairs(times(sampler(lanes), BATCHES), times(ring.sample, BATCHES), 1), BATCHES),
        "sample.prioritized": [(seconds(prioritized(), 3 * BATCHES), None) for _ in range(REPEATS)],
    }


def prioritized() -> Callable[[], object]:
    """Draw a batch from a million slots and set its priorities; frames are small, so that they fit into memory."""
    capacity = SLOTS // SIMULATORS
    lanes = local_lanes(SIMULATORS, (84,), np.uint8, capacity=capacity, stack=STACK, n_step=PRIORITIZED_N_STEP)
    lanes.cursors.reserve(np.arange(SIMULATORS), capacity)
    lanes.cursors.commit(np.arange(SIMULATORS), capacity)
    table, set_priorities = local_table(lanes, alpha=0.6)
    rng, index = np.random.default_rng(3), np.arange(2 * STACK, capacity - PRIORITIZED_N_STEP)
    for lane in range(SIMULATORS):
        set_priorities(np.full(len(index), lane), index, rng.exponential(size=len(index)))
    returns = {"n_step": PRIORITIZED_N_STEP, "discount": DISCOUNT, "reward_clip": 1.0}
    sources = {"priorities": table, "set_priorities": set_priorities, "beta": lambda: 0.4}
    replay = PrioritizedReplay(lanes, **returns, **sources)

    def batch() -> None:
        drawn = replay.sample(BATCH_SIZE, rng)
        replay.update(drawn, rng.exponential(size=BATCH_SIZE))

    return batch


def remote(comm: MPI.Intracomm) -> dict[str, Pairs]:
    """Lanes on hosts, against bare Puts and Gets of the same bytes. Collective."""
    client = comm.rank == comm.size - 1
    hosted = HostedLanes(
        comm,
        hosts=range(comm.size - 1),
        num_lanes=SIMULATORS,
        capacity=CAPACITY,
        mirror=WINDOW,
        record_bytes=DTYPE.itemsize,
        table_floats=0,
        writes=range(SIMULATORS) if client else (),
    )
    figures = client_figures(hosted) if client else {}
    done, backoff = comm.Ibarrier(), Backoff(comm)
    while not done.Test():
        backoff.wait()
    hosted.free()
    return figures


def client_figures(hosted: HostedLanes) -> dict[str, Pairs]:
    sizes = {"stack": STACK, "n_step": N_STEP, "first_lane": 0, "num_simulators": SIMULATORS}
    lanes = DistributedLanes(hosted, FRAME, np.dtype(np.uint8), send_period=SEND_PERIOD, set_priorities=None, **sizes)
    stepper = Stepper(lanes)
    bare = BareCalls(hosted, BareRing(stepper, SEND_PERIOD))

    def send() -> None:
        for _ in range(SEND_PERIOD):
            stepper.append()
        lanes.flush()

    times(send, CAPACITY // SEND_PERIOD)()
    adds = ADDS // SEND_PERIOD
    return {
        "add.remote": per_call(pairs(times(send, adds), times(bare.put, adds), 1), SEND_PERIOD * adds),
        "sample.remote": per_call(pairs(times(sampler(lanes), BATCHES), times(bare.get, BATCHES), 1), BATCHES),
    }


class BareCalls:
    """Puts and Gets of the same bytes, and a Flush of each host.

    What is put is collected in a bare ring before, and batches are made of what was got.
    """

    def __init__(self, hosted: HostedLanes, ring: BareRing):
        self.ring = ring
        self.win, self.hosts = hosted.window.win, hosted.hosts
        self.rng = np.random.default_rng(4)
        self.records = np.zeros((SIMULATORS, SEND_PERIOD * DTYPE.itemsize), np.uint8)
        self.first = hosted._layouts[0].slot(0, 0)
        self.places = len(range(0, SIMULATORS, len(self.hosts))) * CAPACITY - SEND_PERIOD * WINDOW

    def _transfer(self, call, rows: np.ndarray) -> None:
        places = (self.first + self.rng.integers(self.places, size=len(rows)) * DTYPE.itemsize).tolist()
        for k, (row, place) in enumerate(zip(rows, places, strict=True)):
            call([row, MPI.BYTE], self.hosts[k % len(self.hosts)], [place, row.nbytes, MPI.BYTE])
        for host in self.hosts:
            self.win.Flush(host)

    def put(self) -> None:
        for _ in range(SEND_PERIOD):
            self.ring.append()
        self._transfer(self.win.Put, self.records)

    def get(self) -> tuple:
        batch = np.empty((BATCH_SIZE, WINDOW), DTYPE)
        self._transfer(self.win.Get, batch.view(np.uint8))
        taken = batch[:, STACK - 1]
        return bare_batch(batch["frame"], taken["action"], taken["reward"], taken["terminated"])


if __name__ == "__main__":
    world = MPI.COMM_WORLD
    found = local() if sys.argv[1] == "local" else remote(world)
    if found:
        print(MARK + json.dumps(found), flush=True)
