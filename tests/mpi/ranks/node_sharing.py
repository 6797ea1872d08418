"""``node_sharing.py``: rank 0 serves, the others are one node that shares what it pulls and adds up what it pushes."""

from types import SimpleNamespace

import numpy as np
import torch
from mpi4py import MPI

from hpcrl.roles.parameter_server import HEADER_WORDS, encode_verdict
from hpcrl.roles.updates import APPLIED, CombinedUpdate
from hpcrl.transport import node_vector
from hpcrl.transport.lock_protocol import release, try_acquire
from hpcrl.transport.node_sum import NodeSum
from hpcrl.transport.node_vector import NodeVector
from hpcrl.transport.parameters import ShardedVector
from hpcrl.transport.ring import Rings
from hpcrl.transport.waiting import Backoff, wait_for_all
from hpcrl.transport.window import drive

SIZE, VERSIONS, ROUNDS = 50_000, 30, 8
comm = MPI.COMM_WORLD
readers = range(1, comm.size)
rng = np.random.default_rng(comm.rank)


def of_the_node() -> MPI.Intracomm:
    return comm.Split(0 if comm.rank else MPI.UNDEFINED, comm.rank)


def share() -> None:
    """Each version crosses once at most, nobody gets an older one than the newest, or parts of two."""
    vector = ShardedVector(comm, name="shared", owners=[0], bounds=[0, SIZE], readers=readers)
    node_comm, crossed, pulled = of_the_node(), 0, 0
    out, versions = np.zeros(SIZE, np.float32), np.array([-1], np.int64)
    if comm.rank == 0:
        vector.publish(out, 0)
    wait_for_all(comm)
    if comm.rank == 0:
        for version in range(1, VERSIONS):
            out[:] = version
            while not vector.publish(out, version):
                comm.Iprobe()
            Backoff(comm).wait()
    else:
        mine = NodeVector(vector, node_comm, local=set())
        while versions[0] < VERSIONS - 1:
            newest = vector.newest([0])[0]
            pulled += mine.pull(out, versions)
            assert versions[0] >= newest
            assert (out == versions[0]).all(), (versions, np.unique(out))
        crossed = mine.crossed
    crossed, pulled = comm.reduce(crossed), comm.reduce(pulled)
    if comm.rank == 0:
        assert 1 <= crossed <= VERSIONS, crossed
        assert pulled >= crossed + len(readers) - 1  # the last version, for one, was shared
        print(f"crossed {crossed} pulled {pulled}")
    wait_for_all(comm)
    if comm.rank:
        go_without(mine, vector)
        mine.free()
    wait_for_all(comm)
    vector.free()


def go_without(mine: NodeVector, vector: ShardedVector) -> None:
    """While the first of the node keeps the lock, the others pull by themselves; afterwards they share again."""
    mine._patience = node_vector.PATIENCE_SECONDS = 0.1
    first = mine.window.rank == 0
    if first:
        assert drive(mine.window, [(0, try_acquire(node_vector._LOCK, 0))]) == [True]
    wait_for_all(mine.comm)
    out, before = np.zeros(SIZE, np.float32), mine.crossed
    if not first:
        for crossed in (1, 2):
            versions = np.array([-1], np.int64)
            assert mine.pull(out, versions)
            assert (out == VERSIONS - 1).all()
            assert mine.crossed == before + crossed
    wait_for_all(mine.comm)
    if first:
        drive(mine.window, [(0, release(node_vector._LOCK))])
    wait_for_all(mine.comm)
    node_vector.PATIENCE_SECONDS = mine._patience = 60.0
    before, out[:] = mine.crossed, 0
    assert mine.pull(out, np.array([-1], np.int64))
    assert mine.crossed == before
    assert (out == VERSIONS - 1).all()


def combine() -> None:
    """What the server gets is the sum of all gradients, in fewer pushes, and every learner hears of its own."""
    record = {0: 8 * HEADER_WORDS + 4 * SIZE}
    rings = Rings(comm, name="gradients", producers=readers, record_bytes=record, capacity=1)
    node_comm = of_the_node()
    total, given, pushes = np.zeros(SIZE), np.zeros(SIZE), 0
    if comm.rank:
        online = SimpleNamespace(flat=np.zeros(SIZE), versions=np.zeros(1, np.int64))
        online.host_gradients = lambda: gradient
        gradient = np.zeros(SIZE, np.float32)
        update = CombinedUpdate(
            online,
            None,
            node=(node := NodeSum(node_comm, size=SIZE, shards=1, patience_seconds=60.0)),
            stall_seconds=60.0,
            labels=[f"rank {rank}" for rank in readers],
            gradients=rings,
            servers=[(0, 0, SIZE)],
            pull_period=1,
            target_period=1,
        )
    for number in range(ROUNDS):
        backoff = Backoff(comm)
        if comm.rank:
            gradient[:] = rng.integers(-9, 9, size=SIZE)
            refused = number % 4 == comm.rank
            given += 0 if refused else gradient
            online.versions[:] = number + comm.rank
            update.give(number, accepted=not refused)
            while not refused and update._mine is None:
                assert update.fates() is None
        wait_for_all(comm)
        if comm.rank:
            while (fates := update.fates()) is None:
                backoff.wait()
            assert refused and fates == [] or [fate for fate, _ in fates] == [APPLIED], fates
        done = comm.Ibarrier()
        while not done.Test():
            for learner, waits in enumerate(rings.waiting() if comm.rank == 0 else []):
                header = rings.oldest(learner)[: 8 * HEADER_WORDS].view(np.int64) if waits else None
                if waits and header[1] == number:  # learners may be in the next round already
                    assert number + 1 <= header[0] < number + comm.size
                    total += rings.oldest(learner)[8 * HEADER_WORDS :].view(np.float32)
                    rings.pop([learner], {learner: encode_verdict(True, 0)})
                    pushes += 1
            backoff.wait()
    given = comm.reduce(given)
    if comm.rank == 0:
        np.testing.assert_array_equal(total, given)
        # One goes at once, and what is there by then together with it or after it.
        assert ROUNDS <= pushes <= 2 * ROUNDS, pushes
        print(f"pushes {pushes} gradients {ROUNDS * len(readers) - ROUNDS // 4 * len(readers)}", flush=True)
    else:
        node.free()
    wait_for_all(comm)
    rings.free()


torch.set_num_threads(1)
share()
combine()
