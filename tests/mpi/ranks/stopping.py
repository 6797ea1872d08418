"""``stopping.py FLAVOUR STEP``: a reader gets SIGSTOP after step STEP of its read; the server goes on publishing."""

import os
import signal
import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.transport.counters import Counters
from hpcrl.transport.parameters import ShardedVector

FLAVOUR, STEP = sys.argv[1], int(sys.argv[2])
PATIENCE, SERVE_SECONDS, SIZE = 0.3, 1.5, 50_000

comm = MPI.COMM_WORLD
counters = Counters(comm, owner=0, names=["over", "stopping"], flavour=FLAVOUR)
vector = ShardedVector(
    comm,
    name="test",
    owners=[0],
    bounds=[0, SIZE],
    readers=[1, 2],
    slots=3,
    patience_seconds=PATIENCE,
    flavour=FLAVOUR,
)
pids = comm.allgather(os.getpid())
out, versions = np.full(SIZE, np.nan, np.float32), np.array([-1])


def is_stopped(pid: int) -> bool:
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] == "T"


def serve() -> None:
    version, last, longest, stopped_at = 0, time.monotonic(), 0.0, None
    while stopped_at is None or time.monotonic() < stopped_at + SERVE_SECONDS:
        if vector.publish(np.full(SIZE, version + 1, np.float32), version + 1):
            version, longest, last = version + 1, max(longest, time.monotonic() - last), time.monotonic()
        if stopped_at is None and is_stopped(pids[1]):
            stopped_at, longest = time.monotonic(), 0.0
            first = version
        comm.Iprobe()
        time.sleep(1e-4)
    assert is_stopped(pids[1])
    assert time.monotonic() - last < 2 * PATIENCE
    print(f"published {version - first} past the stopped reader, longest gap {longest:.3f} s", flush=True)
    assert longest < PATIENCE + 0.7
    os.kill(pids[1], signal.SIGCONT)
    counters.set("over", 1)


def check() -> None:
    assert (out == versions[0]).all(), f"version {versions[0]}: {np.unique(out)}"


def read_and_stop() -> None:
    flush, taken = vector.window.flush, 0

    def stopping_flush(target: int) -> None:
        nonlocal taken
        flush(target)
        taken += 1
        if taken == STEP:
            os.kill(os.getpid(), signal.SIGSTOP)

    vector.window.flush = stopping_flush
    while taken < STEP:
        taken = 0  # a read that finds nothing new has fewer steps
        vector.pull(out, versions)
        check()
    print(f"rounds of the stopped read {vector.rounds[0] - rounds}", flush=True)
    assert vector.rounds[0] - rounds <= 2


comm.Barrier()
if comm.rank == 0:
    serve()
elif comm.rank == 1:
    while versions[0] < 3:
        vector.pull(out, versions)
        check()
    rounds = vector.rounds[0]
    read_and_stop()
else:
    while not counters.get("over"):
        rounds = vector.rounds[0]
        vector.pull(out, versions)
        check()
        assert vector.rounds[0] - rounds <= 2
        time.sleep(1e-3)
comm.Barrier()
if comm.rank:
    vector.pull(out, versions)
    check()
vector.free()
counters.free()
