"""One stop flag for the whole job, and when it must be raised because the job is ended from outside."""

import math
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
    together : bool
        Ranks stop only when the counter says so, which then all see at the same moment; else a rank that raises the
        flag stops at once.
    """

    def __init__(self, counters: Counters, request, period_seconds: float = 0.02, *, together: bool = False):
        self.counters, self.request, self.together = counters, request, together
        self.period = 0.0 if together else period_seconds
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
            self.counters.set("stop", value)
            if not self.together:
                self.value = value

    def __call__(self) -> bool:
        """Whether the job is to stop."""
        if self.request.made:
            self.stop()
        if self.value == RUNNING and time.monotonic() >= self._next_look:
            self.value = self.counters.get("stop")
            self._next_look = time.monotonic() + self.period
        return self.value != RUNNING


LEAVE_SECONDS = 10.0
"""What it takes to stop, beside the last checkpoint: all ranks leave their work, files are closed, MPI ends."""
CAUTION = 1.5
"""So much longer than the checkpoint before it, the last one may take."""
URGENT_SECONDS = 25.0
"""Left after TERM: Slurm sends KILL 30 s later, and others do much the same."""


class Deadline:
    """When the job will be ended from outside, so that it stops by itself in time for a last checkpoint.

    Parameters
    ----------
    seconds : float
        From now until it is ended; infinite where that is not known.
    """

    def __init__(self, seconds: float = math.inf):
        self._given, self._end = seconds, time.monotonic() + seconds

    def left(self) -> float:
        """Seconds until the job is ended."""
        return self._end - time.monotonic()

    def hurry(self) -> None:
        """TERM has come, now or before."""
        self._end = min(self._end, time.monotonic() + URGENT_SECONDS)

    def near(self, checkpoint_seconds: float) -> bool:
        """Whether it is time to stop, where a checkpoint takes so long; never in the first half of the time given."""
        return self.left() < min(LEAVE_SECONDS + CAUTION * checkpoint_seconds, self._given / 2)

    def leaves_time_for(self, checkpoint_seconds: float) -> bool:
        """Whether a checkpoint that takes so long, begun now, is finished in time."""
        return self.left() > CAUTION * checkpoint_seconds
