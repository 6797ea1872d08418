"""What stands in for windows where all readers and writers are one rank: the same interfaces, and nothing is copied."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np


class OwnVector:
    """A vector as the rank that holds it reads it: see :class:`~hpcrl.transport.parameters.ShardedVector`.

    Parameters
    ----------
    newest : callable, optional
        ``newest()``: float32 ``[size]`` in host memory, and their version. Else that of the last :meth:`publish`.
    """

    def __init__(self, newest: Callable[[], tuple[np.ndarray, int]] | None = None):
        self.newest = newest

    def publish(self, values: np.ndarray, version: int) -> bool:
        """Make ``values`` the newest version; they are not copied, but read where they lie."""
        self.newest = lambda: (values, version)
        return True

    def attend(self) -> bool:
        """Nobody else is in the middle of a pull."""
        return False

    def pull(self, out: np.ndarray, versions: np.ndarray) -> bool:
        """Copy into ``out``, float32 ``[size]``, if newer than ``versions``, int64 ``[shards]``; whether it was."""
        values, version = self.newest()
        new = bool(versions[0] != version)
        if new:
            out[:], versions[:] = values, version
        return new


class OwnRing:
    """A ring of one record from a rank to itself: see :class:`~hpcrl.transport.ring.Rings`.

    What its producer has made in the record's :meth:`place` itself need not be copied there.

    Parameters
    ----------
    record : numpy.ndarray
        uint8 ``[record_bytes]``: the memory of the record.
    """

    def __init__(self, record: np.ndarray):
        self.record = record
        self._full = False
        self._answers: list[list[int]] = []

    def room(self) -> bool:
        """Whether a record can be pushed now."""
        return not self._full

    drained = room

    def place(self, consumer: int) -> np.ndarray:
        """uint8 ``[record_bytes]``: where the next record will lie."""
        return self.record

    def push(self, records: Mapping[int, Sequence[np.ndarray]]) -> bool:
        """Push a record, given as contiguous arrays that are laid one after the other."""
        (parts,) = records.values()
        begin = 0
        for part in parts:
            place = self.record[begin : begin + part.nbytes]
            if part.ctypes.data != place.ctypes.data:
                place[:] = part.view(np.uint8)
            begin += part.nbytes
        self._full = True
        return True

    def answers(self) -> list[list[int]]:
        """What was answered to every record since this was last asked."""
        found, self._answers = self._answers, []
        return found

    def waiting(self) -> list[int]:
        """The number of records that wait, of the only producer."""
        return [int(self._full)]

    def oldest(self, producer: int) -> np.ndarray:
        """The record that waits."""
        return self.record

    def pop(self, producers: Iterable[int], answers: Mapping[int, int]) -> None:
        """Give the record back, with an answer, if ``producers`` has its own."""
        for producer in producers:
            self._full = False
            self._answers.append([answers[producer]])
