"""One stop flag for the whole job."""

import time

from hpcrl.transport.counters import Counters

RUNNING, FINISHED, STOPPED = 0, 1, 2
"""Values of the counter: going on; the end of the run was reached; asked to stop, to be resumed later."""


class StopFlag:
    """The job's stop flag, looked at no more often than every ``period_seconds``.

    Signal handlers call :meth:`request`, which touches nothing but a Python attribute; the flag itself is raised when
    this rank next looks.
    """

    def __init__(self, counters: Counters, period_seconds: float = 0.02):
        self.counters, self.period = counters, period_seconds
        self.value = RUNNING
        self._requested = False
        self._next_look = 0.0

    def request(self) -> None:
        """Ask for a clean stop; safe inside a signal handler."""
        self._requested = True

    def finish(self) -> None:
        """The end of the run is reached."""
        self._raise(FINISHED)

    def stop(self) -> None:
        """Stop the job, to be resumed later."""
        self._raise(STOPPED)

    def _raise(self, value: int) -> None:
        if self.value == RUNNING:
            self.value = value
            self.counters.set("stop", value)

    def __call__(self) -> bool:
        """Whether the job is to stop."""
        if self._requested:
            self.stop()
        if self.value == RUNNING and time.monotonic() >= self._next_look:
            self.value = self.counters.get("stop")
            self._next_look = time.monotonic() + self.period
        return self.value != RUNNING
