"""Sleeps grow while there is nothing to do, and keep a dear loop to its share of a core."""

from types import SimpleNamespace

import pytest

from hpcrl.transport import waiting
from hpcrl.transport.waiting import IDLE_SHARE, IDLE_WAITS, MOST_STRETCHES, WAKEFUL_SECONDS, Backoff


class Clock:
    """Processor time that a test spends, and the sleeps that it was asked for."""

    def __init__(self):
        self.used, self.now, self.slept = 0.0, 0.0, []

    def thread_time(self) -> float:
        return self.used

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += 1.5 * seconds  # as a kernel does


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(waiting, "time", clock)
    return clock


def backoff(longest: float) -> Backoff:
    return Backoff(SimpleNamespace(Iprobe=lambda: False), longest)


def idle(clock: Clock, waits: Backoff, rounds: int, seconds: float) -> list[float]:
    """Sleeps of so many rounds that each use so much processor time."""
    clock.slept.clear()
    for _ in range(rounds):
        clock.used += seconds
        waits.wait()
    return list(clock.slept)


def test_sleeps_grow_to_the_longest_and_begin_anew_after_work(clock):
    waits = backoff(1e-3)
    slept = idle(clock, waits, 10, 1e-6)
    assert slept[0] == 0
    assert slept[1:4] == [2e-5, 4e-5, 8e-5]
    assert slept[-1] == 1e-3
    waits.reset()
    assert idle(clock, waits, 1, 1e-6) == [0]


def test_a_dear_round_is_slept_off_to_its_share_of_a_core_once_the_loop_is_idle(clock):
    waits = backoff(1e-3)
    assert max(idle(clock, waits, IDLE_WAITS, 5e-5)) == 1e-3
    idle(clock, waits, 2, 5e-5)
    assert idle(clock, waits, 1, 5e-5) == [pytest.approx(5e-5 / IDLE_SHARE)]
    waits.reset()
    assert max(idle(clock, waits, IDLE_WAITS, 5e-5)) == 1e-3


def test_however_dear_a_round_sleeps_stay_bounded(clock):
    waits = backoff(1e-3)
    idle(clock, waits, IDLE_WAITS + 2, 1.0)
    assert idle(clock, waits, 1, 1.0) == [MOST_STRETCHES * 1e-3]


def test_who_wants_no_sleep_gets_none(clock):
    assert set(idle(clock, backoff(0.0), 2 * IDLE_WAITS, 1e-3)) == {0}


def test_a_wakeful_loop_looks_at_mpi_often_until_it_is_idle(clock):
    looks = []
    waits = Backoff(SimpleNamespace(Iprobe=lambda: looks.append(clock.used)), 1e-3, wakeful=True)
    slept = idle(clock, waits, IDLE_WAITS, 1e-6)
    assert max(slept) <= WAKEFUL_SECONDS * (1 + 1e-9)
    assert clock.now < 1.2 * IDLE_WAITS * 1e-3
    assert len(looks) == len(slept)
    idle(clock, waits, 1, 1e-6)
    assert idle(clock, waits, 5, 1e-6) == [1e-3] * 5
