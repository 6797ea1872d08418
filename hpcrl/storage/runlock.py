"""The lock of a run directory: one job at a time writes there.

The lock is a small JSON file that says who holds it; its holder touches it every few seconds. File locks would not do:
parallel file systems often have none, and a batch job that moved to another node must not be kept out by what a dead
node left behind. So a lock is judged by its holder: by its process where that can be seen from here, else by whether
the file is touched any more. No two clocks are ever compared.
"""

import contextlib
import json
import os
import socket
import threading
import time
from pathlib import Path
from typing import NamedTuple

from hpcrl.errors import StorageError
from hpcrl.storage import schema
from hpcrl.storage.hdf5 import storage_error

TOUCH_SECONDS = 5.0
"""How often the holder touches its lock."""
SILENT_SECONDS = 4 * TOUCH_SECONDS
"""A lock that is not touched for so long is stale, where its holder cannot be looked at."""


class Holder(NamedTuple):
    """Who holds a lock."""

    host: str
    pid: int
    job_id: str
    """of the batch system; empty without one"""
    restarts: str
    """how often the batch system restarted that job; empty without one"""
    pid_namespace: str
    started: int
    """start time of the process in clock ticks since boot: a process id may be given again"""

    def __str__(self) -> str:
        job = f", job {self.job_id}" if self.job_id else ""
        return f"host {self.host}, pid {self.pid}{job}"


class RunLock:
    """Held while a job runs; made by :func:`acquire`."""

    def __init__(self, path: Path, holder: Holder):
        self._path, self._holder = path, holder
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_touching, name="run lock", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the run directory free; a second call does nothing."""
        if self._over.is_set():
            return
        self._over.set()
        self._thread.join()
        if read_holder(self._path.parent) == self._holder:
            self._path.unlink(missing_ok=True)

    def _keep_touching(self) -> None:
        while not self._over.wait(TOUCH_SECONDS):
            with contextlib.suppress(FileNotFoundError):
                if read_holder(self._path.parent) not in (None, self._holder):
                    raise StorageError(
                        f"{self._path}: another job has taken this run directory over, since this one gave no sign of "
                        f"life for {SILENT_SECONDS:g} s; this one ends, so that the two do not write the same files"
                    )
                with contextlib.suppress(OSError):  # a full or slow disk; the next touch tries again
                    os.utime(self._path)


def acquire(run_dir: Path) -> RunLock:
    """Take the lock of a run directory, which must exist; called by one rank.

    A stale lock is taken over. Where its holder cannot be seen from here, that takes ``SILENT_SECONDS``.

    Raises
    ------
    StorageError
        A living job holds it: the message says which; or the file cannot be written.
    """
    run_dir, path, me = Path(run_dir), Path(run_dir) / schema.LOCK_FILE, _me()
    try:
        if _create(path, me):
            return RunLock(path, me)
        holder = read_holder(run_dir)
        if holder is None or not is_alive(run_dir, holder):
            _remove_stale(path, holder)
            if _create(path, me):
                return RunLock(path, me)
            holder = read_holder(run_dir)  # another job was faster
    except OSError as error:
        raise storage_error("lock", path, error) from error
    raise StorageError(
        f"{run_dir} is in use by another job ({holder}): wait for it, stop it with `hpcrl stop {run_dir}`, or give "
        f"another run.dir (--run-dir)"
    )


def _remove_stale(path: Path, holder: Holder | None) -> None:
    """Remove the lock of ``holder``, and no other: another job may have taken it over meanwhile."""
    aside = path.with_name(f"{path.name}.{socket.gethostname()}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        path.rename(aside)  # only one job can do this
        if _read(aside) == holder:
            aside.unlink()
        else:
            aside.rename(path)


def read_holder(run_dir: Path) -> Holder | None:
    """Who holds the lock of a run directory; None where nobody does, or where the file is damaged."""
    path = Path(run_dir) / schema.LOCK_FILE
    holder = _read(path)
    if holder is None and path.exists():
        time.sleep(0.2)  # it may be in the making
        holder = _read(path)
    return holder


def _read(path: Path) -> Holder | None:
    try:
        return Holder(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def is_alive(run_dir: Path, holder: Holder) -> bool:
    """Whether the holder of a lock still runs; waits up to ``SILENT_SECONDS`` where only its touches can tell."""
    alive = is_seen(holder)
    return _touched(Path(run_dir) / schema.LOCK_FILE) if alive is None else alive


def is_seen(holder: Holder) -> bool | None:
    """Whether the holder's process is there; None where that cannot be seen from here."""
    me = _me()
    if holder.job_id and holder.job_id == me.job_id and holder.restarts != me.restarts:
        return False  # the batch system starts a job again only when its former processes are gone
    if (holder.host, holder.pid_namespace) != (me.host, me.pid_namespace):
        return None
    return _start_time(holder.pid) == holder.started


def _touched(path: Path) -> bool:
    """Whether the lock is touched, or goes away, while we wait."""

    def stamp() -> int | None:
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return None

    before, deadline = stamp(), time.monotonic() + SILENT_SECONDS
    while time.monotonic() < deadline:
        if stamp() != before:
            return stamp() is not None
        time.sleep(0.2)
    return False


def _create(path: Path, holder: Holder) -> bool:
    """Make a lock file; False where there is one."""
    try:
        with open(path, "x") as file:
            file.write(json.dumps(holder._asdict()) + "\n")
    except FileExistsError:
        return False
    return True


def _me() -> Holder:
    return Holder(
        host=socket.gethostname(),
        pid=os.getpid(),
        job_id=os.environ.get("SLURM_JOB_ID", ""),
        restarts=os.environ.get("SLURM_RESTART_COUNT", ""),
        pid_namespace=_pid_namespace(),
        started=_start_time(os.getpid()) or 0,
    )


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _start_time(pid: int) -> int | None:
    """Start time of a process; None where there is none, or only what its parent has not yet taken note of."""
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if state in "ZX" else int(numbers[18])
    except (OSError, ValueError, IndexError):
        return None
