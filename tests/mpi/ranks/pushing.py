"""``pushing.py FLAVOUR MODE RECORDS``: numbered records through rings, at random speeds.

Rank 0 and, with more than two ranks, the last rank consume; all but rank 0 produce, so the last pushes to itself too.
MODE ``wait``: a producer waits for room, and reads every consumer's answer to every record; ``place``: likewise, and
makes its records where the consumer will read them, if it can; ``drop``: it never waits. At the end their lists are
compared.
"""

import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.transport.counters import Counters
from hpcrl.transport.ring import Rings
from hpcrl.transport.waiting import Backoff

FLAVOUR, MODE, RECORDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
WORDS = 50

comm = MPI.COMM_WORLD
rank, last = comm.rank, comm.size - 1
consumers = sorted({0, last} if comm.size > 2 else {0})
producers = list(range(1, comm.size))
counters = Counters(comm, owner=0, names=["over"], flavour=FLAVOUR)
# Records of different sizes on different consumers, none a multiple of a cache line.
words = {consumer: WORDS + 3 * consumer for consumer in consumers}
rings = Rings(
    comm,
    name="test",
    producers=producers,
    record_bytes={consumer: 8 * (1 + n) for consumer, n in words.items()},
    capacity={"wait": 2, "place": 1, "drop": 3}[MODE],  # no more than there are answers, or some would be lost
    flavour=FLAVOUR,
    max_requests=2,
)
rng = np.random.default_rng(rank)
# Some producers are faster than their consumers, some slower.
pause_seconds = 0.0 if rank % 2 else 5e-4
to_push = RECORDS if rank in producers else 0
accepted = {consumer: [] for consumer in consumers}
taken = {producer: [] for producer in producers}
pushed = refused = answered = 0
places = {consumer: rings.place(consumer) for consumer in consumers} if to_push else {}


def record(number: int, consumer: int) -> tuple[np.ndarray, np.ndarray]:
    numbers = np.empty(words[consumer], np.int64) if places[consumer] is None else places[consumer][8:].view(np.int64)
    numbers[:] = number
    return np.array([rank], np.int64), numbers


def answer(number: int, consumer: int) -> int:
    return (7 * number + consumer) % 4096


def take_answers() -> None:
    global answered
    for answers in rings.answers():
        assert answers == [answer(answered, consumer) for consumer in consumers], (answered, answers)
        answered += 1


def push_one() -> int:
    """Try one push; how many records are done with."""
    if not rings.room():  # where a ring has one record only: it is drained
        return 0
    take_answers()
    assert rings.push({consumer: record(pushed, consumer) for consumer in consumers})
    for numbers in accepted.values():
        numbers.append(pushed)
    return 1


def push_some() -> int:
    """Try to push a few records, one by one or at once, and count what is refused; how many are done with."""
    global refused
    count = min(int(rng.integers(1, 5)), to_push - pushed)
    for consumer in consumers:
        if count == 1:
            done = int(rings.push({consumer: record(pushed, consumer)}))
        else:
            room = rings.room_at(consumer)
            done = rings.push_many(
                consumer, np.stack([np.concatenate(record(pushed + i, consumer)) for i in range(count)])
            )
            assert done >= min(room, count)
        accepted[consumer] += range(pushed, pushed + done)
        refused += count - done
    return count


def take_some() -> int:
    waiting = rings.waiting()
    assert all(0 <= n <= 3 for n in waiting), waiting
    chosen = [p for p, n in enumerate(waiting) if n and rng.random() < 0.7]
    for p in chosen:
        oldest = rings.oldest(p).view(np.int64)
        take(p, oldest[None])
    rings.pop(chosen, {p: answer(taken[producers[p]][-1], rank) for p in chosen})
    return sum(waiting)


def take_many() -> int:
    waiting = rings.waiting()
    for p in [p for p, n in enumerate(waiting) if n and rng.random() < 0.7]:
        records = rings.records(p)
        assert 0 < len(records) <= 3
        records = records[: rng.integers(1, len(records) + 1)]
        take(p, records.view(np.int64))
        rings.pop([p], count=len(records))
    return sum(waiting)


def take(p: int, records: np.ndarray) -> None:
    """Check records of producer ``p``, int64 ``[n, 1 + words]``, and note their numbers."""
    assert (records[:, 0] == producers[p]).all()
    assert (records[:, 1:] == records[:, 1:2]).all(), f"torn: {records}"
    if rng.random() < 0.2:
        time.sleep(rng.random() * 4e-4)
    assert (records[:, 1:] == records[:, 1:2]).all(), f"overwritten while they were read: {records}"
    taken[producers[p]] += records[:, 1].tolist()


backoff = Backoff(comm)
said = False
while True:
    everyone_is_over = counters.get("over") == len(producers)  # before the look, not after
    busy = False
    if pushed < to_push:
        done = push_some() if MODE == "drop" else push_one()
        pushed += done
        busy |= done > 0
        time.sleep(rng.random() * pause_seconds)
    elif to_push and not said:
        counters.add("over", 1)
        said = busy = True
    if rank in consumers:
        busy |= (take_many() if MODE == "drop" else take_some()) > 0
    if everyone_is_over and not busy and (rank in consumers or rings.drained()):
        break
    if busy:
        backoff.reset()
    else:
        backoff.wait()

assert rings.dropped == refused
comm.Barrier()
assert rings.drained()
if MODE != "drop" and to_push:
    take_answers()
    assert answered == RECORDS
assert not any(rings.waiting())
pushes = comm.gather(accepted)
takes = comm.gather(taken)
dropped = comm.reduce(rings.dropped)
in_place = comm.reduce(sum(place is not None for place in places.values()))
if rank == 0:
    for consumer in consumers:
        for producer in producers:
            assert takes[consumer][producer] == pushes[producer][consumer], (consumer, producer)
    received = sum(len(numbers) for consumer in consumers for numbers in takes[consumer].values())
    assert received + dropped == RECORDS * len(producers) * len(consumers)
    if MODE != "drop":
        assert dropped == 0
    print(f"received {received} dropped {dropped} in place {in_place}", flush=True)
rings.free()
counters.free()
