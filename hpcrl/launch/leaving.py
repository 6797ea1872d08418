"""The end of a job's training: the last checkpoint, and then all ranks leave together."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED
from hpcrl.transport.waiting import Backoff, wait_for_all

if TYPE_CHECKING:  # NumPy, which they need, sizes its thread pools when it is loaded
    from hpcrl.roles.heartbeat import Heartbeat
    from hpcrl.roles.metrics import Reporter
    from hpcrl.transport.counters import Counters

log = logging.getLogger(__name__)

ABORT_DELAY_SECONDS = 0.5
"""The launcher forwards what ranks print; what is still on its way when it hears of an abort, it drops."""
LEAVE_SECONDS = 1.0
"""How long the last of those ranks that answer may take to leave when others do not answer."""
CLOSING_KINDS = ("parameter_server", "state_writer", "monitor", "agreement", "tracer")
"""Roles that go on until the last checkpoint is written."""


def leave(
    comm: MPI.Intracomm,
    roles: Sequence,
    *,
    counters: "Counters",
    reporter: "Reporter",
    heartbeat: "Heartbeat",
    uncounted: int = 0,
    pass_on: Callable[[], None] = lambda: None,
) -> int:
    """Go on with what outlasts the training until the last checkpoint is written, and let everyone go; the exit code.

    Collective, but of ranks that do not answer the others know in the end.

    Parameters
    ----------
    uncounted
        Ranks that do not say that they have left.
    pass_on
        Called when the last checkpoint is written.
    """
    from hpcrl.roles import loop
    from hpcrl.roles.stopping import FINISHED

    reporter.last_words(roles)
    counters.add("left", 1)
    closing = [role for role in roles if role.kind in CLOSING_KINDS]
    monitor = next((role for role in roles if role.kind == "monitor"), None)
    if monitor is not None:
        monitor.close_when_left(lambda: counters.get("left") + uncounted)
    loop.run(closing, over=lambda: counters.get("closed") == 1, beat=heartbeat, backoff=Backoff(comm, 0.01))
    pass_on()
    finished = counters.get("stop") == FINISHED  # the same on every rank, whichever reason each met first
    code = EXIT_FINISHED if finished else EXIT_STOPPED
    heartbeat.beat("waiting for the last ranks to end")
    if monitor is not None:
        monitor.end()
        _see_all_off(comm, monitor.attendance, code)
    else:
        wait_for_all(comm)
    return code


def _see_all_off(comm, attendance, code: int) -> None:
    """The monitor's side of the last barrier. MPI cannot end without a rank that does not answer; an abort can."""
    silent = attendance.silent
    patience_seconds = LEAVE_SECONDS if silent else attendance.heartbeat_seconds
    if wait_for_all(comm, patience_seconds=patience_seconds):
        return
    who = "; ".join(attendance.labels[rank] for rank in silent) or "some rank"
    log.warning("everything is written; the job ends without %s, by an abort with exit code %d", who, code)
    time.sleep(ABORT_DELAY_SECONDS)
    comm.Abort(code)
