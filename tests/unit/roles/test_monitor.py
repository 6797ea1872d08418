"""The monitor with everything around it faked, and its writer thread."""

import logging
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from fakes import FakeClock, FakeCounters

from hpcrl.errors import StorageError
from hpcrl.roles import monitor as monitoring
from hpcrl.roles import stopping
from hpcrl.roles.metrics import FIELDS, encode
from hpcrl.roles.monitor import Monitor
from hpcrl.roles.stopping import RUNNING, STOPPED, Deadline, StopFlag
from hpcrl.roles.writer import Writer
from hpcrl.storage import schema


class Rings:
    """Reports that wait, by rank."""

    def __init__(self):
        self.records = [[], []]

    def push(self, rank, kind, index, **values):
        self.records[rank].append(encode(kind, index, dict.fromkeys(FIELDS[kind], 0.0) | values))

    def waiting(self):
        return [len(records) for records in self.records]

    def oldest(self, producer):
        return self.records[producer][0]

    def pop(self, producers):
        for producer in producers:
            self.records[producer].pop(0)


class RunLog:
    def __init__(self):
        self.rows, self.full, self.flushes, self.closed = [], False, 0, False

    def append(self, table, row):
        if self.full:
            raise StorageError("disk full")
        assert row.keys() == schema.TABLES[table].keys()
        self.rows.append((table, row))

    def of(self, table):
        return [row for name, row in self.rows if name == table]

    def flush(self):
        self.flushes += 1

    def close(self):
        self.closed = True


class Keeper:
    def __init__(self):
        self.begun, self.evaluations, self.busy = [], [], False
        self.cuts, self.seconds, self.without_replay = 0, 8.0, None

    def evaluated(self, *evaluation):
        self.evaluations.append(evaluation)

    def cut(self):
        self.cuts += 1

    def begin(self, global_update, *, without_replay=False):
        self.begun.append(global_update)
        self.without_replay = without_replay
        self.busy = True

    def step(self):
        pass


class Display:
    def __init__(self):
        self.shown, self.closed = [], []

    def update(self, progress):
        self.shown.append(progress)

    def close(self, progress):
        self.closed.append(progress)


class Attending:
    """Three ranks: two servers, the first with the monitor, and an actor."""

    ranks, labels = {"parameter_server": (0, 1), "actor": (2,)}, ("rank 0", "rank 1", "rank 2")

    def __init__(self):
        self.silent = set()

    def look(self):
        pass

    def alive(self):
        return {kind: (len(set(ranks) - self.silent), len(ranks)) for kind, ranks in self.ranks.items()}

    def expendable(self):
        return self.silent


class AtOnce:
    """A writer that does everything at once, or, held up, nothing."""

    def __init__(self):
        self.held, self.tasks, self.closed = False, [], False

    def submit(self, task):
        self.tasks.append(task) if self.held else task()

    def idle(self):
        return not self.tasks

    def close(self):
        self.closed = True


