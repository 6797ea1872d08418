"""``counting.py FLAVOUR``: every rank adds to the same counters; nothing is lost and no two see the same value."""

import sys

from mpi4py import MPI

from hpcrl.transport.counters import Counters, Turn
from hpcrl.transport.waiting import Backoff

FLAVOUR = sys.argv[1]

comm = MPI.COMM_WORLD
ADDS = 3000 // comm.size
counters = Counters(comm, owner=comm.size - 1, names=["a", "b", "ticket"], flavour=FLAVOUR)
seen = [counters.add("a", 1) for _ in range(ADDS)]
assert seen == sorted(seen)
everyone = comm.allgather(seen)
assert sorted(value for values in everyone for value in values) == list(range(1, comm.size * ADDS + 1))
for _ in range(100):
    counters.add("a", -2)
    counters.add("b", comm.rank)
comm.Barrier()
assert counters.get("a") == comm.size * (ADDS - 200)
assert counters.get("b") == 100 * sum(range(comm.size))
comm.Barrier()
if comm.rank == 0:
    counters.set("b", -(2**62))
comm.Barrier()
assert counters.get("b") == -(2**62)
comm.Barrier()

# Turns: each party adds its number to what all before it made of the counter, in a fixed order.
turn, backoff = Turn(counters, position=comm.rank, parties=comm.size), Backoff(comm)
if comm.rank == 0:
    counters.set("b", 0)
comm.Barrier()
for _ in range(20):
    while not turn.mine():
        backoff.wait()
    backoff.reset()
    counters.set("b", counters.get("b") + comm.rank + 1)
    turn.pass_on()
comm.Barrier()
assert counters.get("b") == 20 * sum(range(1, comm.size + 1))
if comm.rank == 0:
    print("exact", flush=True)
counters.free()
