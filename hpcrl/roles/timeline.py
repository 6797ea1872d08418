"""What a rank does when: spans of its activities, for ``hpcrl trace`` and for benchmarks.

Nothing in the roles knows of it: where a run is traced, :func:`hpcrl.launch.tracing.trace` puts a clock around the
methods that do the work.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hpcrl.roles.metrics import Reporter
from hpcrl.storage.schema import ACTIVITIES

WAIT = ACTIVITIES.index("wait")
GAP_SECONDS = 1e-3
"""Waits that are no further apart are one: a loop that waits looks around between its sleeps."""
SEND_SECONDS = 0.25


class Span(NamedTuple):
    """Something that was done."""

    activity: int
    """index in :data:`~hpcrl.storage.schema.ACTIVITIES`"""
    background: bool
    """in a thread beside the rank's loop"""
    begin: float
    """on the timeline's clock [s]"""
    seconds: float


class Timeline:
    """Spans of one rank, oldest first.

    What is done within something that is timed belongs to that. Threads in the background are timed by themselves.

    Parameters
    ----------
    now : callable
        The clock; the same on all ranks, as near as may be. [s]
    """

    def __init__(self, now: Callable[[], float] = time.time):
        self.now = now
        self._spans: deque[Span] = deque()
        self._inside = False
        self._wait: Span | None = None  # may become longer

    def timed(self, activity: str, do: Callable, *, background: bool = False) -> Callable:
        """``do``, with a span for each call."""
        number, now = ACTIVITIES.index(activity), self.now

        def timed_do(*arguments, **named):
            if self._inside and not background:
                return do(*arguments, **named)
            self._inside |= not background
            begin = now()
            try:
                return do(*arguments, **named)
            finally:
                self._inside &= background
                self._add(Span(number, background, begin, now() - begin))

        return timed_do

    def _add(self, span: Span) -> None:
        if span.background:
            self._spans.append(span)
            return
        waited, self._wait = self._wait, None
        if waited and span.activity == WAIT and span.begin - waited.begin - waited.seconds < GAP_SECONDS:
            self._wait = waited._replace(seconds=span.begin + span.seconds - waited.begin)
            return
        if waited:
            self._spans.append(waited)
        if span.activity == WAIT:
            self._wait = span
        else:
            self._spans.append(span)

    def take(self) -> list[Span]:
        """Spans that are over and were not taken yet; a wait is over when something else was done."""
        return [self._spans.popleft() for _ in range(len(self._spans))]


class Tracer:
    """Sends a rank's spans to the monitor, for the run log."""

    kind, index = "tracer", 0

    def __init__(self, rank: int, timeline: Timeline, reporter: Reporter):
        self.rank, self.timeline, self.reporter = rank, timeline, reporter
        self._next = 0.0

    def step(self) -> bool:
        """Send what has gathered, a few times a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + SEND_SECONDS
            self.reporter.spans(self)
        return False
