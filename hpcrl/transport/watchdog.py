"""A thread that ends a rank which no longer makes progress."""

import os
import sys
import threading
import time
import traceback

from hpcrl.errors import EXIT_STALLED


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
    """

    def __init__(self, label: str, limit_seconds: float):
        self.label, self.limit = label, limit_seconds
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
                os._exit(EXIT_STALLED)
