"""HDF5 files on file systems whose locks fail, or that are slow."""

import errno
import logging
import resource
import sys
import threading
import time

import h5py
import numpy as np
import pytest

from hpcrl.storage import hdf5
from hpcrl.storage.hdf5 import open_file
from hpcrl.storage.statefile import read_state, write_state


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


class SlowDisk(hdf5._Stream):
    """A file on a disk that takes its time for every write."""

    SECONDS = 0.4

    def write(self, data) -> int:
        time.sleep(self.SECONDS)
        return super().write(data)


def test_other_threads_do_not_wait_for_a_slow_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(hdf5, "_Stream", SlowDisk)
    began = time.monotonic()
    arguments = (tmp_path / "state.h5", "learner", {"a": np.arange(1000), "b": np.zeros(3)}, {})
    writer = threading.Thread(target=write_state, args=arguments)
    writer.start()
    longest = 0.0
    while writer.is_alive():
        before = time.monotonic()
        time.sleep(1e-3)
        longest = max(longest, time.monotonic() - before)
    assert time.monotonic() - began > 2 * SlowDisk.SECONDS
    assert longest < 0.9 * SlowDisk.SECONDS
    arrays, _ = read_state(tmp_path / "state.h5", "learner")
    assert arrays["a"].tolist() == list(range(1000))


@pytest.fixture
def largest_file():
    """Let no file grow beyond so many bytes; a write across that end is cut short, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda num_bytes: resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("num_bytes", [4_000_000, 8_000_000])
def test_a_fault_of_the_disk_keeps_its_number(num_bytes, largest_file, tmp_path):
    file = hdf5.NewFile(tmp_path / "state.h5")
    file.create_dataset("a", data=np.ones(1_000_000))
    largest_file(num_bytes)
    sys._clear_type_cache()  # a look-up that walks the classes fails where an exception is pending
    file.create_dataset("b", data=np.ones(1_000_000))
    with pytest.raises(OSError, match="too large") as caught:
        file.close()
    assert caught.value.errno == errno.EFBIG
    assert not file


def test_a_fault_of_the_disk_is_told_after_a_fault_of_the_caller(largest_file, tmp_path):
    largest_file(1_000_000)
    with pytest.raises(OSError, match="too large") as caught, hdf5.NewFile(tmp_path / "state.h5") as file:
        raise RuntimeError(file.create_dataset("a", data=np.ones(1_000_000)))
    assert isinstance(caught.value.__context__, RuntimeError)
