"""A thread that watches over the main thread of its own rank."""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import FrameType

from hpcrl.errors import EXIT_STALLED
from hpcrl.transport.window import Window

START_SECONDS = 120.0
"""Least limit before the first beat, where nothing else is said: imports, windows and a checkpoint to read may take
longer than any step later."""
END_SECONDS = 10.0
"""How long ending the job may take before the process leaves by itself."""


class Watchdog:
    """Says where the main thread stands when it has not called :meth:`beat` for ``limit_seconds``; may end the job.

    It ends the job if the job needs this rank, or if the main thread is blocked in MPI: such a call never returns to
    Python, and what it waits for is a rank or a link that others need as well. A rank that hangs elsewhere, say in a
    simulator, stops nobody else.

    Parameters
    ----------
    rank : int
    limit_seconds : float
        Longest time between two beats.
    needed : bool
        Whether the job cannot go on without this rank.
    labels : sequence of str
        What each rank is called.
    end : callable
        ``end(message, exit_code)`` ends all ranks.
    start_seconds : float
        Least limit before the first beat.
    """

    def __init__(
        self,
        rank: int,
        limit_seconds: float,
        *,
        needed: bool,
        labels: Sequence[str],
        end: Callable[[str, int], None],
        start_seconds: float = START_SECONDS,
    ):
        self.start_limit = max(limit_seconds, start_seconds)
        self.rank, self.limit, self.needed, self.labels, self.end = rank, limit_seconds, needed, labels, end
        self.beats = 0
        self.doing = "starting"
        self._main = threading.main_thread().ident
        self._over = threading.Event()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def beat(self, doing: str = "its training loop") -> None:
        """Say that the main thread is alive, and what it does next."""
        self.beats += 1
        self.doing = doing

    def stop(self) -> None:
        """End the watch."""
        self._over.set()

    def _watch(self) -> None:
        # Counted in own waits, not by the clock: a process that was stopped and goes on is not late.
        period = min(1.0, self.limit / 8)
        seen, silent, told = 0, 0.0, False
        while not self._over.wait(period):
            if self.beats != seen:
                seen, silent, told = self.beats, 0.0, False
                continue
            silent += period
            if silent > (self.limit if self.beats else self.start_limit) and not told:
                told = True
                self._act(silent)

    def _act(self, silent: float) -> None:
        frame = sys._current_frames().get(self._main)
        blocked = frame is not None and "MPI" in frame.f_globals  # only modules that call MPI import it
        text = (
            f"hpcrl: {self.labels[self.rank]} made no progress for {silent:.0f} s in {self.doing}"
            f"{self._awaited(frame) if blocked else ''} (run.stall_seconds); it stood at:\n"
            f"{''.join(traceback.format_stack(frame))}"
        )
        if not (self.needed or blocked):
            os.write(2, f"{text}The other ranks go on without it.\n".encode())
            return
        # Only an abort hands its code to the launcher for sure; but MPI itself may be what hangs.
        threading.Thread(target=self.end, args=(text, EXIT_STALLED), daemon=True).start()
        time.sleep(END_SECONDS)
        os._exit(EXIT_STALLED)

    def _awaited(self, frame: FrameType | None) -> str:
        """Window and rank that the main thread waits for, where that can be seen."""
        while frame is not None:
            window, rank = frame.f_locals.get("self"), frame.f_locals.get("rank")
            if isinstance(window, Window) and rank is not None:
                whole_job = window.comm.size == len(self.labels)
                label = self.labels[rank] if whole_job else f"rank {rank} of those that share its replay memory"
                return f", waiting for {label} in window {window.name!r}"
            frame = frame.f_back
        return ""
