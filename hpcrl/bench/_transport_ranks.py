"""The ranks of ``hpcrl bench transport``: ours and the bare calls in turn, over the same windows.

``python -m hpcrl.bench._transport_ranks PARAMETERS PART...``, under mpiexec: the last rank is the client, all others
are servers, which wait as those of a training job do. Parts are methods of `Bench`. The client prints one line, `MARK`
and then as JSON ``{row: [[ours, bare], ...]}``: seconds of one call, for each pair.
"""

import json
import sys
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

from hpcrl.bench._jobs import MARK
from hpcrl.transport.counters import Counters
from hpcrl.transport.parameters import ShardedVector
from hpcrl.transport.protocol import Add
from hpcrl.transport.ring import Rings
from hpcrl.transport.waiting import Backoff, is_over_network, wait_for_all

PAIRS = 9
PAIR_BYTES = 1e8
"""Transfers are repeated within one half of a pair until about this much has moved."""
MOST_REPEATS = 15
UPDATE_PARAMETERS = 3e7
"""Updates are repeated until about so many parameters were updated."""
PAUSE_SECONDS = 3e-3
"""Between transfers, which do not come back to back from a learner that computes."""
HEADER_BYTES = 64
RECORD_WORDS, RING_RECORDS, BATCH_RECORDS, BATCHES, SINGLES = 8, 4096, 512, 20, 500
ADDITIONS = 100

Pairs = list[tuple[float, float]]


def seconds(do: Callable[[], object], repeats: int, pause: float = 0.0) -> float:
    """Mean time of ``do()``, with pauses between that do not count."""
    total = 0.0
    for _ in range(repeats):
        begin = time.perf_counter()
        do()
        total += time.perf_counter() - begin
        if pause:
            time.sleep(pause)
    return total / repeats


def pairs(ours: Callable[[], object], bare: Callable[[], object], repeats: int, pause: float = 0.0) -> Pairs:
    """Times of both in turn, after one call of each that is not counted."""
    ours(), bare()
    return [(seconds(ours, repeats, pause), seconds(bare, repeats, pause)) for _ in range(PAIRS)]


