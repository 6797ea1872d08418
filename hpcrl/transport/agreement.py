"""Numbers and reports that ranks share without a server: in a meeting everybody tells everybody, in one allgather.

Synchronous learners have no rank that only serves. What other jobs keep in a server's window (counters, the stop flag,
reports to the monitor) rides here on the meetings that they hold before each update. Every rank sees the same rows of
the same meetings in the same order, so that what is decided from them is decided alike: who stops stops after the same
meeting as all others, and an update takes place when everybody has offered a gradient, or not at all.

A rank begins a meeting when it has a gradient, and else now and then, so that ranks which still fill their memories,
or have nothing to learn from, hear of a stop. Nobody waits inside MPI for the others: a meeting is a nonblocking
allgather, tested between two rounds of the loop. A rank that is alone meets itself with every word that it says, so
that all is known at once, as it is with a server.
"""

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from mpi4py import MPI

PERIOD_SECONDS = 0.05
"""Between two meetings in which nobody has a gradient."""
NOTES = 4
"""Reports of a rank that one meeting carries; others wait for the next."""
MOST_NOTES = 256
"""Reports of a rank that may wait before further ones are dropped."""


class Agreement:
    """Counters, offers and notes that are agreed on in meetings. Collective over ``comm``, as is every meeting.

    As a role it goes last in its rank's loop. As :class:`~hpcrl.transport.counters.Counters` it holds the job's counts,
    as :class:`~hpcrl.transport.ring.Rings` the reports to rank ``owner``.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks.
    names : mapping of str to int
        Counts and their first values, the same on every rank. A change is known, on all ranks, after the next meeting.
    own : sequence of str
        ``name/rank`` is a word that this rank alone sets.
    note_bytes : int
        Length of a report.
    ranks : sequence of int
        What each rank is called in its own words; by its number, if not given.
    """

    kind, index, owner = "agreement", 0, 0
    LARGEST = ("stop",)
    """names of which the largest value holds that any rank has set"""
    AT_ONCE = ("total_frames", "global_update")
    """names of which a rank sees its own changes at once"""

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        names: Mapping[str, int],
        own: Sequence[str],
        note_bytes: int,
        ranks: Sequence[int] | None = None,
    ):
        self.comm = comm.Dup()
        self._row = {rank: row for row, rank in enumerate(range(comm.size) if ranks is None else ranks)}
        self._names, self._own_names = (
            {name: i for i, name in enumerate(names)},
            {name: i for i, name in enumerate(own)},
        )
        self._totals = np.array(list(names.values()), np.int64)
        self._changes = np.zeros(len(names), np.int64)
        self._settled, self._since = self._totals.copy(), self._changes.copy()
        self._alone = comm.size == 1
        self._own, self._own_words = np.zeros((comm.size, len(own)), np.int64), np.zeros(len(own), np.int64)
        fields = [("changes", "i8", len(names)), ("own", "i8", len(own)), ("offer", "i8"), ("notes", "i8")]
        self._rows = np.zeros(comm.size, np.dtype([*fields, ("note", "u1", (NOTES, note_bytes))]))
        self._mine = np.zeros(1, self._rows.dtype)
        self._request: MPI.Request | None = None
        self._next = 0.0
        self._offer, self._offers = 0, None
        self._largest = [self._names[name] for name in self.LARGEST]
        self._unsent: deque[np.ndarray] = deque()
        self._heard: list[deque[np.ndarray]] = [deque() for _ in range(comm.size)]
        self.meetings = self.settlements = 0

    # counters -----------------------------------------------------------------------------------------------------

    def get(self, name: str) -> int:
        """Value of a count as of the last meeting, or of another rank's own word."""
        word, _, rank = name.partition("/")
        if rank:
            return int(self._own[self._row[int(rank)], self._own_names[word]])
        at = self._names[name]
        return int(self._totals[at] + (self._changes[at] if name in self.AT_ONCE else 0))

    def set(self, name: str, value: int) -> None:
        """Set a count that no other rank sets, or one of `LARGEST`, or this rank's own word."""
        word, _, rank = name.partition("/")
        if rank:
            self._own_words[self._own_names[word]] = value
        else:
            at = self._names[name]
            self._changes[at] = value if name in self.LARGEST else value - self._totals[at]
            if name in self.LARGEST:
                self._next = 0.0  # the others are to know at once
        self._meet_alone()

    def add(self, name: str, value: int) -> int:
        """Add to a count; returns what it is by now, as far as can be known without asking.

        That is its value when all last had a gradient, and since then what this rank added, as often as there are
        ranks: it does not depend on when meetings happened to be.
        """
        at = self._names[name]
        self._changes[at] += value
        self._since[at] += value
        self._meet_alone()
        return int(self._settled[at] + self.comm.size * self._since[at])

    def settled(self, name: str) -> int:
        """Value of a count when all last had a gradient: the same for all, whenever between two updates they ask.

        Before there is any such moment, or with nobody to ask, it is as of the last meeting.
        """
        agreed = self.settlements and not self._alone
        return int((self._settled if agreed else self._totals)[self._names[name]])

    # offers -------------------------------------------------------------------------------------------------------

    def offer(self, accepted: bool) -> None:
        """This rank has computed a gradient, and ``accepted`` it or not."""
        self._offer, self._offers, self._next = 1 + accepted, None, 0.0
        self._meet_alone()

    def offers(self) -> np.ndarray | None:
        """bool ``[ranks]``: whose gradient is accepted, once everybody has offered one; None before."""
        offers, self._offers = self._offers, None
        return offers

    # notes --------------------------------------------------------------------------------------------------------

    def push(self, records: Mapping[int, Sequence[np.ndarray]]) -> bool:
        """Send a report, uint8 ``[note_bytes]``, to the owner; False where too many wait."""
        ((record,),) = records.values()
        if len(self._unsent) >= MOST_NOTES:
            return False
        self._unsent.append(record)
        self._meet_alone()
        return True

    def waiting(self) -> list[int]:
        """For each rank, the number of its reports that wait here."""
        return [len(notes) for notes in self._heard]

    def oldest(self, rank: int) -> np.ndarray:
        """uint8 ``[note_bytes]``: a rank's oldest report."""
        return self._heard[rank][0]

    def pop(self, ranks: Iterable[int]) -> None:
        """Give up the oldest report of each of ``ranks``."""
        for rank in ranks:
            self._heard[rank].popleft()

    # meetings -----------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Begin a meeting if there is a reason, or end the one that is under way; whether one has ended."""
        if self._alone:
            return False
        if self._request is None:
            if not self._offer and time.monotonic() < self._next:
                return False
            self._speak()
            words = [self._mine.view(np.uint8), MPI.BYTE], [self._rows.view(np.uint8), MPI.BYTE]
            self._request = self.comm.Iallgather(*words)
        if not self._request.Test():
            return False
        self._end()
        return True

    def _meet_alone(self) -> None:
        if self._alone:
            self._speak()
            self._rows[:] = self._mine
            self._end()

    def _speak(self) -> None:
        """What this rank says in the meeting that begins."""
        mine = self._mine[0]
        mine["changes"], mine["own"], mine["offer"] = self._changes, self._own_words, self._offer
        mine["notes"] = min(len(self._unsent), NOTES)
        for i in range(mine["notes"]):
            mine["note"][i] = self._unsent.popleft()
        self._sent = self._changes.copy()

    def _end(self) -> None:
        self._request, rows = None, self._rows
        self.meetings += 1
        self._next = time.monotonic() + PERIOD_SECONDS
        before = self._totals[self._largest]
        self._totals += rows["changes"].sum(axis=0)
        self._totals[self._largest] = np.maximum(before, rows["changes"][:, self._largest].max(axis=0))
        self._changes -= self._sent
        self._own[:] = rows["own"]
        if self.comm.rank == self.owner:
            for rank, count in enumerate(rows["notes"]):
                self._heard[rank].extend(rows["note"][rank, :count].copy())
        if rows["offer"].all():
            self._offers, self._offer = rows["offer"] == 2, 0
            self.settlements += 1
            self._settled, self._since = self._totals.copy(), self._changes.copy()

    def free(self) -> None:
        """End what is under way and free the communicator; collective."""
        if self._request is not None:
            self._request.Wait()
            self._request = None
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()
