"""A thread that ends a rank which no longer makes progress."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable

from hpcrl.errors import EXIT_STALLED

ABORT_SECONDS = 2.0
"""How long an abort may take before the process leaves by itself."""


class Watchdog:
    """Ends the process when the main thread has not called :meth:`beat` for ``limit_seconds``.

    A call blocked inside MPI never returns to Python, and a rank that hangs in it keeps every other rank hanging, so
    the rank says where it stands and leaves without clean-up; the launcher then ends the job.

    Parameters
    ----------
    label : str
        Rank and roles, for the message.
    limit_seconds : float
        Longest time between two beats.
    abort : callable
        ``MPI.COMM_WORLD.Abort``: ends all ranks with an exit code.
    """

    def __init__(self, label: str, limit_seconds: float, abort: Callable[[int], None]):
        self.label, self.limit, self.abort = label, limit_seconds, abort
        self.last = time.monotonic()
        self.doing = "starting"
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self, doing: str = "its training loop") -> None:
        """Say that the main thread is alive, and what it does next."""
        self.last = time.monotonic()
        self.doing = doing

    def stop(self) -> None:
        """End the watch."""
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(min(1.0, self.limit / 4)):
            silent = time.monotonic() - self.last
            if silent > self.limit:
                frame = sys._current_frames().get(self._main)
                where = "".join(traceback.format_stack(frame)) if frame else "(no Python frame)\n"
                os.write(
                    2,
                    f"hpcrl: {self.label} made no progress for {silent:.0f} s in {self.doing} "
                    f"(run.stall_seconds = {self.limit:g}); it stood at:\n{where}".encode(),
                )
                # Only an abort hands its code to the launcher for sure; but MPI itself may be what hangs.
                threading.Thread(target=self.abort, args=(EXIT_STALLED,), daemon=True).start()
                time.sleep(ABORT_SECONDS)
                os._exit(EXIT_STALLED)
