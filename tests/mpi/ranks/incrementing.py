"""``incrementing.py LOCKING INCREMENTS CHUNKS``: every rank but the owner adds to every chunk; nothing is lost."""

import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.transport.store import ChunkStore
from hpcrl.transport.waiting import Backoff, wait_for_all

LOCKING, INCREMENTS, CHUNKS = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
LENGTH = 64 * CHUNKS

comm = MPI.COMM_WORLD
store = ChunkStore(comm, owners=[0], bounds=[0, LENGTH], chunks=CHUNKS, vectors=2, locking=LOCKING)
wait_for_all(comm)
adders = max(comm.size - 1, 1)
mine = INCREMENTS // adders + (1 <= comm.rank <= INCREMENTS % adders)
began, missed = time.perf_counter(), 0
if comm.rank or comm.size == 1:
    backoff = Backoff(comm)
    left = np.full(len(store.chunks), mine)
    while left.any():
        worked = False
        for chunk in np.roll(np.flatnonzero(left), comm.rank):
            block = store.try_acquire(chunk)
            if block is None:
                missed += 1
                continue
            assert (block.vectors == block.count[0]).all(), f"torn chunk {chunk}"
            block.count[:] += 1
            block.vectors[:] += 1
            store.release(chunk, block)
            left[chunk] -= 1
            worked = True
        backoff.reset() if worked else backoff.wait()
seconds = time.perf_counter() - began
wait_for_all(comm, 1e-4)  # where MPI locks, it does so only while the owner looks
if comm.rank == 0:
    total = INCREMENTS
    for chunk in range(len(store.chunks)):
        block = store.try_acquire(chunk)
        assert block.count[0] == total, (chunk, block.count, total)
        assert (block.vectors == total).all()
        store.release(chunk, None)
slowest = comm.reduce(seconds, MPI.MAX)
all_missed = comm.reduce(missed)
store.free()
if comm.rank == 0:
    print(f"chunks {CHUNKS} each {total} seconds {slowest:.3f} missed {all_missed} rate {CHUNKS * total / slowest:.0f}")
