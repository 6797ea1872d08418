"""HDF5 files on file systems whose locks fail."""

import logging

import h5py
import pytest

from hpcrl.storage import hdf5
from hpcrl.storage.hdf5 import open_file


@pytest.fixture
def failing_locks(monkeypatch):
    """Locks fail with the error number that the test sets, as HDF5 reports it; the file is created nevertheless."""
    monkeypatch.delenv("HDF5_USE_FILE_LOCKING", raising=False)
    hdf5._lockless.clear()
    genuine = h5py.File

    class Failure:
        number = 37

    def file(path, mode, *, locking, **options):
        if locking is False:
            return genuine(path, mode, locking=False, **options)
        if mode == "x":
            genuine(path, "w").close()
        message = f"Unable to synchronously create file (unable to lock file, errno = {Failure.number}, error message)"
        raise OSError(Failure.number, message)

    monkeypatch.setattr(h5py, "File", file)
    return Failure


@pytest.mark.parametrize("number", [37, 95, 524, 5])
def test_files_are_opened_without_locks_after_one_warning(number, failing_locks, tmp_path, caplog):
    failing_locks.number = number
    with caplog.at_level(logging.WARNING):
        (tmp_path / "b").mkdir()
        for name in ("a.h5", "b/c.h5"):
            with open_file(tmp_path / name, "x") as file:
                file.attrs["x"] = 1
            with open_file(tmp_path / name, "r") as file:
                assert file.attrs["x"] == 1
    assert [f"errno {number}" in record.message for record in caplog.records] == [True]


def test_a_file_that_another_process_writes_is_not_opened_without_its_lock(failing_locks, tmp_path):
    failing_locks.number = 11
    with pytest.raises(BlockingIOError):
        open_file(tmp_path / "a.h5", "x")


def test_what_the_user_set_is_obeyed(failing_locks, tmp_path, monkeypatch):
    monkeypatch.setenv("HDF5_USE_FILE_LOCKING", "TRUE")
    with pytest.raises(OSError, match="unable to lock"):
        open_file(tmp_path / "a.h5", "x")
