"""``hosting.py HOSTS uniform|prioritized SECONDS``: ranks write a global memory while the last one samples it.

The first ranks host the lanes, the next write them, the last draws. A frame is its lane and index all over, so a torn
or misplaced one shows; a record's priority is ``1 + (lane + index) % 4`` at first, and the sampler sets it anew to
``1 + (lane + index + round) % 4``. The sampler compares how often it draws what with what is to be expected, however
far the writers got meanwhile: see `AliveThroughout` and `AsRead`.
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
from hpcrl.replay.lanes import lowest_drawable, record_dtype
from hpcrl.replay.newcomers import Newcomers
from hpcrl.replay.priorities import BLOCK_SLOTS, PriorityTable, blocks_per_lane
from hpcrl.replay.prioritized import PrioritizedReplay
from hpcrl.replay.uniform import Draw, UniformReplay
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.replay_host import ReplayHost
from hpcrl.transport.lanes import HostedLanes
from hpcrl.transport.ring import Rings
from hpcrl.transport.waiting import Backoff, wait_for_all

HOSTS, SAMPLING, SECONDS = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
FRAME, STACK, N_STEP, LANES_EACH, CAPACITY, SEND, TAG = (500,), 2, 2, 3, 300, 4, 10_000_000
BATCH_SIZE = 256
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
    role = ReplayHost(
        comm.rank,
        reserved=hosted.own_reserved,
        show=hosted.show,
        table=table,
        rings=rings,
        reporter=Reporter(lambda record: True, 1.0),
    )
    done, backoff = comm.Ibarrier(), Backoff(comm)
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


class Score:
    """Draws by cell, against how many of them each cell was to have.

    Every draw is independent of all before it, given what its expectation was made of.
    """

    def __init__(self, shape: tuple[int, ...]):
        self.found, self.expected = np.zeros(shape), np.zeros(shape)

    def standard(self) -> float:
        """Pearson's chi-square as a standard normal deviate (Wilson and Hilferty 1931)."""
        free = self.found.size - 1
        statistic = ((self.found - self.expected) ** 2 / self.expected).sum()
        return ((statistic / free) ** (1 / 3) - 1 + 2 / (9 * free)) / np.sqrt(2 / (9 * free))


class AliveThroughout:
    """Uniform draws, by lane and age, among the records that could be drawn from before a batch until after it.

    Whatever else could be drawn for some of that time, and however often something was drawn again: each of these
    records had the same chance in every draw.
    """

    AGES = 16

    def __init__(self):
        self.scores = [Score((num_lanes, self.AGES))]

    def before(self) -> None:
        self.end = hosted.committed() - N_STEP

    def after(self, lane: np.ndarray, index: np.ndarray) -> None:
        begin = lowest_drawable(hosted.reserved(), capacity=CAPACITY, stack=STACK)
        records = np.maximum(self.end - begin, 0)
        edges = -(-np.arange(self.AGES + 1) * records[:, None] // self.AGES)
        mine = (begin[lane] <= index) & (index < self.end[lane])
        lane, index = lane[mine], index[mine]
        (score,) = self.scores
        np.add.at(score.found, (lane, (index - begin[lane]) * self.AGES // records[lane]), 1)
        if records.any():
            score.expected += len(lane) * np.diff(edges, axis=1) / records.sum()


class AsRead:
    """Prioritised draws, by block and by place in it, among the priorities that the sampler itself had read.

    Stands between the sampler and its priorities, and looks at every draw before anything is drawn again.
    """

    PLACES = 16

    def __init__(self):
        self.blocks, self.places = self.scores = Score((num_lanes * blocks_per_lane(CAPACITY),)), Score((self.PLACES,))
        self.full = False

    def sums(self) -> np.ndarray:
        self.read_sums = priorities.sums()
        return self.read_sums

    def slots(self, blocks: np.ndarray) -> np.ndarray:
        self.drawn, self.read_slots = blocks, priorities.slots(blocks)
        return self.read_slots

    def look(self, draw: Draw) -> None:
        count, totals = len(self.drawn), self.read_slots.sum(axis=1)
        if not self.full:
            return
        self.blocks.found += np.bincount(self.drawn, minlength=len(self.read_sums))
        self.blocks.expected += count * self.read_sums / self.read_sums.sum()
        held = totals > 0  # others were emptied between sum and slots
        place = (draw.index[held] % CAPACITY) % BLOCK_SLOTS % self.PLACES
        self.places.found += np.bincount(place, minlength=self.PLACES)
        share = self.read_slots[held] / totals[held, None]
        self.places.expected += share.sum(axis=0).reshape(-1, self.PLACES).sum(axis=0)

    def before(self) -> None:
        self.full = self.full or bool(hosted.committed().min() > CAPACITY)

    def after(self, lane: np.ndarray, index: np.ndarray) -> None:
        pass


class Watched(PrioritizedReplay):
    """Shows its draws."""

    def _propose(self, count: int, rng: np.random.Generator) -> Draw | None:
        draw = super()._propose(count, rng)
        if draw:
            self._priorities.look(draw)
        return draw


def sample(until: float) -> str:
    rng, draws, rounds = np.random.default_rng(0), 0, 0
    returns = {"n_step": N_STEP, "discount": 0.5, "reward_clip": None}
    watch = AsRead() if prioritized else AliveThroughout()
    if prioritized:
        sources = {"priorities": watch, "set_priorities": priorities.set, "beta": lambda: 1.0}
        replay = Watched(lanes, **returns, **sources)
    else:
        replay = UniformReplay(lanes, **returns)
    while time.monotonic() < until:
        watch.before()
        batch = replay.sample(BATCH_SIZE, rng)
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
        watch.after(lane, index)
        draws += BATCH_SIZE
    wait_for_all(comm)
    scores = " ".join(f"{score.standard():.2f}" for score in watch.scores)
    return f"draws {draws} overwritten {replay.overwritten} scores {scores}"


comm.Barrier()
until = time.monotonic() + SECONDS
said = host() if comm.rank in hosts else write(until) if comm.rank in writers else sample(until)
for line in comm.gather(said) or ():
    print(line, flush=True)
comm.Barrier()
rings.free()
hosted.free()
