"""One replay memory shared by several ranks, as its actors and learners see it (Gorila, section 4: global replay).

What moves data is handed in (:class:`hpcrl.transport.lanes.HostedLanes` and rings); here is how it is used.
"""

from collections.abc import Sequence

import numpy as np

from hpcrl.replay.lanes import StepWriter, record_dtype
from hpcrl.replay.priorities import BLOCK_SLOTS, SetPriorities, blocks_per_lane

MESSAGE_ROWS = 256
"""Priorities that one message may carry."""
MESSAGE_WORDS = 1 + 3 * MESSAGE_ROWS
"""int64 words of a message: how many rows, and then lane of the host, index, and error (float64) of each"""


def table_floats(capacity: int) -> int:
    """float64 of a lane in its host's table: the sum and the slots of each of its blocks."""
    return blocks_per_lane(capacity) * (1 + BLOCK_SLOTS)


def split_table(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The priorities, ``[blocks, BLOCK_SLOTS]``, and the sums, ``[blocks]``, of a host's table: sums come first."""
    blocks = len(table) // (1 + BLOCK_SLOTS)
    return table[blocks : blocks * (1 + BLOCK_SLOTS)].reshape(blocks, BLOCK_SLOTS), table[:blocks]


class DistributedLanes(StepWriter):
    """`Lanes` in other ranks' memory: read by anybody, written by their actor some steps at a time.

    Parameters
    ----------
    hosted : HostedLanes
        Moves the records.
    obs_shape, obs_dtype
        See `record_dtype`.
    stack, n_step
        See `Lanes`.
    first_lane, num_simulators
        This rank's lanes; ``num_simulators`` 0 where it has none.
    send_period
        Steps between two calls of `flush`, at most. [steps]
    set_priorities
        Where the priorities of these lanes go; None where there are none.
    """

    def __init__(
        self,
        hosted,
        obs_shape: tuple[int, ...],
        obs_dtype: np.dtype,
        *,
        stack: int,
        n_step: int,
        first_lane: int,
        num_simulators: int,
        send_period: int,
        set_priorities: SetPriorities | None,
    ):
        self.cursors = self._hosted = hosted
        self.num_lanes, self.capacity = hosted.num_lanes, hosted.capacity
        self.stack, self.n_step = stack, n_step
        self._first_lane, self._dtype = first_lane, record_dtype(obs_shape, obs_dtype)
        # A step writes a record and, where it ends an episode, a final frame.
        super().__init__(np.zeros((num_simulators, 2 * send_period), self._dtype))
        self._staged = np.zeros(num_simulators, np.int64)
        self._set_priorities = set_priorities
        self._held: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def read(self, lane: np.ndarray, first: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """See `Lanes.read`."""
        runs = np.empty((len(lane), length), self._dtype)
        return runs, self._hosted.read(lane, first, runs)

    def _write(self, lanes: np.ndarray, frame: np.ndarray, outcome: np.ndarray) -> None:
        rows = lanes - self._first_lane
        self._store(rows, self._staged[rows], frame, outcome)
        self._staged[rows] += 1

    def hold(self, lane: np.ndarray, index: np.ndarray, delta: np.ndarray) -> None:
        """Take priorities of records that may not be written yet, until they are; see `SetPriorities`."""
        self._held.append((lane, index, delta))

    def flush(self) -> None:
        """Write what has been appended to the lanes, and then the priorities of what can now be drawn."""
        full = np.flatnonzero(self._staged)
        if full.size:
            staged = self.memory
            self._hosted.write({self._first_lane + row: staged[row, : self._staged[row]] for row in full.tolist()})
            self._staged[:] = 0
        if self._held:
            self._set_priorities(*map(np.concatenate, zip(*self._held, strict=True)))
            self._held.clear()


class SentPriorities:
    """Priorities that other ranks keep: sent to them to be written.

    Parameters
    ----------
    hosts : sequence of int
        Ranks that keep those of the lanes dealt to them in turn.
    rings : Rings
        A ring to each of them.
    """

    def __init__(self, hosts: Sequence[int], rings):
        self._hosts, self._num_hosts, self._rings = hosts, len(hosts), rings
        self._unsent: dict[int, np.ndarray] = {}

    def set(self, lane: np.ndarray, index: np.ndarray, delta: np.ndarray) -> None:
        """Send priorities of records that are in the memory; what a ring has no room for is kept for the next call."""
        rows = np.empty((len(lane), 3), np.int64)
        rows[:, 0], rows[:, 1] = lane // self._num_hosts, index
        rows[:, 2] = np.asarray(delta, np.float64).view(np.int64)
        for host in set((lane % self._num_hosts).tolist()):
            mine = rows[lane % self._num_hosts == host]
            self._unsent[host] = np.concatenate([self._unsent[host], mine]) if host in self._unsent else mine
        for host, waiting in list(self._unsent.items()):
            self._unsent[host] = self._send(host, waiting)
            if not len(self._unsent[host]):
                del self._unsent[host]

    def _send(self, host: int, rows: np.ndarray) -> np.ndarray:
        """Push rows in messages; what is left of them where the ring is full."""
        while len(rows):
            part = np.ascontiguousarray(rows[:MESSAGE_ROWS])
            if not self._rings.push({self._hosts[host]: (np.array([len(part)]), part)}):
                break
            rows = rows[MESSAGE_ROWS:]
        return rows


class SharedPriorities(SentPriorities):
    """Priorities that a rank of this node keeps, in memory that this rank reads directly.

    Parameters
    ----------
    table : float64
        All of them, as :func:`split_table` has them.
    host : int
        Who keeps them.
    rings
        See `SentPriorities`.
    """

    def __init__(self, table: np.ndarray, host: int, rings):
        super().__init__((host,), rings)
        self._values, self._block_sums = split_table(table)

    def sums(self) -> np.ndarray:
        """float64 ``[blocks]``: a copy, as they change meanwhile"""
        return self._block_sums.copy()

    def slots(self, blocks: np.ndarray) -> np.ndarray:
        """float64 ``[B, BLOCK_SLOTS]``: likewise"""
        return self._values[blocks]


class DistributedPriorities(SentPriorities):
    """Priorities that hosts of lanes keep: read where they lie.

    Parameters
    ----------
    hosted : HostedLanes
        Whose tables hold them.
    rings : Rings
        A ring to each host.
    """

    def __init__(self, hosted, rings):
        super().__init__(hosted.hosts, rings)
        self._hosted, self._lane_blocks = hosted, blocks_per_lane(hosted.capacity)

    def sums(self) -> np.ndarray:
        """float64 ``[blocks]`` of all lanes"""
        lanes = {host: self._hosted.lanes_of(host) for host in range(self._num_hosts)}
        parts = {host: np.empty((count, self._lane_blocks)) for host, count in lanes.items() if count}
        self._hosted.read_tables({host: [(0, part)] for host, part in parts.items()})
        sums = np.empty((self._hosted.num_lanes, self._lane_blocks))
        for host, part in parts.items():
            sums[host :: self._num_hosts] = part
        return sums.reshape(-1)

    def slots(self, blocks: np.ndarray) -> np.ndarray:
        """float64 ``[B, BLOCK_SLOTS]``"""
        out, wanted = np.empty((len(blocks), BLOCK_SLOTS)), {}
        lane, block = np.divmod(blocks, self._lane_blocks)
        for row, (host, place) in enumerate(zip(lane % self._num_hosts, lane // self._num_hosts, strict=True)):
            first = self._hosted.lanes_of(host) * self._lane_blocks  # behind the sums
            first += (place * self._lane_blocks + block[row]) * BLOCK_SLOTS
            wanted.setdefault(int(host), []).append((int(first), out[row]))
        self._hosted.read_tables(wanted)
        return out


def decode_message(record: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lane of the host, index and error of each row of a message, uint8 ``[8 * MESSAGE_WORDS]``."""
    words = record.view(np.int64)
    rows = words[1 : 1 + 3 * words[0]].reshape(-1, 3)
    return rows[:, 0], rows[:, 1], rows[:, 2].copy().view(np.float64)