@pytest.fixture
def clock(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(monitoring, "time", clock)
    monkeypatch.setattr(stopping, "time", clock)
    return clock


@pytest.fixture
def make(clock, tmp_path):
    def make(**keys):
        counters = FakeCounters(total_frames=4000, global_update=100)
        parts = {
            "reports": Rings(),
            "counters": counters,
            "stop": StopFlag(counters, SimpleNamespace(made=False, urgent=False)),
            "writer": AtOnce(),
            "keeper": Keeper(),
            "runlog": RunLog(),
            "display": Display(),
            "attendance": Attending(),
            "frames_per_step": 4,
            "total_frames": 0,
            "total_updates": 0,
            "time_limit_seconds": 0.0,
            "log_seconds": 10.0,
            "checkpoint_seconds": 60.0,
            "heartbeat_seconds": 30.0,
            "wall_seconds": 500.0,
            "deadline": Deadline(),
        }
        return Monitor(name="run", run_dir=tmp_path, **(parts | keys))

    return make


def later(monitor, clock, seconds, *, frames=0, updates=0):
    clock.now += seconds
    monitor.counters.add("total_frames", frames)
    monitor.counters.add("global_update", updates)
    return monitor.step()


def test_it_takes_in_every_report_but_looks_only_now_and_then(make, clock):
    monitor = make()
    monitor.step()
    for simulator in range(3):
        monitor.reports.push(1, "episode", 5, simulator=simulator, episode_return=10.0 * simulator, length_steps=7)
    assert not monitor.step()
    assert later(monitor, clock, 0.03)
    assert monitor.reports.waiting() == [0, 0]
    rows = monitor.runlog.of("episodes")
    assert [(row["actor"], row["simulator"], row["episode_return"]) for row in rows] == [
        (5, 0, 0),
        (5, 1, 10),
        (5, 2, 20),
    ]
    assert rows[0]["wall_seconds"] == pytest.approx(500.03)


def test_rates_are_of_the_time_since_the_row_before(make, clock):
    monitor = make()
    later(monitor, clock, 10, frames=800, updates=20)
    later(monitor, clock, 10, frames=0, updates=10)
    rows = monitor.runlog.of("progress")
    assert [row["frames_per_second"] for row in rows] == pytest.approx([80, 0])
    assert [row["steps_per_second"] for row in rows] == pytest.approx([20, 0])
    assert [row["updates_per_second"] for row in rows] == pytest.approx([2, 1])
    assert [row["wall_seconds"] for row in rows] == pytest.approx([510, 520])
    assert [(row["total_frames"], row["total_steps"], row["global_update"]) for row in rows] == [
        (4800, 1200, 120),
        (4800, 1200, 130),
    ]
    assert monitor.runlog.flushes == 2


def test_the_mean_return_is_of_the_last_hundred_episodes(make, clock):
    monitor = make()
    later(monitor, clock, 10)
    assert np.isnan(monitor.runlog.of("progress")[0]["mean_return_100"])
    for k in range(150):
        monitor.reports.push(0, "episode", 0, episode_return=float(k))
    later(monitor, clock, 10)
    assert monitor.runlog.of("progress")[1]["mean_return_100"] == np.mean(range(50, 150))


def test_counts_of_gradients_are_means_over_the_shards(make, clock):
    monitor = make()
    monitor.reports.push(0, "parameter_server", 0, accepted=0, dropped=0, staleness_sum=0)
    monitor.reports.push(1, "parameter_server", 1, accepted=0, dropped=0, staleness_sum=0)
    monitor.reports.push(0, "parameter_server", 0, accepted=10, dropped=2, staleness_sum=15)
    monitor.reports.push(1, "parameter_server", 1, accepted=12, dropped=0, staleness_sum=7)
    later(monitor, clock, 10)
    monitor.reports.push(0, "parameter_server", 0, accepted=20, dropped=2, staleness_sum=45)
    later(monitor, clock, 10)
    first, second = monitor.runlog.of("progress")
    assert (first["gradients_accepted"], first["gradients_dropped"], first["staleness_mean"]) == (11, 1, 1.0)
    assert (second["gradients_accepted"], second["staleness_mean"]) == (16, 3.0)


def test_what_was_drawn_again_and_what_priorities_came_too_late_is_added_up(make, clock):
    monitor = make()
    for index, count in enumerate((3, 4)):
        monitor.reports.push(index, "learner", index, overwritten=count)
        monitor.reports.push(index, "replay_host", index, dropped=10 * count)
    later(monitor, clock, 10)
    (row,) = monitor.runlog.of("progress")
    assert (row["samples_redrawn"], row["priorities_dropped"]) == (7, 70)


def test_a_learner_without_updates_since_its_last_report_keeps_its_loss(make, clock):
    monitor = make()
    monitor.reports.push(0, "learner", 0, updates=60, loss=1.5, mean_priority=np.nan)
    monitor.reports.push(0, "learner", 0, updates=61, loss=np.nan, mean_priority=np.nan)
    later(monitor, clock, 10)
    (row,) = monitor.runlog.of("progress")
    assert row["loss"] == 1.5
    assert np.isnan(row["mean_priority"])
    assert monitor.last["learner", 0]["updates"] == 61


def test_the_training_intensity_is_that_of_the_last_stretch(make, clock):
    """Transitions trained by all learners per agent step of all actors."""
    monitor = make()
    for index in (0, 1):
        monitor.reports.push(index, "actor", index, steps=0)
        monitor.reports.push(index, "learner", index, trained=0)
    later(monitor, clock, 10)
    for index, (steps, trained) in enumerate(((60, 320), (40, 160))):
        monitor.reports.push(index, "actor", index, steps=steps)
        monitor.reports.push(index, "learner", index, trained=trained)
    later(monitor, clock, 10, frames=999)
    monitor.reports.push(0, "learner", 0, trained=480)
    monitor.reports.push(1, "actor", 1, steps=240)
    later(monitor, clock, 10, frames=999)
    intensity = [row["training_intensity"] for row in monitor.runlog.of("progress")]
    assert np.isnan(intensity[0])
    assert intensity[1:] == [4.8, 0.8]


def test_what_became_of_gradients_is_logged_with_each_checkpoint_and_at_the_end(make, clock):
    monitor = make()
    for count in (3, 4):
        monitor.reports.push(0, "gradient", 1, fate=0, delay_updates=2, count=count)
    monitor.reports.push(0, "gradient", 0, fate=3, delay_updates=-1, count=5)
    later(monitor, clock, 59)
    assert monitor.runlog.of("gradients") == []
    later(monitor, clock, 2)
    rows = [(row["learner"], row["fate"], row["delay_updates"], row["count"]) for row in monitor.runlog.of("gradients")]
    assert rows == [(0, 3, -1, 5), (1, 0, 2, 7)]
    monitor.reports.push(0, "gradient", 1, fate=0, delay_updates=2, count=1)
    later(monitor, clock, 1)
    monitor.end()
    assert monitor.runlog.of("gradients")[2]["count"] == 1  # rows add up
    assert len(monitor.runlog.of("gradients")) == 3


def test_evaluations_are_logged(make, clock, caplog):
    monitor = make()
    monitor.reports.push(0, "evaluator", 0, global_update=90, episodes=30, mean_return=1.5)
    with caplog.at_level(logging.INFO, logger="hpcrl"):
        later(monitor, clock, 1)
    assert monitor.runlog.of("evaluations")[0]["mean_return"] == 1.5
    assert "evaluation at update 90: mean return 1.50 over 30 episodes" in caplog.text
    assert monitor.keeper.evaluations == [(90, 1.5, 30)]


def test_it_tells_who_is_alive(make, clock):
    monitor = make()
    later(monitor, clock, 1)
    assert monitor.progress.alive == {"parameter_server": (2, 2), "actor": (1, 1)}
    monitor.attendance.silent.add(2)
    later(monitor, clock, 1)
    assert monitor.progress.alive == {"parameter_server": (2, 2), "actor": (0, 1)}


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ({}, np.nan),
        ({"total_frames": 4900 + 900}, 10),
        ({"total_frames": 4900 + 900, "total_updates": 115 + 6}, 4),
        ({"total_frames": 4900 + 900, "time_limit_seconds": 13.0}, 3),
    ],
)
def test_the_time_left_is_that_to_the_nearest_end(make, clock, ends, expected):
    monitor = make(**ends)
    later(monitor, clock, 10, frames=900, updates=15)  # to 4900 frames and update 115
    assert monitor.progress.eta_seconds == pytest.approx(expected, nan_ok=True)


