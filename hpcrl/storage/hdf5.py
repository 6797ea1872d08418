"""Opening HDF5 files, making them safe on the disk, and the wording of file faults."""

import errno
import io
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage.codec import GZIP_FILTER, ZSTD_FILTER

_log = logging.getLogger(__name__)

_LIBVER = ("v110", "v110")
"""The oldest format with SWMR. It is fixed so that files do not depend on the HDF5 that h5py was built with."""

_SUPERBLOCK_BYTES = 36
"""With what precedes its checksum."""

_SHUFFLE_FILTER, _FLETCHER_FILTER = 2, 3
_FILTERS = {GZIP_FILTER, _SHUFFLE_FILTER, _FLETCHER_FILTER, ZSTD_FILTER}
"""Filters that reading may run."""

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
    if "file signature not found" in reason:
        reason = "it is no HDF5 file"
    remedy = _REMEDIES.get(number)
    return StorageError(f"cannot {doing} {path}: {reason}" + (f" ({remedy})" if remedy else ""))


def open_part(stream: io.RawIOBase) -> h5py.File:
    """Open an HDF5 file that is part of another file, to read it."""
    return h5py.File(stream, "r", libver=_LIBVER)


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


class NewFile(h5py.File):
    """A new HDF5 file whose disk may be slow without any other thread waiting for it.

    h5py keeps Python's global lock while HDF5 creates a file, and a server could not answer a pull meanwhile; so HDF5
    reads and writes through a Python file here, which gives the lock up.

    Raises
    ------
    OSError
        The file exists, or cannot be made; or, when it is closed, that it could not be written.
    """

    def __init__(self, path: Path):
        self._stream = _Stream(path)
        super().__init__(self._stream, "w", libver=_LIBVER)

    @property
    def filename(self) -> str:
        """Path of the file, as of any other."""
        return str(self._stream.name)

    def close(self) -> None:
        """Close the file; what is still buffered is written."""
        try:
            super().close()
        finally:
            self._stream.close()
        if self._stream.fault is not None:
            raise self._stream.fault


class _Stream(io.FileIO):
    """A new file that keeps its first fault instead of raising it.

    HDF5 goes on for a while after one of its calls failed, and h5py makes those further calls with the first call's
    exception pending, which Python turns into any other; nor does h5py look whether all of the bytes were written.
    """

    def __init__(self, path: Path):
        super().__init__(path, "x+")
        self.fault: OSError | None = None

    def readinto(self, buffer) -> int:
        return self._attempt(super().readinto, buffer)

    def write(self, data) -> int:
        rest = memoryview(data)
        while len(rest) and self.fault is None:
            rest = rest[self._attempt(super().write, rest) :]
        return len(data)

    def truncate(self, size: int) -> int:
        return self._attempt(super().truncate, size)

    def _attempt(self, call: Callable, argument) -> int:
        try:
            return call(argument)
        except OSError as error:
            self.fault = self.fault or error
            return 0


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
    given back by `release_space`, when the file is closed.

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


def plain_datasets(group: h5py.Group, prefix: str = "") -> Iterator[tuple[str, h5py.Dataset]]:
    """Every dataset below a group with its name, ``/`` between the levels; each checked like `plain_dataset`.

    Raises
    ------
    StorageError
        Something below the group is no plain dataset of numbers.
    """
    for name in group:
        item = _member(group, name)
        if isinstance(item, h5py.Group):
            yield from plain_datasets(item, f"{prefix}{name}/")
        else:
            yield prefix + name, _checked(item)


def plain_dataset(group: h5py.Group, name: str) -> h5py.Dataset:
    """A dataset that reading cannot turn into anything but numbers out of this very file.

    Raises
    ------
    StorageError
        It is missing, stands for another file or object, or holds what is no number.
    """
    *parents, leaf = name.split("/")
    for parent in parents:
        group = plain_group(group, parent)
    return _checked(_member(group, leaf))


def plain_group(group: h5py.Group, name: str) -> h5py.Group:
    """A group of this very file; raises like `plain_dataset`."""
    member = _member(group, name)
    if not isinstance(member, h5py.Group):
        raise _refused(member, "a group", "something else")
    return member


def _member(group: h5py.Group, name: str) -> h5py.HLObject:
    link = group.get(name, getlink=True) if name in group else None
    if not isinstance(link, h5py.HardLink):
        found = "nothing" if link is None else f"a link of kind {type(link).__name__}"
        raise StorageError(
            f"{group.file.filename}: expected {group.name.rstrip('/')}/{name} in the file itself, found {found}"
        )
    return group[name]


def _checked(item: h5py.HLObject) -> h5py.Dataset:
    if not isinstance(item, h5py.Dataset):
        raise _refused(item, "a dataset", type(item).__name__)
    if not _is_numbers(item.dtype):
        raise _refused(item, "numbers", f"dtype {item.dtype}")
    if item.is_virtual or item.external:
        raise _refused(item, "data in the file itself", "data that lie in other files")
    properties = item.id.get_create_plist()
    filters = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
    if filters - _FILTERS:
        raise _refused(item, f"no filters but {sorted(_FILTERS)}", f"{sorted(filters)}")
    if item.chunks is None and item.id.get_storage_size() != item.nbytes:
        raise _refused(item, f"{item.nbytes} bytes", f"{item.id.get_storage_size()}")
    return item


def _is_numbers(dtype: np.dtype) -> bool:
    if dtype.names is not None:
        return all(_is_numbers(dtype[name]) for name in dtype.names)
    return dtype.base.kind in "biufc" and not dtype.hasobject


def _refused(item: h5py.HLObject, expected: str, found: str) -> StorageError:
    return StorageError(f"{item.file.filename}: {item.name}: expected {expected}, found {found}")


def release_space(path: Path) -> None:
    """Cut off what `reserve_space` reserved of a closed file and HDF5 did not use."""
    with open(path, "r+b") as stream:
        stream.truncate(_stored_end(stream.read(_SUPERBLOCK_BYTES)))


def check_whole(path: Path) -> None:
    """Check that a file has the length that its superblock gives; HDF5 itself would retry for ever (SWMR mode).

    A file that is being written is never shorter, since its space is reserved before.

    Raises
    ------
    OSError
        It is shorter, say after a crash of the machine.
    """
    with open(path, "rb") as stream:
        stored, found = _stored_end(stream.read(_SUPERBLOCK_BYTES)), os.fstat(stream.fileno()).st_size
    if found < stored:
        raise OSError(f"truncated file: expected {stored:,} bytes, found {found:,}")


def _stored_end(superblock: bytes) -> int:
    """Of version 2 or 3, which `_LIBVER` makes: the last 8 bytes are the file's end."""
    return int.from_bytes(superblock[28:], "little")


def fsync(path: Path) -> None:
    """Wait until a file or directory is on the disk, as far as its file system tells the truth about that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
