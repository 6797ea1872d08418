"""Signs of life: who is named silent, when, and what follows."""

import logging

import pytest
from fakes import FakeClock, FakeCounters

from hpcrl.errors import EXIT_STALLED
from hpcrl.roles import heartbeat as heartbeats
from hpcrl.roles.heartbeat import Attendance, Heartbeat

LABELS = ["rank 0 (parameter_server 0, monitor 0) on a", "rank 1 (actor 0, learner 0) on a", "rank 2 (actor 1) on b"]
HEARTBEAT, STALL = 20.0, 60.0


class Beats(FakeCounters):
    owner = 0


class Job:
    """Three ranks, of which those in ``running`` count as time goes by; what it was told in the end."""

    def __init__(self, clock, needed=((0,), (1, 2))):
        self.clock, self.beats, self.running, self.ended = clock, Beats(), {0, 1, 2}, []
        self.attendance = Attendance(
            beats=self.beats,
            labels=LABELS,
            ranks={"parameter_server": (0,), "actor": (1, 2)},
            needed=needed,
            heartbeat_seconds=HEARTBEAT,
            stall_seconds=STALL,
            end=lambda message, code: self.ended.append((message, code)),
        )

    def run(self, seconds):
        for _ in range(round(seconds)):
            self.clock.now += 1
            for rank in self.running:
                if self.clock.now % (HEARTBEAT / 4) == 0:
                    self.beats.add(str(rank), 1)
            self.attendance.look()


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(heartbeats, "time", clock)
    return clock


def test_while_all_ranks_count_nothing_is_said(clock, caplog):
    job = Job(clock)
    job.run(500)
    assert job.attendance.alive() == {"parameter_server": (1, 1), "actor": (2, 2)}
    assert not caplog.records
    assert not job.ended


def test_a_silent_rank_is_named_once_within_the_heartbeat_and_may_come_back(clock, caplog):
    caplog.set_level(logging.INFO, logger="hpcrl")
    job = Job(clock)
    job.run(100)
    job.running = {0, 1}
    job.run(HEARTBEAT)
    assert caplog.text.count("rank 2 (actor 1) on b has given no sign of life") == 1
    assert job.attendance.alive() == {"parameter_server": (1, 1), "actor": (1, 2)}
    assert job.attendance.expendable() == {2}
    job.run(10 * STALL)
    assert len(caplog.records) == 1
    job.running = {0, 1, 2}
    job.run(HEARTBEAT)
    assert "rank 2 (actor 1) on b is back after" in caplog.text
    assert job.attendance.alive()["actor"] == (2, 2)
    assert not job.attendance.silent
    assert not job.ended


def test_a_needed_rank_that_stays_silent_ends_the_job(clock):
    job = Job(clock, needed=((0,), (2,)))
    job.run(100)
    job.running = {0, 1}
    job.run(STALL - 2)
    assert not job.ended
    assert job.attendance.expendable() == set()
    job.run(7)
    message, code = job.ended[0]
    assert code == EXIT_STALLED
    assert "rank 2 (actor 1) on b has given no sign of life for 6" in message


def test_one_of_a_group_is_enough_and_none_is_too_few(clock):
    job = Job(clock)
    job.running = {0, 2}
    job.run(STALL + 20)
    assert not job.ended
    job.running = {0}
    job.run(STALL + 20)
    assert "none of rank 1 (actor 0, learner 0) on a; rank 2 (actor 1) on b has given a sign of life" in job.ended[0][0]


def test_without_its_crew_a_rank_is_as_good_as_silent(clock):
    job = Job(clock, needed=((0,), (1,)))
    job.attendance.crews = {1: (2,)}
    job.running = {0, 1}
    job.run(STALL + 20)
    message, code = job.ended[0]
    assert code == EXIT_STALLED
    assert "rank 2 (actor 1) on b has given no sign of life" in message


def test_a_job_that_was_suspended_as_a_whole_is_not_silent(clock, caplog):
    job = Job(clock)
    job.run(100)
    clock.now += 100 * STALL
    job.attendance.look()
    job.run(100)
    assert not caplog.records
    assert not job.ended


def test_every_rank_counts_four_times_in_the_heartbeat_and_watches_the_monitors_rank(clock):
    beats, ended, barks = Beats(), [], []
    heartbeat = Heartbeat(
        2,
        beats=beats,
        beat=lambda: barks.append(1),
        labels=LABELS,
        heartbeat_seconds=HEARTBEAT,
        stall_seconds=STALL,
        end=lambda message, code: ended.append((message, code)),
    )
    for _ in range(200):
        clock.now += 0.5
        beats.add("0", 1)
        heartbeat()
    assert beats.get("2") == 20
    assert len(barks) == 200
    clock.now += 100 * STALL  # suspended
    heartbeat()
    for _ in range(round(2 * STALL) - 12):
        clock.now += 0.5
        heartbeat()
    assert not ended
    for _ in range(30):
        clock.now += 0.5
        heartbeat()
    assert "rank 0 (parameter_server 0, monitor 0) on a has given no sign of life" in ended[0][0]
    assert ended[0][1] == EXIT_STALLED