def test_a_stop_file_stops_the_run(make, clock, tmp_path):
    monitor = make()
    later(monitor, clock, 1)
    assert monitor.stop.value == RUNNING
    (tmp_path / schema.STOP_FILE).touch()
    later(monitor, clock, 1)
    assert monitor.counters.get("stop") == STOPPED


def test_the_time_limit_counts_from_this_start(make, clock):
    monitor = make(time_limit_seconds=100.0)
    later(monitor, clock, 99)
    assert monitor.stop.value == RUNNING
    later(monitor, clock, 2)
    assert monitor.stop.value == STOPPED


def test_it_stops_in_time_for_a_last_checkpoint_before_the_job_is_ended(make, clock):
    monitor = make(deadline=Deadline(100.0))
    later(monitor, clock, 77)  # a checkpoint takes 8 s: half as long again and 10 s to leave
    assert monitor.stop.value == RUNNING
    later(monitor, clock, 2)
    assert monitor.stop.value == STOPPED
    monitor.close_when_left(lambda: 3)
    later(monitor, clock, 1)
    assert monitor.keeper.begun == [100]
    assert not monitor.keeper.without_replay


@pytest.mark.parametrize(("checkpoint_seconds", "late"), [(12, False), (20, True)])
def test_after_term_the_last_checkpoint_goes_without_replay_where_that_would_be_late(
    make, clock, caplog, checkpoint_seconds, late
):
    """TERM comes while the ranks leave; KILL follows after 30 s."""
    monitor, left = make(), [2]
    monitor.keeper.seconds = checkpoint_seconds
    monitor.close_when_left(lambda: left[0])
    later(monitor, clock, 1)
    monitor.stop.request.urgent = True
    later(monitor, clock, 1)
    left[0] = 3
    later(monitor, clock, 1)
    assert monitor.keeper.begun == [100]
    assert monitor.keeper.without_replay == late
    assert ("the last one is without replay" in caplog.text) == late


