"""One stop flag for the whole job."""

import time

from hpcrl.transport.counters import Counters

RUNNING, FINISHED, STOPPED = 0, 1, 2
"""Values of the counter: going on; the end of the run was reached; asked to stop, to be resumed later."""


class StopFlag:
    """The job's stop flag, looked at no more often than every ``period_seconds``.

    Parameters
    ----------
    counters : Counters
        With the counter ``stop``.
    request
        Has an attribute ``made``, set by a signal handler; the flag is then raised when this rank next looks.
    period_seconds : float
    """

    def __init__(self, counters: Counters, request, period_seconds: float = 0.02):
        self.counters, self.request, self.period = counters, request, period_seconds
        self.value = RUNNING
        self._next_look = 0.0

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
        if self.request.made:
            self.stop()
        if self.value == RUNNING and time.monotonic() >= self._next_look:
            self.value = self.counters.get("stop")
            self._next_look = time.monotonic() + self.period
        return self.value != RUNNING
