"""``publishing.py FLAVOUR SERVERS PATIENCE SECONDS``: stamped vectors, published flat out, pulled with random delays.

Each element of a version equals it. Delays fall between pulls and inside of them, after every flush.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.transport.counters import Counters
from hpcrl.transport.parameters import ShardedVector

FLAVOUR, SERVERS, PATIENCE, SECONDS = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])

comm = MPI.COMM_WORLD
rank = comm.rank
bounds = {1: [0, 30011], 2: [0, 30011, 30048]}[SERVERS]
readers = list(range(SERVERS, comm.size))
counters = Counters(comm, owner=0, names=["over"], flavour=FLAVOUR)
vector = ShardedVector(
    comm,
    name="test",
    owners=list(range(SERVERS)),
    bounds=bounds,
    readers=readers,
    slots=3,
    patience_seconds=PATIENCE,
    flavour=FLAVOUR,
    max_requests=3,
)
vector.window.max_transfer_bytes = 4096 + 4 * rank
rng = np.random.default_rng(rank)


def serve() -> tuple[int, int]:
    """Versions published, and tries for which no slot was free."""
    size = bounds[rank + 1] - bounds[rank]
    values, version, put_off = np.zeros(size, np.float32), 0, 0
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        values[:] = version + 1
        published = vector.publish(values, version + 1)
        version += published
        put_off += not published
        values[:] = -1  # it is ours again
        if not published:
            comm.Iprobe()
            time.sleep(0)
    counters.add("over", 1)
    return version, put_off


class Pulls:
    def __init__(self):
        self.out, self.versions = np.full(bounds[-1], np.nan, np.float32), np.full(SERVERS, -1, np.int64)
        self.pulls = self.most_rounds = 0

    def pull(self) -> None:
        before, rounds_before = self.versions.copy(), list(vector.rounds)
        new = vector.pull(self.out, self.versions)
        rounds = np.subtract(vector.rounds, rounds_before)
        assert new == bool(rounds.any())
        for k, (begin, end) in enumerate(zip(bounds[:-1], bounds[1:], strict=True)):
            shard = self.out[begin:end]
            assert (shard == self.versions[k]).all(), f"shard {k}, version {self.versions[k]}: {np.unique(shard)}"
            assert self.versions[k] >= before[k]
            assert (self.versions[k] > before[k]) == (rounds[k] > 0)
        self.pulls += 1
        self.most_rounds = max(self.most_rounds, int(rounds.max()))


pulls = Pulls()
comm.Barrier()
if rank < SERVERS:
    mine = serve()
else:
    flush = vector.window.flush

    def slow_flush(target: int) -> None:
        flush(target)
        if rng.random() < 0.05:
            time.sleep(rng.random() * 2e-3)

    vector.window.flush = slow_flush
    while counters.get("over") < SERVERS:
        pulls.pull()
        time.sleep(rng.random() * 1e-3 * (rank - SERVERS))
    mine = (pulls.pulls, pulls.most_rounds)
everyone = comm.allgather(mine)
if rank >= SERVERS:
    pulls.pull()
    assert pulls.versions.tolist() == [version for version, _ in everyone[:SERVERS]], "the last version of all"
if rank == 0:
    print("published", *(f"{version} put-off {n}" for version, n in everyone[:SERVERS]))
    print("pulls", *(f"{n}" for n, _ in everyone[SERVERS:]))
    print("most-rounds", max(rounds for _, rounds in everyone[SERVERS:]), flush=True)
comm.Barrier()
vector.free()
counters.free()
