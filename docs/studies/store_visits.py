"""``store_visits.py CHUNKS``, under mpiexec: an owner of a store, and learners that do nothing but visit its chunks.

A learner reads, changes and overwrites one chunk after the other, as they are free. The owner prints how often all of
them together went over all chunks, per second.
"""

import sys
import time

from mpi4py import MPI

from hpcrl.transport.store import ChunkStore
from hpcrl.transport.waiting import Backoff, wait_for_all

PARAMETERS, MOMENTS = 1_687_206, 2
"""The network of Nature DQN, and Adam."""
SECONDS = 2.0


def main(chunks: int) -> None:
    """Visit, and print on the owner."""
    comm = MPI.COMM_WORLD
    store = ChunkStore(comm, owners=[0], bounds=[0, PARAMETERS], chunks=chunks, vectors=1 + MOMENTS)
    wait_for_all(comm)
    end, visits, backoff = time.monotonic() + SECONDS, 0, Backoff(comm)
    first = (comm.rank - 1) * chunks // max(comm.size - 1, 1)
    while comm.rank and time.monotonic() < end:
        pending = [(first + i) % chunks for i in range(chunks)]
        while pending:
            left = []
            for chunk in pending:
                if block := store.try_acquire(chunk):
                    block.vectors[:] += 1
                    store.release(chunk, block)
                else:
                    left.append(chunk)
            backoff.reset() if len(left) < len(pending) else backoff.wait()
            pending = left
        visits += 1
    wait_for_all(comm)
    visits = comm.reduce(visits)
    store.free()
    if comm.rank == 0:
        print(visits / SECONDS)


if __name__ == "__main__":
    main(int(sys.argv[1]))
