"""Signs of life: every rank counts in a window of the monitor's rank, and nobody waits for anybody's sign.

The monitor sees from the counts who has fallen silent, and every rank sees whether the monitor's rank has. A rank that
is blocked inside an MPI call, say towards a rank that is stopped on another host, sees nothing any more; its
:class:`~hpcrl.transport.watchdog.Watchdog` does.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from hpcrl.errors import EXIT_STALLED
from hpcrl.transport.counters import Counters

log = logging.getLogger(__name__)

BEATS = 4
"""Signs of life in ``run.heartbeat_seconds``."""
LOOKS = 16
"""Looks at them in that time."""
SILENT_AFTER = 0.75
"""Share of that time after which a rank is silent: it is then told within the whole of it."""


class Silence:
    """For how long a counter has stood still.

    Only time in which the looking rank ran itself counts, so that a job that was suspended as a whole, as by
    ``scontrol suspend``, does not find all its ranks silent when it goes on.

    Parameters
    ----------
    most_seconds : float
        The most that one look may add.
    """

    def __init__(self, most_seconds: float):
        self.most_seconds, self.seconds = most_seconds, 0.0
        self._value, self._last = 0, time.monotonic()

    def look(self, value: int) -> float:
        """Seconds for which the counter, whose value is ``value`` now, has not moved."""
        now = time.monotonic()
        gap, self._last = now - self._last, now
        self.seconds = 0.0 if value != self._value else self.seconds + min(gap, self.most_seconds)
        self._value = value
        return self.seconds


class Heartbeat:
    """This rank's sign of life, given between two rounds of its loop, and its eye on the monitor's rank.

    Parameters
    ----------
    rank : int
    beats : Counters
        A counter for every rank, in memory of the monitor's rank.
    beat : callable
        The watchdog's.
    labels : sequence of str
        What each rank is called.
    heartbeat_seconds, stall_seconds : float
        Time for four signs; silence of the monitor's rank after which the job cannot go on.
    end : callable
        ``end(message, exit_code)`` ends the job.
    """

    def __init__(
        self,
        rank: int,
        *,
        beats: Counters,
        beat: Callable[[], None],
        labels: Sequence[str],
        heartbeat_seconds: float,
        stall_seconds: float,
        end: Callable[[str, int], None],
    ):
        self.rank, self.beats, self.beat, self.labels = rank, beats, beat, labels
        self.period, self.stall_seconds, self.end = heartbeat_seconds / BEATS, stall_seconds, end
        self._silence = Silence(2 * self.period)
        self._next = 0.0

    def __call__(self) -> None:
        """This rank is alive."""
        self.beat()
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.period
        self.beats.add(str(self.rank), 1)
        if self._silence.look(self.beats.get(str(self.beats.owner))) > self.stall_seconds:
            self.end(stalled([self.labels[self.beats.owner]], self._silence.seconds), EXIT_STALLED)


class Attendance:
    """Which ranks give signs of life, as the monitor's rank sees it.

    Silent ranks are named, not waited for. Where none is left of those of which the job needs one, it ends.

    Parameters
    ----------
    beats : Counters
        See :class:`Heartbeat`; this rank is the owner.
    labels : sequence of str
        What each rank is called.
    ranks : mapping
        Role kind to the rank of each role of that kind.
    needed : sequence of sequence of int
        Groups of ranks; without a sign of life of any rank of a group for ``stall_seconds`` the job cannot go on.
    crews : mapping of int to sequence of int
        Ranks without any one of which a rank has nothing to do: it counts as silent as the most silent of them.
    heartbeat_seconds : float
        Time within which a silent rank is named.
    end : callable
        ``end(message, exit_code)`` ends the job.
    """

    def __init__(
        self,
        *,
        beats: Counters,
        labels: Sequence[str],
        ranks: Mapping[str, Sequence[int]],
        needed: Sequence[Sequence[int]],
        heartbeat_seconds: float,
        stall_seconds: float,
        end: Callable[[str, int], None],
        crews: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ):
        self.beats, self.labels, self.ranks, self.needed, self.crews = beats, labels, ranks, needed, crews
        self.heartbeat_seconds, self.stall_seconds, self.end = heartbeat_seconds, stall_seconds, end
        self.silent: dict[int, float] = {}
        self._silence = [Silence(heartbeat_seconds / BEATS) for _ in labels]
        self._next = 0.0

    def look(self) -> None:
        """See who has fallen silent and who is back, a few times in ``heartbeat_seconds``."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self.heartbeat_seconds / LOOKS
        for rank, silence in enumerate(self._silence):
            seconds = silence.look(self.beats.get(str(rank)))
            if seconds > SILENT_AFTER * self.heartbeat_seconds and rank not in self.silent:
                self.silent[rank] = now - seconds
                log.warning("%s has given no sign of life for %.1f s", self.labels[rank], seconds)
            elif not seconds and rank in self.silent:
                log.info("%s is back after %.1f s", self.labels[rank], now - self.silent.pop(rank))
        for group in self.needed:
            slowest = [self._slowest(rank) for rank in group]
            seconds = min(self._silence[rank].seconds for rank in slowest)
            if seconds > self.stall_seconds:
                self.end(stalled([self.labels[rank] for rank in slowest], seconds), EXIT_STALLED)

    def _slowest(self, rank: int) -> int:
        """The most silent of a rank and its crew."""
        return max((rank, *self.crews.get(rank, ())), key=lambda member: self._silence[member].seconds)

    def alive(self) -> dict[str, tuple[int, int]]:
        """For each kind of role: how many give signs of life, and how many there are."""
        return {
            kind: (sum(rank not in self.silent for rank in ranks), len(ranks)) for kind, ranks in self.ranks.items()
        }

    def expendable(self) -> set[int]:
        """Silent ranks that the job can do without."""
        return set(self.silent) - {group[0] for group in self.needed if len(group) == 1}


def stalled(labels: Sequence[str], seconds: float) -> str:
    """What is said when the job ends because of silent ranks."""
    who = labels[0] if len(labels) == 1 else f"none of {'; '.join(labels)}"
    verb = "has given no" if len(labels) == 1 else "has given a"
    return f"hpcrl: {who} {verb} sign of life for {seconds:.0f} s (run.stall_seconds); the job cannot go on without\n"
