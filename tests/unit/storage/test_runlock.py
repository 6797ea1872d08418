"""One job at a time writes into a run directory, and what dead jobs left behind keeps nobody out."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hpcrl.errors import StorageError
from hpcrl.storage import runlock, schema
from hpcrl.storage.runlock import acquire, read_holder

HOLD = """
import sys, time
from hpcrl.storage.runlock import acquire
acquire(sys.argv[1])
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other(tmp_path):
    """Another process that holds the lock."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def hurry(monkeypatch):
    """A second of silence is enough."""
    monkeypatch.setattr(runlock, "TOUCH_SECONDS", 0.1)
    monkeypatch.setattr(runlock, "SILENT_SECONDS", 1.0)


def pretend(run_dir, **changes):
    """Change what a lock says about its holder."""
    path = run_dir / schema.LOCK_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def left_behind(run_dir, **changes):
    """The lock of a holder that never touches it."""
    lock = acquire(run_dir)
    text = (run_dir / schema.LOCK_FILE).read_text()
    lock.release()
    (run_dir / schema.LOCK_FILE).write_text(text)
    pretend(run_dir, **changes)


def test_a_released_lock_leaves_nothing(tmp_path):
    lock = acquire(tmp_path)
    assert read_holder(tmp_path).pid == os.getpid()
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    acquire(tmp_path).release()


def test_a_second_job_is_refused_and_told_who_was_first(tmp_path, other, monkeypatch):
    before = (tmp_path / schema.LOCK_FILE).read_text()
    with pytest.raises(StorageError, match=rf"in use by another job \(host .*, pid {other.pid}\).*hpcrl stop"):
        acquire(tmp_path)
    assert (tmp_path / schema.LOCK_FILE).read_text() == before
    pretend(tmp_path, job_id="4711")
    with pytest.raises(StorageError, match="job 4711"):
        acquire(tmp_path)


def test_a_stopped_job_still_holds_its_lock(tmp_path, other):
    other.send_signal(signal.SIGSTOP)
    with pytest.raises(StorageError, match="in use"):
        acquire(tmp_path)


def test_the_lock_of_a_killed_job_is_taken_over_at_once(tmp_path, other):
    other.kill()  # and not waited for: the process is a zombie, as below a launcher that still runs
    while " Z " not in Path(f"/proc/{other.pid}/stat").read_text():
        time.sleep(0.01)
    begin = time.monotonic()
    lock = acquire(tmp_path)
    assert time.monotonic() - begin < 1
    assert read_holder(tmp_path).pid == os.getpid()
    lock.release()
    assert list(tmp_path.iterdir()) == []


def test_a_process_id_that_was_given_again_does_not_count(tmp_path):
    left_behind(tmp_path, started=1)
    acquire(tmp_path).release()


def test_a_job_that_the_batch_system_restarted_does_not_wait_for_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    left_behind(tmp_path, host="another-node")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    begin = time.monotonic()
    acquire(tmp_path).release()
    assert time.monotonic() - begin < 1


def test_a_job_on_another_host_counts_as_long_as_it_touches_its_lock(tmp_path, hurry):
    left_behind(tmp_path, host="another-node")
    over = threading.Event()

    def touch():
        while not over.wait(0.1):
            os.utime(tmp_path / schema.LOCK_FILE)

    thread = threading.Thread(target=touch)
    thread.start()
    try:
        with pytest.raises(StorageError, match="host another-node"):
            acquire(tmp_path)
    finally:
        over.set()
        thread.join()
    begin = time.monotonic()
    acquire(tmp_path).release()
    assert 0.9 < time.monotonic() - begin < 10


def test_the_holder_touches_its_lock(tmp_path, hurry):
    lock = acquire(tmp_path)
    before = (tmp_path / schema.LOCK_FILE).stat().st_mtime_ns
    deadline = time.monotonic() + 10
    while (tmp_path / schema.LOCK_FILE).stat().st_mtime_ns == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    lock.release()


def test_a_holder_that_was_taken_over_ends_and_leaves_the_lock_to_the_other(tmp_path, hurry, monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_value))
    lock = acquire(tmp_path)
    pretend(tmp_path, host="another-node")
    deadline = time.monotonic() + 10
    while not raised:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert "has taken this run directory over" in str(raised[0])
    lock.release()
    assert read_holder(tmp_path).host == "another-node"


def test_a_damaged_lock_keeps_nobody_out(tmp_path):
    (tmp_path / schema.LOCK_FILE).write_text("{")
    acquire(tmp_path).release()


def test_of_two_jobs_that_find_a_stale_lock_one_gets_it(tmp_path, monkeypatch):
    left_behind(tmp_path, started=1)
    stale = read_holder(tmp_path)
    first = acquire(tmp_path)
    # The second had judged the same stale lock before the first took it over.
    runlock._remove_stale(tmp_path / schema.LOCK_FILE, stale)
    assert read_holder(tmp_path).started != 1
    first.release()


def test_a_directory_that_cannot_be_written_is_a_clear_error(tmp_path):
    with pytest.raises(StorageError, match="cannot lock .*missing"):
        acquire(tmp_path / "missing")
