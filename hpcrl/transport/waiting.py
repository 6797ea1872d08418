"""How to wait: ranks share cores, so nobody spins. Without NumPy, as ranks already wait before it may be loaded."""

import math
import time

from mpi4py import MPI

IDLE_WAITS = 100
"""Waits in a row after which a loop counts as idle, and not as between two pieces of work."""
IDLE_SHARE = 0.01
"""An idle loop sleeps so long that its rounds take less than this part of a core."""
WAKEFUL_SECONDS = 1e-4
"""Longest time between two looks at MPI of a wakeful loop that is not idle yet."""
MOST_STRETCHES = 10
"""How many times its longest sleep an idle loop sleeps at most."""


class Backoff:
    """Growing sleeps for a loop that found nothing to do; makes MPI progress.

    Ranks may share cores, so an idle rank must not burn one; the first waits are short so that a rank that is served
    within microseconds does not sleep a whole time slice. A loop whose rounds are dear (a server looks at every
    learner's ring) sleeps longer between them once it has been idle for some tenths of a second.

    Parameters
    ----------
    comm : MPI.Intracomm
    longest_seconds : float
        Longest sleep.
    wakeful : bool
        Between two pieces of work, sleep in slices, with MPI progress between: for a rank whose memory ranks on other
        nodes read and write, which they cannot while it sleeps.
    """

    def __init__(self, comm: MPI.Intracomm, longest_seconds: float = 1e-3, *, wakeful: bool = False):
        self.comm, self.longest, self.wakeful = comm, longest_seconds, wakeful
        self.delay = 0.0
        self._waits = 0
        self._used = time.thread_time()

    def reset(self) -> None:
        """Something happened: the next wait is short again."""
        self.delay = 0.0
        self._waits = 0

    def wait(self) -> None:
        """Make MPI progress and sleep, a little longer than the last time."""
        self.comm.Iprobe()
        used = time.thread_time()
        pause = self.delay
        if self._waits > IDLE_WAITS:
            pause = max(pause, min((used - self._used) / IDLE_SHARE, MOST_STRETCHES * self.longest))
        elif self.wakeful:
            end = time.monotonic() + pause
            while pause > WAKEFUL_SECONDS:
                time.sleep(WAKEFUL_SECONDS)
                self.comm.Iprobe()
                pause = max(0.0, end - time.monotonic())
        time.sleep(pause)
        self._waits += 1
        self._used = used
        self.delay = min(max(2 * self.delay, 2e-5), self.longest)


def is_over_network(comm: MPI.Intracomm) -> bool:
    """Whether the ranks of ``comm`` are on several nodes. Collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    several = node.size < comm.size
    node.Free()
    return several


def wait_for_all(comm: MPI.Intracomm, longest_seconds: float = 0.01, *, patience_seconds: float = math.inf) -> bool:
    """A barrier that sleeps: ranks that wait leave their cores to those that are awaited; whether all came in time.

    One-sided accesses to a rank that waits here may be served only between its sleeps. A rank that runs out of
    patience cannot use ``comm`` in order again.
    """
    request, backoff = comm.Ibarrier(), Backoff(comm, longest_seconds)
    deadline = time.monotonic() + patience_seconds
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        backoff.wait()
    return True