def test_after_term_ranks_that_do_not_leave_are_waited_for_less_long(make, clock):
    monitor = make()
    monitor.stop.request.urgent = True
    monitor.close_when_left(lambda: 2)
    later(monitor, clock, 8)
    assert monitor.keeper.begun == []
    later(monitor, clock, 1)
    assert monitor.keeper.begun == [100]


def test_checkpoints_come_every_period_until_the_stop(make, clock):
    monitor = make()
    for _ in range(130):
        later(monitor, clock, 1, updates=1)
    assert monitor.keeper.begun == [160, 220]
    monitor.stop.stop()
    for _ in range(130):
        later(monitor, clock, 1)
    assert monitor.keeper.begun == [160, 220]


def test_the_last_checkpoint_waits_for_all_and_all_wait_for_it(make, clock):
    monitor, left = make(), [2]
    monitor.close_when_left(lambda: left[0])
    later(monitor, clock, 1)
    assert monitor.keeper.begun == []
    left[0] = 3
    monitor.keeper.busy = True  # one of before is still under way
    later(monitor, clock, 1)
    assert monitor.keeper.begun == []
    monitor.keeper.busy = False
    later(monitor, clock, 1)
    later(monitor, clock, 1)
    assert monitor.keeper.begun == [100]
    assert monitor.counters.get("closed") == 0
    monitor.keeper.busy, monitor.writer.held = False, True
    monitor.writer.submit(print)
    later(monitor, clock, 0.1)
    assert monitor.counters.get("closed") == 0
    monitor.writer.tasks.clear()
    later(monitor, clock, 0.1)
    assert monitor.counters.get("closed") == 1


def test_a_rank_that_never_leaves_does_not_keep_the_last_checkpoint_waiting(make, clock, caplog):
    monitor = make()
    monitor.close_when_left(lambda: 2)
    later(monitor, clock, monitor.heartbeat_seconds - 1)
    assert monitor.keeper.begun == []
    later(monitor, clock, 2)
    later(monitor, clock, 1)
    assert monitor.keeper.begun == [100]
    assert "some rank has not left" in caplog.text
    monitor.keeper.busy = False
    later(monitor, clock, 1)
    assert monitor.counters.get("closed") == 1