class Bench:
    """One rank's part in all measurements. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        Servers, and then the client.
    parameters : int
        Length of the vector.
    """

    def __init__(self, comm: MPI.Intracomm, parameters: int):
        self.comm, self.servers, self.client = comm, comm.size - 1, comm.size - 1
        self.bounds = [parameters * k // self.servers for k in range(self.servers + 1)]
        self.repeats = max(1, min(MOST_REPEATS, round(PAIR_BYTES / (4 * parameters))))
        self.is_client = comm.rank == self.client
        self.over_network = is_over_network(comm)
        self.figures: dict[str, Pairs] = {}

    def shards(self):
        """Server rank and bounds of each shard."""
        return list(zip(range(self.servers), self.bounds[:-1], self.bounds[1:], strict=True))

    def serve_until_done(self, look: Callable[[], bool] = lambda: False) -> None:
        """What a rank does until all have come here: a server looks for work; both make progress and sleep."""
        request, backoff = self.comm.Ibarrier(), Backoff(self.comm, wakeful=self.over_network and not self.is_client)
        while not request.Test():
            if not self.is_client and look():
                backoff.reset()
            else:
                backoff.wait()

    def _vector(self) -> ShardedVector:
        return ShardedVector(
            self.comm, name="bench", owners=range(self.servers), bounds=self.bounds, readers=[self.client], slots=3
        )

    def pull(self) -> None:
        """A pull, beside a bare Get of each shard and a Flush of each server."""
        vector = self._vector()
        if not self.is_client:
            begin, end = self.bounds[self.comm.rank : self.comm.rank + 2]
            vector.publish(np.ones(end - begin, np.float32), 1)
        wait_for_all(self.comm)
        if self.is_client:
            out, win = np.empty(self.bounds[-1], np.float32), vector.window.win

            def get():
                for rank, begin, end in self.shards():
                    win.Get(out[begin:end], rank, vector.layouts[rank].data(1))
                for rank, _, _ in self.shards():
                    win.Flush(rank)

            def ours():
                vector.pull(out, np.full(self.servers, -1))

            def bare() -> float:
                """The servers know of a reader all the while, so that they are as awake as they ever are."""
                gates = [vector.window.word(Add(layout.latest, 1), rank) for rank, layout in enumerate(vector.layouts)]
                mean = seconds(get, self.repeats, PAUSE_SECONDS)
                for rank, layout in enumerate(vector.layouts):
                    vector.window.word(Add(layout.left(layout.unpack(gates[rank]).gate), 1), rank)
                return mean

            ours(), bare()
            self.figures["pull"] = [(seconds(ours, self.repeats, PAUSE_SECONDS), bare()) for _ in range(PAIRS)]
        self.serve_until_done(vector.attend)
        vector.free()

    def push(self) -> None:
        """A push of a gradient, beside a bare Put of each slice and a Flush of each server."""
        record_bytes = {rank: HEADER_BYTES + 4 * (end - begin) for rank, begin, end in self.shards()}
        rings = Rings(self.comm, name="bench", producers=[self.client], record_bytes=record_bytes, capacity=1)
        if self.is_client:
            gradient, win, header = np.ones(self.bounds[-1], np.float32), rings.window.win, np.zeros(8, np.int64)
            backoff = Backoff(self.comm)
            records = {rank: (header, gradient[begin:end]) for rank, begin, end in self.shards()}

            def bare():
                for rank, begin, end in self.shards():
                    win.Put(gradient[begin:end], rank, rings.to[rank].layout.data(0) + HEADER_BYTES)
                for rank, _, _ in self.shards():
                    win.Flush(rank)

            def timed(do: Callable[[], object]) -> float:
                total = 0.0
                for _ in range(self.repeats):
                    total += seconds(do, 1, PAUSE_SECONDS)  # and the server takes the record meanwhile
                    while not rings.drained():
                        backoff.wait()
                return total / self.repeats

            timed(lambda: rings.push(records)), timed(bare)
            self.figures["push"] = [(timed(lambda: rings.push(records)), timed(bare)) for _ in range(PAIRS)]
        self.serve_until_done(lambda: self._consume(rings))
        rings.free()

    def _consume(self, rings: Rings) -> bool:
        (waiting,) = rings.waiting()
        if waiting:
            records = rings.records(0)
            if records.shape[1] < 4096:
                records.copy()  # small ones are taken out; a gradient is used where it lies
            rings.pop([0], count=len(records))
        return bool(waiting)

    def update(self) -> None:
        """Each optimizer's step and a publication, beside the fastest of torch's own and one copy; on one server."""
        vector = self._vector()
        if not self.is_client:
            from hpcrl.bench._updates import OPTIMIZERS, updates  # and torch: by the one rank that needs it

            repeats = max(1, min(MOST_REPEATS, round(UPDATE_PARAMETERS / self.bounds[-1])))
            for name in OPTIMIZERS:
                self.figures[f"update.{name}"] = pairs(*updates(name, vector), repeats)
        self.serve_until_done()
        self.figures |= self.comm.bcast(self.figures, root=0)
        vector.free()

    def ring(self) -> None:
        """Small records through a ring and out of it, beside bare Puts of the same bytes and a Flush after each."""
        record_bytes = {0: 8 * RECORD_WORDS}
        rings = Rings(
            self.comm, name="bench", producers=[self.client], record_bytes=record_bytes, capacity=RING_RECORDS
        )
        if self.is_client:
            backoff, win, target = Backoff(self.comm), rings.window.win, rings.to[0].layout.data(0)
            batch = np.ones((BATCH_RECORDS, RECORD_WORDS), np.int64)

            def through(push: Callable[[], int], records: int) -> None:
                """Push until so many were accepted, and wait until all are taken."""
                backoff.reset()
                while records > 0:
                    pushed = push()
                    records -= pushed
                    if not pushed:
                        backoff.wait()
                while not rings.drained():
                    backoff.wait()

            def bare(data: np.ndarray, times: int) -> None:
                for _ in range(times):
                    win.Put(data, 0, target)
                    win.Flush(0)

            total = BATCHES * BATCH_RECORDS
            for name, push, data, records in (
                ("ring.batches", lambda: rings.push_many(0, batch), batch, total),
                ("ring.singles", lambda: rings.push({0: (batch[0],)}), batch[0], SINGLES),
            ):
                both = pairs(
                    lambda push=push, records=records: through(push, records),
                    lambda data=data, records=records: bare(data, records * 8 * RECORD_WORDS // data.nbytes),
                    1,
                )
                self.figures[name] = [(ours / records, theirs / records) for ours, theirs in both]
        self.serve_until_done(lambda: self._consume(rings))
        rings.free()

    def counter(self) -> None:
        """Additions to a counter, beside a bare Fetch_and_op and Flush."""
        counters = Counters(self.comm, owner=0, names=["bench"])
        if self.is_client:
            win, one, old = counters.window.win, np.ones(1, np.int64), np.zeros(1, np.int64)

            def bare():
                win.Fetch_and_op(one, old, 0, 0, MPI.SUM)
                win.Flush(0)

            self.figures["counter"] = pairs(lambda: counters.add("bench", 1), bare, ADDITIONS)
        self.serve_until_done()
        counters.free()


def main() -> None:
    comm = MPI.COMM_WORLD
    bench = Bench(comm, int(sys.argv[1]))
    for part in sys.argv[2:]:
        getattr(bench, part)()
    if bench.is_client:
        print(MARK + json.dumps(bench.figures), flush=True)
    wait_for_all(comm)


if __name__ == "__main__":
    main()
