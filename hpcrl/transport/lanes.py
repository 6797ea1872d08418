"""Lanes of records spread over the windows of several hosts, with tables of numbers beside them."""

import threading
from collections.abc import Mapping, Sequence

import numpy as np
from mpi4py import MPI

from hpcrl.transport.lane_protocol import LanesLayout, LaneWriter, look, overtaken, read, write
from hpcrl.transport.protocol import Get, Program, Replace, round_up
from hpcrl.transport.window import Window, drive

FLOAT_BYTES = 8


class HostedLanes:
    """``L`` lanes, dealt to ``H`` hosts in turn: lane ``l`` is lane ``l // H`` of host ``l % H``. Collective.

    All ranks may read every lane; each lane has one writer. Hosts need only make MPI progress. The threads of a rank
    take turns.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks.
    hosts : sequence of int
        Ranks that hold the lanes.
    num_lanes, capacity, mirror, record_bytes : int
        See :class:`hpcrl.transport.lane_protocol.LanesLayout`.
    table_floats : int
        For each lane, float64 in its host's :attr:`table`, which the host alone writes and all may read.
    writes : sequence of int
        Lanes that this rank writes.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        hosts: Sequence[int],
        num_lanes: int,
        capacity: int,
        mirror: int,
        record_bytes: int,
        table_floats: int,
        writes: Sequence[int],
        flavour: str = "allocate",
        max_requests: int = 64,
    ):
        self.hosts, self.num_lanes, self.capacity = tuple(hosts), num_lanes, capacity
        self._layouts = []
        for host in range(len(self.hosts)):
            lanes = self.lanes_of(host)
            start = round_up(FLOAT_BYTES * table_floats * lanes)
            self._layouts.append(LanesLayout(start, lanes, capacity, mirror, record_bytes))
        places = [(self._layouts[lane % len(hosts)], lane // len(hosts)) for lane in range(num_lanes)]
        self._first_bytes = np.array([layout.slot(place, 0) for layout, place in places], np.int64)
        """int64 ``[L]``: where each lane begins in its host's window"""
        mine = self._layouts[self.hosts.index(comm.rank)] if comm.rank in self.hosts else None
        self.window = Window(
            comm,
            mine.end if mine else 0,
            name="lanes",
            flavour=flavour,
            max_requests=max_requests,
            cleared_bytes=mine.slot(0, 0) if mine else 0,
        )
        self.table = self.window.local[: mine.start].view(np.float64) if mine else None
        """float64, this host's own; see :meth:`show`"""
        self._writers = {lane: LaneWriter(*places[lane]) for lane in writes}
        self._turn = threading.Lock()
        self._seen: np.ndarray | None = None
        """int64 ``[L, 2]``: the cursors as they were seen last"""

    def lanes_of(self, host: int) -> int:
        """Lanes that a host holds."""
        return len(range(host, self.num_lanes, len(self.hosts)))

    def _drive(self, programs: Mapping[int, Program]) -> dict[int, object]:
        """Run a program against each of some hosts; results by host."""
        with self._turn:
            results = drive(self.window, [(self.hosts[host], program) for host, program in programs.items()])
        return dict(zip(programs, results, strict=True))

    # reading ------------------------------------------------------------------------------------------------------

    def look(self) -> tuple[np.ndarray, np.ndarray]:
        """int64 ``[L]`` each: records that are begun, and complete, in each lane."""
        cursors = np.empty((self.num_lanes, 2), np.int64)
        programs = {host: look(layout) for host, layout in enumerate(self._layouts) if layout.lanes}
        for host, seen in self._drive(programs).items():
            cursors[host :: len(self.hosts)] = seen
        self._seen = cursors
        return cursors[:, 0], cursors[:, 1]

    def recent(self) -> tuple[np.ndarray, np.ndarray]:
        """As :meth:`look`, but as they were seen last, say at the end of :meth:`read`; which takes no time."""
        return (self._seen[:, 0], self._seen[:, 1]) if self._seen is not None else self.look()

    def reserved(self) -> np.ndarray:
        """int64 ``[L]``"""
        return self.look()[0]

    def committed(self) -> np.ndarray:
        """int64 ``[L]``"""
        return self.look()[1]

    def read(self, lane: np.ndarray, first: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Copy ``B`` runs of consecutive records.

        Parameters
        ----------
        lane, first : int64 [B]
            Lane and absolute index of the first record of each run.
        out : [B, ...]
            Contiguous; row ``b`` takes run ``b``.

        Returns
        -------
        bool [B]
            Which runs their writers may have overtaken meanwhile; records before index 0 are not looked at.
        """
        hosts = len(self.hosts)
        offsets = self._first_bytes[lane] + first % self.capacity * self._layouts[0].record_bytes
        wanted: dict[int, tuple[list[int], list[np.ndarray]]] = {}
        rows = out.reshape(len(out), -1).view(np.uint8)
        for number, offset, row in zip(lane.tolist(), offsets.tolist(), rows, strict=True):
            begins, parts = wanted.setdefault(number % hosts, ([], []))
            begins.append(offset)
            parts.append(row)
        # Its columns may be in use, so a new array.
        seen = np.zeros((self.num_lanes, 2), np.int64) if self._seen is None else self._seen.copy()
        for host, cursors in self._drive({h: read(self._layouts[h], *runs) for h, runs in wanted.items()}).items():
            seen[host::hosts] = cursors
        self._seen = seen
        return overtaken(seen[lane, 0], np.maximum(first, 0), self.capacity)

    def read_tables(self, wanted: Mapping[int, Sequence[tuple[int, np.ndarray]]]) -> None:
        """Copy from the tables of hosts: for each host, from which float on into which float64 array."""

        def gets(parts: Sequence[tuple[int, np.ndarray]]) -> Program:
            yield tuple(Get(FLOAT_BYTES * first, out) for first, out in parts)

        self._drive({host: gets(parts) for host, parts in wanted.items()})

    # writing ------------------------------------------------------------------------------------------------------

    def write(self, records: Mapping[int, np.ndarray]) -> None:
        """Append records, contiguous ``[count, ...]``, to each of some of this rank's lanes; complete on return."""
        by_host: dict[int, tuple[list[LaneWriter], list[np.ndarray]]] = {}
        for lane, rows in records.items():
            writers, runs = by_host.setdefault(lane % len(self.hosts), ([], []))
            writers.append(self._writers[lane])
            runs.append(rows)
        self._drive({host: write(*parts) for host, parts in by_host.items()})

    def go_on(self) -> None:
        """Let this rank's writers go on behind what their lanes hold."""
        committed = self.committed()
        for lane, writer in self._writers.items():
            writer.index = int(committed[lane])

    # the host itself ----------------------------------------------------------------------------------------------

    def own_records(self, dtype: np.dtype) -> np.ndarray:
        """``dtype [lanes, capacity + mirror]``: the records of this host's lanes, where they lie."""
        mine = self._layouts[self.hosts.index(self.window.rank)]
        return self.window.local[mine.slot(0, 0) : mine.end].view(dtype).reshape(mine.lanes, -1)

    def look_at_own(self) -> np.ndarray:
        """int64 ``[lanes, 2]``: the cursors of this host's lanes, reserved and committed."""
        mine = self.hosts.index(self.window.rank)
        return self._drive({mine: look(self._layouts[mine])})[mine]

    def own_reserved(self) -> np.ndarray:
        """int64 ``[lanes]``: records begun in this host's lanes."""
        return self.look_at_own()[:, 0]

    def set_own(self, place: int, index: int) -> None:
        """Let lane ``place`` of this host, which nobody writes yet, hold the records below ``index``."""
        host = self.hosts.index(self.window.rank)

        def words() -> Program:
            layout = self._layouts[host]
            yield Replace(layout.reserved(place), index)
            yield Replace(layout.committed(place), index)

        self.show()
        self._drive({host: words()})

    def show(self) -> None:
        """Let others see what this host wrote to its memory, and this host what others did."""
        self.window.win.Sync()

    def free(self) -> None:
        """Free the window; collective. ``table`` must not be used afterwards."""
        self.table = None
        self.window.free()


class OwnCursors:
    """The cursors of a host's own lanes, for filling them before anybody writes, and for saving them."""

    def __init__(self, lanes: HostedLanes):
        self._lanes = lanes

    def _look(self) -> np.ndarray:
        self._lanes.show()  # records copied before are read before the cursors, those copied behind, after
        cursors = self._lanes.look_at_own()
        self._lanes.show()
        return cursors

    def reserved(self) -> np.ndarray:
        """int64 ``[lanes]``"""
        return self._look()[:, 0]

    def committed(self) -> np.ndarray:
        """int64 ``[lanes]``"""
        return self._look()[:, 1]

    def reserve(self, lanes: np.ndarray, counts: int) -> np.ndarray:
        """The first free index of each of ``lanes``: what is stored there is shown by :meth:`commit` alone."""
        return self.committed()[lanes]

    def commit(self, lanes: np.ndarray, counts: int) -> None:
        """Publish ``counts`` more records in each of ``lanes``."""
        for lane, index in zip(lanes.tolist(), self.committed()[lanes].tolist(), strict=True):
            self._lanes.set_own(lane, index + counts)
