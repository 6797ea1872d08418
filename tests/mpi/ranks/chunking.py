"""``chunking.py FLAVOUR SEED``: transfers of random lengths in tiny chunks, never more in flight than the bound."""

import sys
from collections import Counter

import numpy as np
import pytest
from mpi4py import MPI

from hpcrl.transport.protocol import Add, Fetch, Get, Put
from hpcrl.transport.window import Window, drive

FLAVOUR, SEED = sys.argv[1], int(sys.argv[2])
BYTES = 6000


class CountingWin:
    """An MPI window that counts what is begun and not flushed."""

    def __init__(self, win):
        self.win, self.in_flight, self.most = win, Counter(), 0
        self.longest = self.transfers = 0

    def __getattr__(self, name):
        return getattr(self.win, name)

    def _begun(self, target):
        self.in_flight[target] += 1
        self.most = max(self.most, self.in_flight[target])

    def Put(self, origin, target, spec):
        self._transfer(origin, target)
        self.win.Put(origin, target, spec)

    def Get(self, origin, target, spec):
        self._transfer(origin, target)
        self.win.Get(origin, target, spec)

    def _transfer(self, origin, target):
        self.transfers += 1
        self.longest = max(self.longest, origin[0].nbytes)
        self._begun(target)

    def Fetch_and_op(self, origin, result, target, *more):
        self._begun(target)
        self.win.Fetch_and_op(origin, result, target, *more)

    def Flush(self, target):
        self.win.Flush(target)
        self.in_flight[target] = 0


class CountingWindow(Window):
    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.win = CountingWin(self.win)


comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
rng, common = np.random.default_rng([SEED, rank]), np.random.default_rng(SEED)
total = 0
for _ in range(5):
    max_requests, max_transfer_bytes = int(common.integers(1, 9)), int(common.integers(1, 900))
    # Each rank has a region and a word of its own in every window; rank 0 exposes more than the others.
    window = CountingWindow(
        comm,
        size * (BYTES + 64) + (640 if rank == 0 else 0),
        name="test",
        flavour=FLAVOUR,
        max_requests=max_requests,
        max_transfer_bytes=max_transfer_bytes,
    )
    for _ in range(5):
        length = int(rng.integers(0, BYTES // 8 + 1)) * 8
        sent = rng.integers(0, 256, length).astype(np.uint8)
        # Another type and shape, the same bytes.
        put = sent.view(np.int64).reshape(-1, 1) if rng.random() < 0.5 else sent
        targets = [int(t) for t in rng.permutation(size)[: rng.integers(1, size + 1)]]
        got = {target: np.zeros(length, np.uint8) for target in targets}
        mine = rank * (BYTES + 64)

        def program(target, mine=mine, put=put, got=got):
            yield Put(mine, put)
            words = yield tuple(Add(mine + BYTES, 1) for _ in range(20))
            yield Get(mine, got[target]), Fetch(mine + BYTES)
            return len(set(words))

        distinct = drive(window, [(target, program(target)) for target in targets])
        assert distinct == [20] * len(targets)
        for target in targets:
            assert got[target].tobytes() == sent.tobytes(), (target, length)
    total += window.win.transfers
    if size == 1:
        assert window.win.most == 0, "a rank that is alone does all itself"
    else:
        assert 0 < window.win.most <= max_requests, (window.win.most, max_requests)
    assert window.win.longest <= max_transfer_bytes
    assert not any(window.win.in_flight.values())
    comm.Barrier()
    if rank == 0:
        with pytest.raises(ValueError, match="contiguous"):
            window.start(Put(0, np.zeros((4, 4))[:, 1]), size - 1)
    window.win = window.win.win
    window.free()
    window.free()
if rank == 0:
    print("transfers", total, flush=True)
