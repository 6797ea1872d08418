"""The one-sided self-test of ``hpcrl doctor``: are windows right, how fast are they, and whose help do they need?"""

import statistics
import time

import numpy as np
from mpi4py import MPI

from hpcrl.launch.diagnosis import WindowTest
from hpcrl.launch.threads import Place
from hpcrl.transport.protocol import CACHE_LINE, WORD, Add, Fetch, Get, Put
from hpcrl.transport.waiting import Backoff, wait_for_all
from hpcrl.transport.window import Window

ADDS = 100
PATTERN_BYTES = 2**20
LATENCY_ROUNDS = 200
TRANSFER_BYTES, TRANSFERS = 8 * 2**20, 5
ABSENT_SECONDS = 0.3
"""How long the target stays away from MPI in the test of progress."""
CLOCK_ROUNDS = 20
SERVING_SECONDS = 1e-4
"""Longest sleep of a rank that waits while others may need it to serve their accesses."""


def wrong_results(comm: MPI.Intracomm, flavour: str) -> list[str]:
    """What atomic additions and transfers between all ranks gave that they must not; the same list on every rank.

    Every rank adds to a word of rank 0, puts a pattern of its own into its neighbour's memory, and gets its other
    neighbour's back. Collective.

    Raises
    ------
    TransportError
        The windows have no unified memory model.
    """
    window = Window(comm, CACHE_LINE + PATTERN_BYTES, name="self-test", flavour=flavour)
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    seen = [window.word(Add(0, 1), 0) for _ in range(ADDS)]
    pattern = _pattern(comm.rank)  # must live until the flush
    window.start(Put(CACHE_LINE, pattern), after)
    window.flush(after)
    wait_for_all(comm, SERVING_SECONDS)
    window.win.Sync()
    got = np.zeros(PATTERN_BYTES // WORD, np.int64)
    window.start(Get(CACHE_LINE, got), after)
    window.flush(after)
    faults = []
    if window.word(Fetch(0), 0) != comm.size * ADDS or seen != sorted(set(seen)):
        faults.append(f"atomic additions on windows by {flavour} were lost")
    if not np.array_equal(window.local[CACHE_LINE:].view(np.int64), _pattern(before)):
        faults.append(f"MPI_Put on windows by {flavour} left wrong data")
    if not np.array_equal(got, pattern):
        faults.append(f"MPI_Get on windows by {flavour} returned wrong data")
    wait_for_all(comm, SERVING_SECONDS)
    window.free()
    return sorted({fault for found in comm.allgather(faults) for fault in found})


def _pattern(rank: int) -> np.ndarray:
    return np.arange(PATTERN_BYTES // WORD, dtype=np.int64) * 7919 + rank


def partners(places: list[Place]) -> dict[str, int]:
    """A rank on rank 0's node and one on another node, as far as there are any."""
    others = {"inside a node": True, "between nodes": False}
    found = {}
    for where, here in others.items():
        rank = next((r for r, p in enumerate(places) if r and (p.node == places[0].node) == here), None)
        if rank is not None:
            found[where] = rank
    return found


def measure(comm: MPI.Intracomm, flavour: str, where: str, partner: int) -> WindowTest | None:
    """Time rank 0's accesses to ``partner``, which first serves and then stays away from MPI; None elsewhere."""
    window = Window(comm, TRANSFER_BYTES, name="self-test", flavour=flavour)
    result = None
    if comm.rank == 0:
        latency = statistics.median(_seconds(lambda: window.word(Fetch(0), partner)) for _ in range(LATENCY_ROUNDS))
        buffer = np.ones(TRANSFER_BYTES, np.uint8)
        get, put = (_rate(window, operation, partner) for operation in (Get(0, buffer), Put(0, buffer)))
        comm.send(None, partner)
        comm.recv(source=partner)  # it stays away from now on
        waited = _seconds(lambda: _move(window, Get(0, buffer[:PATTERN_BYTES]), partner))
        result = WindowTest(flavour, where, latency, get, put, waited > ABSENT_SECONDS / 2)
    elif comm.rank == partner:
        while not comm.Iprobe(source=0):
            pass  # a server does nothing but this
        comm.recv(source=0)
        comm.send(None, 0)
        time.sleep(ABSENT_SECONDS)
    wait_for_all(comm, SERVING_SECONDS)
    window.free()
    return result


def _rate(window: Window, operation: Get | Put, rank: int) -> float:
    """Bytes per second of one transfer after the other."""
    return TRANSFER_BYTES / statistics.median(
        _seconds(lambda: _move(window, operation, rank)) for _ in range(TRANSFERS)
    )


def _move(window: Window, operation: Get | Put, rank: int) -> None:
    window.start(operation, rank)
    window.flush(rank)


def _seconds(do) -> float:
    begin = time.perf_counter()
    do()
    return time.perf_counter() - begin


def clock_skew(comm: MPI.Intracomm, places: list[Place]) -> float:
    """Largest difference between rank 0's clock and that of another node, on rank 0; 0 elsewhere. [seconds]

    The clock of the answer lies between those of question and receipt; the quickest of several rounds tells most.
    """
    leaders = {place.node: rank for rank, place in reversed(list(enumerate(places)))}
    largest = 0.0
    for rank in sorted(leaders.values()):
        if rank == 0:
            continue
        if comm.rank == 0:
            rounds = []
            for _ in range(CLOCK_ROUNDS):
                begin = time.time()
                there = comm.sendrecv(None, rank, source=rank)
                end = time.time()
                rounds.append((end - begin, there - (begin + end) / 2))
            skew = min(rounds)[1]
            largest = max(largest, skew, key=abs)
        elif comm.rank == rank:
            backoff = Backoff(comm)
            while not comm.Iprobe(source=0):
                backoff.wait()
            for _ in range(CLOCK_ROUNDS):
                comm.recv(source=0)
                comm.send(time.time(), 0)
    wait_for_all(comm, SERVING_SECONDS)
    return largest
