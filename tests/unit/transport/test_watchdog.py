"""What the watchdog says and does when the main thread no longer beats."""

import time
from types import SimpleNamespace

import pytest

from hpcrl.errors import EXIT_STALLED
from hpcrl.transport import watchdog as watchdogs
from hpcrl.transport.watchdog import Watchdog
from hpcrl.transport.window import Window

LABELS = ["rank 0 (parameter_server 0) on a", "rank 1 (actor 0) on a", "rank 2 (parameter_server 1) on b"]
LIMIT = 0.4


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(watchdogs, "START_SECONDS", 0.0)
    dogs, ended = [], []

    def watch(needed=False):
        dogs.append(
            Watchdog(1, LIMIT, needed=needed, labels=LABELS, end=lambda message, code: ended.append((message, code)))
        )
        dogs[0].beat()
        return dogs[0], ended

    monkeypatch.setattr(watchdogs.os, "_exit", lambda code: ended.append(("left", code)))
    monkeypatch.setattr(watchdogs, "END_SECONDS", 0.0)
    yield watch
    dogs[0].stop()


def test_it_is_quiet_as_long_as_there_are_beats(watch):
    dog, ended = watch(needed=True)
    for _ in range(20):
        time.sleep(LIMIT / 10)
        dog.beat()
    assert not ended


def test_a_needed_rank_that_hangs_ends_the_job_and_leaves(watch, capfd):
    _, ended = watch(needed=True)
    time.sleep(4 * LIMIT)
    assert ("left", EXIT_STALLED) in ended
    message, code = next(end for end in ended if end[0] != "left")
    assert code == EXIT_STALLED
    assert "rank 1 (actor 0) on a made no progress for" in message
    assert "in its training loop" in message
    assert "test_a_needed_rank_that_hangs" in message  # where it stands


def test_a_rank_that_hangs_by_itself_says_so_once_and_ends_nothing(watch, capfd):
    dog, ended = watch()
    time.sleep(6 * LIMIT)
    assert not ended
    assert capfd.readouterr().err.count("The other ranks go on without it.") == 1
    dog.beat()
    time.sleep(4 * LIMIT)
    assert capfd.readouterr().err.count("The other ranks go on without it.") == 1


def test_a_call_blocked_in_mpi_ends_the_job_and_names_the_rank_it_waits_for(watch):
    blocked = Window.__new__(Window)
    # A call into C that takes as many seconds as the number of the rank.
    blocked.win, blocked.name, blocked._in_flight = SimpleNamespace(Flush=time.sleep), "counters", {2: 1}
    blocked.comm = SimpleNamespace(size=len(LABELS))
    _, ended = watch()
    blocked.flush(2)
    message, code = next(end for end in ended if end[0] != "left")
    assert code == EXIT_STALLED
    assert "waiting for rank 2 (parameter_server 1) on b in window 'counters'" in message
