"""Writing checkpoints while training goes on, without a collective.

The monitor makes the directory and sets the counter ``checkpoint``; every owner of state sees it, copies its state,
writes it in a thread and sets its own counter; when all have, the monitor finishes the checkpoint.
"""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from hpcrl.errors import StorageError
from hpcrl.storage import checkpoint
from hpcrl.transport.counters import Counters

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often an owner looks whether a checkpoint is asked for."""
ATTEMPTS = 1000
"""A request is the number ``global_update * ATTEMPTS + attempt``, so that a failed one can be made again."""


def owner_name(role) -> str:
    """Name of a role's state file."""
    return f"{role.kind}-{role.index}"


class StateWriter:
    """Writes the state of one role into a checkpoint when the monitor asks for one.

    The counters hold the request that is made, and that each owner has answered; negative where writing failed.
    """

    kind = "state_writer"

    def __init__(self, role, *, counters: Counters, run_dir: Path):
        self.role, self.counters, self.run_dir = role, counters, run_dir
        self.name = owner_name(role)
        self._request = counters.get("checkpoint")
        self._next_look = 0.0
        self._thread: threading.Thread | None = None
        self._outcome = 0

    def step(self) -> bool:
        """Start writing when asked, and say so when written."""
        if self._thread is not None:
            if self._thread.is_alive():
                return False
            self._thread = None
            self.counters.set(f"written/{self.name}", self._outcome)
            return True
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + LOOK_SECONDS
        request = self.counters.get("checkpoint")
        if request == self._request:
            return False
        self._request = request
        state = self.role.state()  # a copy: training goes on while the thread writes
        self._thread = threading.Thread(target=self._write, args=(request, state), daemon=True)
        self._thread.start()
        return True

    def _write(self, request: int, state: dict) -> None:
        directory = checkpoint.unfinished_dir(self.run_dir, request // ATTEMPTS)
        try:
            checkpoint.write_state(checkpoint.state_path(directory, self.name), self.role.kind, state, {})
            self._outcome = request
        except StorageError as error:
            log.warning("%s could not write its checkpoint: %s", self.name, error)
            self._outcome = -request


class CheckpointKeeper:
    """The monitor's part: asks for checkpoints, finishes them, prunes old ones.

    Parameters
    ----------
    owners : list of str
        Names of all owners of state.
    attributes : callable
        What the manifest is to say beside the owners' states; called when a checkpoint begins.
    submit : callable
        Runs a function in the writer thread; disks never delay a server.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        counters: Counters,
        owners: list[str],
        attributes: Callable[[], dict],
        submit: Callable[[Callable[[], None]], None],
        keep_last: int,
        keep_every: int,
    ):
        self.run_dir, self.counters, self.owners, self.attributes = run_dir, counters, owners, attributes
        self.submit, self.keep_last, self.keep_every = submit, keep_last, keep_every
        self.busy = False
        self.written = 0
        self.failed = 0
        self._state, self._began, self._attempt = "idle", 0.0, 0
        self._update = self._last_good = -1

    def begin(self, global_update: int) -> None:
        """Begin a checkpoint, unless one is under way or this update has one."""
        if self.busy or self._last_good == global_update:
            return
        self.busy, self._began = True, time.monotonic()
        self._update, self._attributes, self._state = global_update, self.attributes(), "making"
        self._attempt = self._attempt % (ATTEMPTS - 1) + 1
        self._request = global_update * ATTEMPTS + self._attempt

        def make() -> None:
            try:
                checkpoint.begin(self.run_dir, global_update)
                self._state = "made"
            except StorageError as error:
                log.warning("no checkpoint at update %d: %s", global_update, error)
                self._state = "failed"

        self.submit(make)

    def step(self) -> None:
        """Take the next step of the checkpoint under way, if there is one."""
        if self._state == "made":
            self.counters.set("checkpoint", self._request)
            self._state = "writing"
        elif self._state == "writing":
            said = [self.counters.get(f"written/{name}") for name in self.owners]
            if all(abs(word) == self._request for word in said):
                self._state = "finishing"
                good = all(word == self._request for word in said)
                self.submit(self._finish if good else self._discard)
        elif self._state in ("done", "failed"):
            self.written += self._state == "done"
            self.failed += self._state == "failed"
            self._state, self.busy = "idle", False

    def _finish(self) -> None:
        directory = checkpoint.unfinished_dir(self.run_dir, self._update)
        try:
            checkpoint.finish(directory, self.owners, [], self._attributes)
            checkpoint.prune(self.run_dir, self.keep_last, self.keep_every)
            log.info("checkpoint of update %d written in %.1f s", self._update, time.monotonic() - self._began)
            self._state, self._last_good = "done", self._update
        except StorageError as error:
            log.warning("checkpoint of update %d could not be finished: %s", self._update, error)
            self._discard()

    def _discard(self) -> None:
        checkpoint.discard(checkpoint.unfinished_dir(self.run_dir, self._update))
        self._state = "failed"
