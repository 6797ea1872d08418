"""Opening HDF5 files, making them safe on the disk, and the wording of file faults."""

import errno
import logging
import os
from pathlib import Path

import h5py

from hpcrl.errors import StorageError

_log = logging.getLogger(__name__)

_LIBVER = ("v110", "v110")
"""The oldest format with SWMR. It is fixed so that files do not depend on the HDF5 that h5py was built with."""

_REMEDIES = {
    errno.ENOSPC: "free some space; training goes on meanwhile and the next write tries again",
    errno.EDQUOT: "free some of your quota; training goes on meanwhile and the next write tries again",
    errno.EACCES: "check the owner and permissions of the directory, or choose another run.dir",
    errno.EPERM: "check the owner and permissions of the directory, or choose another run.dir",
    errno.EROFS: "the file system is read-only here: choose another run.dir",
    errno.ENOENT: "check the path: the directory may have been moved or deleted",
    errno.EEXIST: "it is never overwritten: remove it, or choose another run.dir",
    errno.EAGAIN: "another process has it open for writing: end that one first",
    errno.ENOLCK: "this file system has no locks: set HDF5_USE_FILE_LOCKING=FALSE",
}


def storage_error(doing: str, path: Path, error: BaseException) -> StorageError:
    """Turn an operating-system or HDF5 fault into a StorageError with the path and what to do."""
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error).partition("\n")[0]
    remedy = _REMEDIES.get(number)
    return StorageError(f"cannot {doing} {path}: {reason}" + (f" ({remedy})" if remedy else ""))


def open_file(path: Path, mode: str, *, swmr: bool = False) -> h5py.File:
    """Open an HDF5 file; where the file system has no locks, say so and open it without.

    Parameters
    ----------
    path
        File to open.
    mode
        ``"r"`` or ``"x"``. There is no ``"w"``: a second writer must never truncate a file that is in use.
    swmr
        Read while another process writes (single writer, multiple readers).

    Raises
    ------
    OSError
        As h5py raises it; callers word it with `storage_error`.
    """
    # The environment variable overrides h5py's argument, and must agree with it.
    locking = None if "HDF5_USE_FILE_LOCKING" in os.environ else "best-effort"
    try:
        return h5py.File(path, mode, libver=_LIBVER, swmr=swmr, locking=locking)
    except OSError as error:
        # "Best effort" forgives one error number; file systems answer with many (37, 95, 524, 5).
        lockless = "unable to lock file" in str(error) and error.errno not in (errno.EAGAIN, errno.EACCES)
        if not lockless or locking is None:
            raise
        _warn_of_missing_locks(Path(path).parent, error.errno)
        if mode == "x":
            Path(path).unlink(missing_ok=True)  # HDF5 creates the file before it fails to lock it
        return h5py.File(path, mode, libver=_LIBVER, swmr=swmr, locking=False)


_lockless: set[int] = set()
"""Devices that were warned of: each of their files would say the same."""


def _warn_of_missing_locks(directory: Path, number: int) -> None:
    device = directory.stat().st_dev
    if device not in _lockless:
        _lockless.add(device)
        _log.warning(
            "%s: this file system has no file locks (errno %d); its HDF5 files are opened without "
            "(HDF5_USE_FILE_LOCKING=FALSE in the environment does the same, without this warning)",
            directory,
            number,
        )


def reserve_space(file: h5py.File, num_bytes: int) -> None:
    """Make sure that a file can grow by so much, before HDF5 tries.

    HDF5 that meets a full disk loses data without a word, or crashes at exit. What is reserved and not used is
    given back when the file is closed.

    Raises
    ------
    OSError
        The disk or the quota is too small.
    """
    with open(file.filename, "r+b") as stream:
        try:
            os.posix_fallocate(stream.fileno(), file.id.get_filesize(), num_bytes)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise  # any other: this file system cannot reserve


def fsync(path: Path) -> None:
    """Wait until a file or directory is on the disk, as far as its file system tells the truth about that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