def test_a_silent_rank_is_not_waited_for(make, clock):
    monitor, left = make(), [1]
    monitor.attendance.silent.add(2)
    monitor.close_when_left(lambda: left[0])
    later(monitor, clock, 1)
    assert monitor.keeper.begun == []
    left[0] = 2
    later(monitor, clock, 1)
    assert monitor.keeper.begun == [100]


def test_at_the_end_the_last_row_is_written_and_everything_closed(make, clock):
    monitor = make()
    monitor.end()
    assert len(monitor.runlog.of("progress")) == 1
    assert monitor.runlog.closed
    assert len(monitor.display.closed) == 1
    assert monitor.writer.closed


def test_a_full_disk_is_told_and_training_goes_on(make, clock, caplog):
    monitor = make()
    monitor.runlog.full = True
    monitor.reports.push(0, "episode", 0)
    assert later(monitor, clock, 10)
    assert "disk full" in caplog.text
    monitor.runlog.full = False
    later(monitor, clock, 10)
    assert len(monitor.runlog.of("progress")) == 1


def test_a_stopped_terminal_piles_nothing_up(make, clock):
    monitor = make(log_seconds=1e6)
    monitor.writer.held = True
    for _ in range(20):
        later(monitor, clock, 1)
    assert len(monitor.writer.tasks) == 1


def test_the_writer_works_in_order_in_a_thread_of_its_own_and_survives_faults(caplog):
    writer, done = Writer(), []

    def fail():
        raise StorageError("no space")

    def work(number):
        done.append((number, threading.current_thread() is not threading.main_thread()))

    for task in (lambda: work(1), fail, lambda: work(2)):
        writer.submit(task)
    writer.close()
    assert done == [(1, True), (2, True)]
    assert "no space" in caplog.text


def test_the_writer_is_idle_only_when_all_is_done():
    writer, gate = Writer(), threading.Event()
    assert writer.idle()
    writer.submit(gate.wait)
    assert not writer.idle()
    gate.set()
    writer._tasks.join()
    assert writer.idle()
    writer.close()


def test_a_cut_holds_all_that_was_reported_before_it_and_lets_it_reach_the_disk_first(make, clock):
    monitor = make()
    monitor.reports.push(0, "episode", 0, episode_return=5.0)
    later(monitor, clock, 1)
    monitor.reports.push(0, "episode", 0, episode_return=7.0)
    flushes = monitor.runlog.flushes
    state = monitor.state()
    assert state["returns"].tolist() == [5.0, 7.0]
    assert len(monitor.runlog.of("episodes")) == 2
    assert monitor.runlog.flushes == flushes + 1
    assert monitor.keeper.cuts == 1
    other = make()
    other.restore(state)
    later(other, clock, 10)
    assert other.runlog.of("progress")[-1]["mean_return_100"] == 6.0


def test_counts_of_earlier_starts_are_in_the_totals_and_not_in_the_means(make, clock):
    monitor = make()
    monitor.reports.push(0, "parameter_server", 0, accepted=1000, dropped=10, staleness_sum=9000)
    monitor.reports.push(1, "parameter_server", 1, accepted=1000, dropped=10, staleness_sum=9000)
    later(monitor, clock, 1)
    monitor.reports.push(0, "parameter_server", 0, accepted=1010, dropped=10, staleness_sum=9010)
    monitor.reports.push(1, "parameter_server", 1, accepted=1010, dropped=10, staleness_sum=9010)
    later(monitor, clock, 10)
    (row,) = monitor.runlog.of("progress")
    assert (row["gradients_accepted"], row["gradients_dropped"], row["staleness_mean"]) == (1010, 10, 1.0)
