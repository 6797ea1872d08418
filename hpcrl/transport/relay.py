"""Rings of large records between ranks that both compute, in memory of ranks that only serve."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hpcrl.transport.protocol import Consumer, Get, Producer, Program, RingLayout
from hpcrl.transport.window import Window, drive


class Relay:
    """A ring from each producer to one consumer, which takes turns among the rings that are its. Collective.

    Neither side waits for the other to enter MPI: both reach memory of a host. The producers are dealt out to the
    consumers in turn, and to the hosts.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks that take part.
    hosts, producers, consumers : sequence of int
        Ranks; those of consumers and producers are others.
    record_bytes : int
        Of one record.
    capacity : int
        Records that a ring holds.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        name: str,
        hosts: Sequence[int],
        producers: Sequence[int],
        consumers: Sequence[int],
        record_bytes: int,
        capacity: int,
        flavour: str = "allocate",
        max_requests: int = 64,
    ):
        ends = dict.fromkeys(hosts, 0)
        self._producer: tuple[int, Producer] | None = None
        self._consumers: list[tuple[int, Consumer]] = []
        for index, producer in enumerate(producers):
            host = hosts[index % len(hosts)]
            layout = RingLayout(ends[host], capacity, record_bytes)
            ends[host] = layout.end
            if producer == comm.rank:
                self._producer = host, Producer(layout)
            if consumers[index % len(consumers)] == comm.rank:
                self._consumers.append((host, Consumer(layout)))
        nbytes = ends.get(comm.rank, 0)
        self.window = Window(comm, nbytes, name=name, flavour=flavour, max_requests=max_requests)
        self._turn = 0

    def push(self, record: np.ndarray) -> bool:
        """Push a contiguous record, free again on return; False, and nothing is sent, where there is no room."""
        host, producer = self._producer
        return bool(drive(self.window, [(host, producer.push(record))])[0])

    def holds(self, count: int) -> bool:
        """Whether so many records wait for this consumer."""
        if self._known() < count:
            drive(self.window, [(host, ring.look()) for host, ring in self._consumers])
        return self._known() >= count

    def _known(self) -> int:
        """Records that waited when the rings were last looked at."""
        return sum(ring.head - ring.tail for _, ring in self._consumers)

    def pop(self, out: np.ndarray) -> None:
        """Copy a record that waits into ``out``, uint8 ``[record_bytes]``: the oldest of the ring whose turn it is."""
        count = len(self._consumers)
        order = [(self._turn + i) % count for i in range(count)]
        index = next(i for i in order if self._consumers[i][1].head > self._consumers[i][1].tail)
        self._turn = index + 1
        host, ring = self._consumers[index]
        drive(self.window, [(host, _pop(ring, out))])

    def free(self) -> None:
        """Free the window; collective."""
        self.window.free()


def _pop(ring: Consumer, out: np.ndarray) -> Program:
    yield Get(ring.layout.data(ring.tail), out)
    yield from ring.pop()
