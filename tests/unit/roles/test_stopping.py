"""The stop flag of the job, as one rank sees it."""

from types import SimpleNamespace

import pytest
from fakes import FakeClock, FakeCounters

from hpcrl.roles import stopping
from hpcrl.roles.stopping import FINISHED, RUNNING, STOPPED, Deadline, StopFlag

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


def test_a_deadline_is_near_when_a_checkpoint_would_just_fit(clock):
    deadline = Deadline(1000.0)
    clock.now += 1000 - 10 - 1.5 * 40 - 1
    assert not deadline.near(checkpoint_seconds=40)
    assert deadline.near(checkpoint_seconds=42)
    assert deadline.leaves_time_for(47)
    assert not deadline.leaves_time_for(48)


def test_half_of_the_time_is_for_training_whatever_a_checkpoint_takes(clock):
    deadline = Deadline(60.0)
    clock.now += 29
    assert not deadline.near(checkpoint_seconds=1000)
    clock.now += 2
    assert deadline.near(checkpoint_seconds=1000)


def test_without_an_end_a_deadline_is_never_near_until_term_comes(clock):
    deadline = Deadline()
    clock.now += 1e9
    assert not deadline.near(1000)
    assert deadline.leaves_time_for(1000)
    for _ in range(3):
        deadline.hurry()
        clock.now += 5
    assert deadline.left() == 10


def test_term_brings_no_end_nearer_that_is_near_already(clock):
    deadline = Deadline(10.0)
    deadline.hurry()
    assert deadline.left() == 10


def test_together_a_rank_stops_when_the_counter_says_so_and_not_before():
    counters = FakeCounters()
    mine, other = (StopFlag(counters, NO_SIGNAL, together=True) for _ in range(2))
    told = {}
    counters.set = told.__setitem__  # as where a change is known after the next meeting
    mine.finish()
    assert (told, mine(), other()) == ({"stop": FINISHED}, False, False)
    counters.values.update(told)
    assert mine()
    assert other()
    assert mine.value == other.value == FINISHED
