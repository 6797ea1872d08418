"""Rings of fixed-size records from many producers to the ranks that consume them."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from mpi4py import MPI

from hpcrl.transport.protocol import WORD, Consumer, FetchMany, Producer, RingLayout, round_up
from hpcrl.transport.window import Window, drive


class Rings:
    """One ring from each producer to each consumer, in the consumers' windows. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks that take part.
    producers : sequence of int
        Ranks that push.
    record_bytes : mapping of int to int
        Consumer rank to the bytes of one record in its rings.
    capacity : int
        Records that a ring holds.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        name: str,
        producers: Sequence[int],
        record_bytes: Mapping[int, int],
        capacity: int,
        flavour: str = "allocate",
        max_requests: int = 64,
    ):
        self.producers = tuple(producers)
        layouts = {rank: self._layouts(nbytes, capacity) for rank, nbytes in record_bytes.items()}
        mine = layouts.get(comm.rank, [])
        self.window = Window(comm, mine[-1].end if mine else 0, name=name, flavour=flavour, max_requests=max_requests)
        self.consumers = [Consumer(layout) for layout in mine]
        self._heads = np.zeros(len(mine), np.int64)
        self.to: dict[int, Producer] = {}
        if comm.rank in self.producers:
            index = self.producers.index(comm.rank)
            self.to = {rank: Producer(rings[index]) for rank, rings in layouts.items()}
        self.dropped = 0
        """records given up because a ring was full"""
        self._answered = 0

    def _layouts(self, record_bytes: int, capacity: int) -> list[RingLayout]:
        layouts, start = [], round_up(WORD * len(self.producers))
        for index in range(len(self.producers)):
            layouts.append(RingLayout(start, capacity, record_bytes, head_word=WORD * index))
            start = layouts[-1].end
        return layouts

    # producer -----------------------------------------------------------------------------------------------------

    def room(self) -> bool:
        """Whether a record can be pushed to every consumer now."""
        return self._look(lambda ring: ring.room() > 0)

    def room_at(self, consumer: int) -> int:
        """Records that can be pushed to one consumer now."""
        drive(self.window, [(consumer, self.to[consumer].look())])
        return self.to[consumer].room()

    def drained(self) -> bool:
        """Whether every consumer is done with everything that this producer pushed."""
        return self._look(lambda ring: ring.head == ring.tail)

    def _look(self, good) -> bool:
        behind = [(rank, ring.look()) for rank, ring in self.to.items() if not good(ring)]
        if behind:
            drive(self.window, behind)
        return all(good(ring) for ring in self.to.values())

    def place(self, consumer: int) -> np.ndarray | None:
        """uint8 ``[record_bytes]``: where the next record to a consumer will lie, if it can be made in its place.

        Its parts are then pushed without being copied. That takes a ring of one record, since the place must stay the
        same, and :meth:`~hpcrl.transport.window.Window.mapped` memory. It may be written while the ring is drained.
        """
        layout = self.to[consumer].layout
        memory = self.window.mapped(consumer) if layout.capacity == 1 else None
        return None if memory is None else memory[layout.data(0) : layout.data(0) + layout.record_bytes]

    def push(self, records: Mapping[int, Sequence[np.ndarray]]) -> bool:
        """Push a record to each of the consumers in ``records``, side by side.

        A record is given as contiguous arrays that are laid one after the other. They are free again on return, unless
        they lie in the record's :meth:`place`.

        Returns
        -------
        bool
            False where some ring was full; to that consumer nothing was written, and ``dropped`` counts it.
        """
        pushed = drive(self.window, [(rank, self.to[rank].push(*parts)) for rank, parts in records.items()])
        self.dropped += pushed.count(False)
        return all(pushed)

    def push_many(self, consumer: int, records: np.ndarray) -> int:
        """Push small records to one consumer: data once, index once, so that each costs well below a microsecond.

        Parameters
        ----------
        records : contiguous, ``[n, ...]``, of ``record_bytes`` each
            The oldest first. Free again on return.

        Returns
        -------
        int
            How many were pushed; the ring had no room for the rest, which ``dropped`` counts.
        """
        layout = self.to[consumer].layout
        rows = records.reshape(len(records), -1).view(np.uint8)
        if rows.shape[1] != layout.record_bytes:
            raise ValueError(f"a record of this ring has {layout.record_bytes} bytes, got {rows.shape[1]}")
        if layout.slot_bytes != layout.record_bytes:
            padded = np.zeros((len(rows), layout.slot_bytes), np.uint8)
            padded[:, : layout.record_bytes] = rows
            rows = padded
        (pushed,) = drive(self.window, [(consumer, self.to[consumer].push_many(rows))])
        self.dropped += len(rows) - pushed
        return pushed

    def answers(self) -> list[list[int]]:
        """What each consumer answered to every record that all were seen to consume since this was last asked.

        Ask before :data:`~hpcrl.transport.protocol.ANSWERS` further records are pushed; older answers are lost.
        """
        done = min(ring.tail for ring in self.to.values())
        found = [[ring.answer(index) for ring in self.to.values()] for index in range(self._answered, done)]
        self._answered = done
        return found

    # consumer -----------------------------------------------------------------------------------------------------

    def waiting(self) -> list[int]:
        """For each producer, the number of its records that wait here."""
        if any(c.head == c.tail for c in self.consumers):
            # One call for all: with a hundred producers, one for each would take a quarter of a millisecond.
            self.window.start(FetchMany(0, self._heads), self.window.rank)
            self.window.flush(self.window.rank)
            for consumer, head in zip(self.consumers, self._heads.tolist(), strict=True):
                consumer.head = head
        return [c.head - c.tail for c in self.consumers]

    def oldest(self, producer: int) -> np.ndarray:
        """uint8 ``[record_bytes]`` view of a producer's oldest record, valid until :meth:`pop`."""
        return self.records(producer)[0]

    def records(self, producer: int) -> np.ndarray:
        """uint8 ``[n, record_bytes]`` view of a producer's oldest records, valid until :meth:`pop`.

        As many as lie side by side: where the ring wraps, the rest comes after these are popped.
        """
        consumer = self.consumers[producer]
        layout, count = consumer.layout, consumer.side_by_side()
        begin = layout.data(consumer.tail)
        self.window.win.Sync()
        slots = self.window.local[begin : begin + count * layout.slot_bytes]
        return slots.reshape(count, layout.slot_bytes)[:, : layout.record_bytes]

    def pop(
        self, producers: Iterable[int], answers: Mapping[int, int] = MappingProxyType({}), *, count: int = 1
    ) -> None:
        """Give the oldest ``count`` records of each of ``producers`` back, with an answer (default 0)."""
        self.window.win.Sync()  # what was read of them is read before their producers may overwrite it
        drive(self.window, [(self.window.rank, self.consumers[p].pop(answers.get(p, 0), count)) for p in producers])

    def free(self) -> None:
        """Free the window; collective."""
        self.window.free()
