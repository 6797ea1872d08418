"""Spans of what a rank does."""

from types import SimpleNamespace

import pytest
from fakes import Reports

from hpcrl.launch.tracing import trace
from hpcrl.roles.timeline import GAP_SECONDS, WAIT, Timeline, Tracer
from hpcrl.storage.schema import ACTIVITIES


class Clock:
    """Stands still but for what is done."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def spend(self, seconds):
        self.now += seconds
        return seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timeline(clock):
    return Timeline(clock)


def named(timeline):
    return [(ACTIVITIES[s.activity], s.begin, s.seconds) for s in timeline.take()]


def test_each_call_is_a_span_once(timeline, clock):
    pull = timeline.timed("pull", clock.spend)
    assert pull(2.0) == 2.0
    clock.spend(1.0)
    pull(4.0)
    assert named(timeline) == [("pull", 100.0, 2.0), ("pull", 103.0, 4.0)]
    assert timeline.take() == []


def test_what_is_done_within_a_span_belongs_to_it(timeline, clock):
    inner = timeline.timed("pull", clock.spend)
    outer = timeline.timed("push", inner)
    write = timeline.timed("write", clock.spend, background=True)
    timeline.timed("gradient", lambda: (outer(1.0), write(1.0)))()
    assert named(timeline) == [("write", 101.0, 1.0), ("gradient", 100.0, 2.0)]


def test_a_span_ends_where_an_exception_passes(timeline, clock):
    def fail():
        clock.spend(1.0)
        raise ValueError

    with pytest.raises(ValueError):
        timeline.timed("pull", fail)()
    timeline.timed("push", clock.spend)(1.0)
    assert [name for name, _, _ in named(timeline)] == ["pull", "push"]


def test_waits_in_a_row_are_one(timeline, clock):
    wait, push = timeline.timed("wait", clock.spend), timeline.timed("push", clock.spend)
    wait(1.0)
    clock.spend(GAP_SECONDS / 2)
    wait(2.0)
    assert timeline.take() == []
    clock.spend(2 * GAP_SECONDS)
    wait(0.5)
    push(1.0)
    (_, first, long), (_, _, short), (last, _, _) = named(timeline)
    assert (first, last) == (100.0, "push")
    assert (long, short) == (pytest.approx(3.0 + GAP_SECONDS / 2), pytest.approx(0.5))


def test_spans_reach_the_monitor_and_wait_where_there_is_no_room(timeline, clock):
    reports = Reports()
    room, send = [0], reports.reporter.send
    reports.reporter.send = lambda record: bool(room[0]) and send(record)
    timeline.timed("pull", clock.spend)(2.0)
    tracer = Tracer(3, timeline, reports.reporter)
    tracer.step()
    assert reports.sent == []
    room[0] = 1
    reports.reporter.send_waiting()
    ((kind, rank, values),) = reports.sent
    assert (kind, rank) == ("span", 3)
    assert values == {"activity": ACTIVITIES.index("pull"), "background": 0, "begin": 100.0, "seconds": 2.0}


def test_a_bundles_roles_are_timed(timeline, clock):
    def thing(**methods):
        return SimpleNamespace(**methods)

    def spend():
        clock.spend(1.0)

    online = thing(pull=spend)
    actor = thing(kind="actor", replica=online, policy=thing(act=spend), env=thing(step=spend), lanes=thing())
    update = thing(pull=lambda: online.pull(), give=spend)
    replay, algorithm = thing(sample=spend), thing(gradient=spend)
    learner = thing(kind="learner", update=update, replay=replay, algorithm=algorithm)
    trace(timeline, [actor, learner, thing(kind="heartbeat")])
    for do in (actor.replica.pull, actor.policy.act, actor.env.step, update.pull, replay.sample):
        do()
    algorithm.gradient(), update.give()
    assert [name for name, _, _ in named(timeline)] == [
        *("pull", "infer", "simulate", "pull", "sample", "gradient", "push")
    ]
    assert ACTIVITIES[WAIT] == "wait"
