"""The stop flag of the job, as one rank sees it."""

from types import SimpleNamespace

import pytest
from fakes import FakeClock, FakeCounters

from hpcrl.roles import stopping
from hpcrl.roles.stopping import FINISHED, RUNNING, STOPPED, StopFlag

NO_SIGNAL = SimpleNamespace(made=False)


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(stopping, "time", clock)
    return clock


def test_it_is_looked_at_once_in_a_period(clock):
    counters = FakeCounters()
    flag = StopFlag(counters, NO_SIGNAL, period_seconds=0.02)
    for _ in range(10):
        assert not flag()
    assert counters.looks == 1
    counters.set("stop", FINISHED)
    assert not flag()
    clock.now += 0.03
    assert flag()
    assert flag.value == FINISHED
    assert flag()
    assert counters.looks == 2


@pytest.mark.parametrize(("method", "value"), [("finish", FINISHED), ("stop", STOPPED)])
def test_whoever_raises_it_sees_it_at_once_and_so_do_the_others(clock, method, value):
    counters = FakeCounters()
    mine, other = StopFlag(counters, NO_SIGNAL), StopFlag(counters, NO_SIGNAL)
    assert mine.value == RUNNING
    getattr(mine, method)()
    assert mine()
    assert counters.values["stop"] == value
    assert other()
    assert other.value == value


def test_a_signal_handlers_request_touches_no_counter_until_the_next_look(clock):
    counters = FakeCounters()
    signal = SimpleNamespace(made=False)
    flag = StopFlag(counters, signal)
    signal.made = True
    assert counters.values == {}
    assert counters.looks == 0
    assert flag()
    assert counters.values == {"stop": STOPPED}


def test_the_first_reason_that_a_rank_knows_stays(clock):
    counters = FakeCounters()
    signal = SimpleNamespace(made=False)
    flag = StopFlag(counters, signal)
    flag.finish()
    flag.stop()
    signal.made = True
    assert flag()
    assert flag.value == counters.values["stop"] == FINISHED
