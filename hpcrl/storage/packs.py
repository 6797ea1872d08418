"""State files of a checkpoint: each a file of its own, or all those of a node in one, a pack.

File systems of clusters dislike many small files, and count them. A pack is a plain tar file, so that ``tar -xf`` makes
of it what would else have been written.
"""

import hashlib
import io
import os
import re
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import h5py

from hpcrl.errors import StorageError
from hpcrl.storage import schema
from hpcrl.storage.hdf5 import fsync, open_file, open_part, storage_error

COPIED_BYTES = 2**24
"""So much is read and written at a time; a file system for many nodes wants large pieces."""


class StateFile(NamedTuple):
    """Where a state file lies."""

    path: Path
    """of the file, or of the pack that it is in"""
    name: str
    """of the file, say ``learner-0.h5``"""
    offset: int = 0
    size: int = -1
    """of a file in a pack [bytes]"""

    def __str__(self) -> str:
        return f"{self.path}: {self.name}" if self.packed else f"{self.path}"

    @property
    def packed(self) -> bool:
        """Whether it is in a pack."""
        return self.size >= 0

    def open(self) -> io.FileIO:
        """The file, or its part of the pack, for reading."""
        return _Part(self.path, self.offset, self.size) if self.packed else io.FileIO(self.path)

    def describe(self) -> dict:
        """What a manifest says of it."""
        with self.open() as stream:
            size = self.size if self.packed else os.fstat(stream.fileno()).st_size
            found = {"name": self.name, "bytes": size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()}
        return found | ({"pack": self.path.name, "offset": self.offset} if self.packed else {})


class _Part(io.FileIO):
    """A part of a file, as if it were one."""

    def __init__(self, path: Path, offset: int, size: int):
        super().__init__(path)
        self._offset, self._size, self._at = offset, size, 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer) -> int:
        wanted = memoryview(buffer).cast("B")[: max(self._size - self._at, 0)]
        read = os.preadv(self.fileno(), [wanted], self._offset + self._at) if wanted.nbytes else 0
        self._at += read
        return read

    def read(self, size: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        data = os.pread(self.fileno(), left if size < 0 else min(size, left), self._offset + self._at)
        self._at += len(data)
        return data


def open_state(where: Path | StateFile) -> h5py.File:
    """Open a state file to read it; raises as h5py does."""
    if isinstance(where, StateFile) and where.packed:
        return open_part(where.open())
    return open_file(where.path if isinstance(where, StateFile) else Path(where), "r")


def pack(files: Sequence[Path], path: Path) -> None:
    """Move files into a new pack, and fsync it.

    Raises
    ------
    StorageError
        The disk is full or faulty, a file is missing, or there is such a pack; none is left that is not whole.
    """
    created = False
    try:
        with open(path, "xb") as stream:
            created = True
            with tarfile.open(mode="w", fileobj=stream, format=tarfile.GNU_FORMAT, copybufsize=COPIED_BYTES) as tar:
                for file in files:
                    tar.add(file, arcname=file.name)
        fsync(path)
        for file in files:
            file.unlink()
    except (OSError, tarfile.TarError) as error:
        if created:
            path.unlink(missing_ok=True)
        raise storage_error("write", path, error) from error


def state_files(directory: Path, owners: Sequence[str]) -> dict[str, StateFile]:
    """Find the state files of owners in a checkpoint that has no manifest yet; one that is missing is a plain path."""
    packed: dict[str, StateFile] = {}
    for path in sorted(directory.glob(schema.PACK_FILE.format("*"))):
        try:
            with tarfile.open(path) as tar:
                packed |= {m.name: StateFile(path, m.name, m.offset_data, m.size) for m in tar if m.isreg()}
        except (OSError, tarfile.TarError) as error:
            raise storage_error("read", path, error) from error
    names = {owner: schema.STATE_FILE.format(owner) for owner in owners}
    return {owner: packed.get(name, StateFile(directory / name, name)) for owner, name in names.items()}


def described_file(directory: Path, owner: str, described: dict) -> StateFile:
    """The state file of an owner, as a manifest describes it.

    Raises
    ------
    StorageError
        The description is of something else.
    """
    name = schema.STATE_FILE.format(owner)
    if "pack" not in described:
        return StateFile(directory / name, name)
    if not re.fullmatch(schema.PACK_PATTERN, str(described["pack"])):
        raise StorageError(f"{directory}: expected the name of a pack, say node-0.tar, found {described['pack']!r}")
    return StateFile(directory / described["pack"], name, int(described["offset"]), int(described["bytes"]))
