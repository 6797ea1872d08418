"""A rank that is stopped or hangs is named; the others go on without it where they can, or the job ends at once."""

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from launching import (
    is_open_mpi,
    left_in_shared_memory,
    rank_pids,
    run_ranks,
    shared_memory,
    start_training,
    train,
    training_job,
)

from hpcrl.errors import EXIT_FINISHED, EXIT_STALLED, EXIT_STOPPED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

HERE = Path(__file__).parent
CONFIG = HERE / "small.toml"
HEARTBEAT_SECONDS = 2.0
LIMITS = [f"run.heartbeat_seconds={HEARTBEAT_SECONDS}", "run.stall_seconds=5.0"]

SYNCHRONOUS = ["topology.layout=sampler_learner", "learning.update=allreduce"]


@contextlib.contextmanager
def stopped(pid: int):
    """A process that is stopped, and goes on in the end if it still exists."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def wait_for(what, seconds=120.0):
    """Wait until ``what()`` is true and return it."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


def frames(run_dir) -> int:
    return int(read_runlog(run_dir, "progress")["total_frames"][-1])


def test_a_stopped_bundle_is_named_and_stops_nobody(tmp_path):
    run_dir = tmp_path / "run"
    events = run_dir / "events.log"
    with training_job(4, CONFIG, run_dir, *LIMITS, "checkpoint.period_seconds=1") as job:
        pids = rank_pids(job)
        wait_for(lambda: latest(run_dir)[0])
        with stopped(pids[-1]):
            begin = time.monotonic()
            wait_for(lambda: "no sign of life" in events.read_text())
            # The test itself looks only now and then, on a machine that may be busy.
            assert time.monotonic() - begin < HEARTBEAT_SECONDS + 3.0
            assert re.search(r"warning: rank 3 \(actor 2, learner 2\) on \S+ has given no sign", events.read_text())
            wait_for(lambda: "learner-2" in latest(run_dir)[0].absent)  # others go on being written
            time.sleep(5.0)  # longer than run.stall_seconds since it was stopped
        wait_for(lambda: "is back after" in events.read_text())
        wait_for(lambda: not latest(run_dir)[0].absent)
        with stopped(pids[-1]):
            assert run_ranks(0, ["-m", "hpcrl", "stop", run_dir]).returncode == 0
            out, err = job.communicate(timeout=30)
    assert job.returncode == EXIT_STOPPED, err
    assert "actors alive 2/3, learners alive 2/3" in out
    assert "the job ends without rank 3 (actor 2, learner 2)" in err
    assert "hpcrl: run small stopped" in out
    checkpoint, skipped = latest(run_dir)
    assert not skipped
    assert "learner-2" in checkpoint.absent
    rows = read_runlog(run_dir, "progress")
    assert rows["global_update"][-1] == checkpoint.global_update  # both were completed


@pytest.mark.one_mpi
def test_a_hung_actor_does_not_keep_the_run_from_its_end(tmp_path):
    arguments = [HERE / "ranks" / "raising.py", "hang", CONFIG, tmp_path / "run", *LIMITS]
    done = run_ranks(3, [*arguments, "run.total_frames=12000"], timeout=90)
    assert done.returncode == EXIT_FINISHED, done.stderr
    assert "warning: rank 1 (actor 0, learner 0)" in done.stderr
    assert "the job ends without rank 1" in done.stderr
    assert frames(tmp_path / "run") >= 12000
    assert latest(tmp_path / "run")[0].attributes["total_frames"] >= 12000


@pytest.mark.parametrize(
    ("which", "overrides", "name"),
    [
        (0, [], "rank 0 (parameter_server 0, monitor 0)"),
        (1, ["topology.servers=2"], "rank 1 (parameter_server 1)"),
        pytest.param(2, ["run.lock_step=true"], "rank 2 (actor 1, learner 1)", marks=pytest.mark.long),
        pytest.param(1, SYNCHRONOUS, "rank 1 (actor 1, learner 1)", marks=pytest.mark.one_mpi),
        pytest.param(
            1, [*SYNCHRONOUS, "learner.reduce_overlap=true"], "rank 1 (actor 1, learner 1)", marks=pytest.mark.long
        ),
    ],
    ids=["monitor", "server", "lock step", "synchronous", "synchronous, overlapped"],
)
def test_a_stopped_rank_that_is_needed_ends_the_job(which, overrides, name, tmp_path):
    with training_job(3, CONFIG, tmp_path / "run", *LIMITS, *overrides) as job:
        _assert_stalls(job, which, name)


@pytest.mark.skipif(is_open_mpi(), reason="Open MPI has no setting that keeps shared memory out of a node")
def test_ranks_that_are_blocked_in_mpi_end_the_job(tmp_path, monkeypatch):
    monkeypatch.setenv("MPIR_CVAR_NOLOCAL", "1")
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    with training_job(3, CONFIG, tmp_path / "run", *LIMITS) as job:
        _assert_stalls(job, 0, "waiting for rank 0 (parameter_server 0, monitor 0)")


def _assert_stalls(job, which, name):
    pid = rank_pids(job)[which]
    with stopped(pid):
        _, err = job.communicate(timeout=30)
    assert job.returncode == EXIT_STALLED, err
    assert name in err, err
    assert "run.stall_seconds" in err, err


@pytest.mark.one_mpi
def test_a_job_that_was_suspended_as_a_whole_goes_on_and_leaves_nothing_behind(tmp_path):
    run_dir = tmp_path / "run"
    with training_job(3, CONFIG, run_dir, *LIMITS) as job:
        files = shared_memory(rank_pids(job))
        with contextlib.ExitStack() as all_stopped:
            for pid in rank_pids(job):
                all_stopped.enter_context(stopped(pid))
            time.sleep(7.0)  # longer than run.stall_seconds
        before = frames(run_dir)
        wait_for(lambda: frames(run_dir) > before + 500)
        assert "no sign of life" not in (run_dir / "events.log").read_text()
        assert run_ranks(0, ["-m", "hpcrl", "stop", run_dir]).returncode == 0
        _, err = job.communicate(timeout=30)
    assert job.returncode == EXIT_STOPPED
    assert files
    assert not [path for path in files if os.path.exists(path)]  # not even those that MPI leaves at an abort
    ours = re.compile(r"\[\d\d:\d\d:\d\d rank \d")
    said = [line for line in err.splitlines() if line and not ours.match(line)]
    if is_open_mpi():  # its launcher tells of any exit code but 0
        said = [line for line in said if not line.startswith("---")]
        assert said[0].startswith("prterun detected that one or more processes exited with non-zero status")
        assert "85" in said[-1]
    else:
        assert not said


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 4), *(pytest.param(seed, 25, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_a_rank_that_is_killed_ends_the_job_and_the_next_start_reads_what_it_left(seed, kills, tmp_path):
    run_dir, rng, updates = tmp_path / "run", random.Random(seed), 0
    for kill in range(kills):
        job = start_training(3, CONFIG, run_dir, "checkpoint.period_seconds=0.3")
        try:
            _kill_one(job, run_dir, rng, training=kill % 2 == 0)
        finally:
            job.kill()
        checkpoint, skipped = latest(run_dir)
        assert not skipped
        if checkpoint:
            assert checkpoint.global_update >= updates
            updates = checkpoint.global_update
    done = train(3, CONFIG, run_dir, f"run.total_updates={updates + 100}")
    assert done.returncode == EXIT_FINISHED, done.stderr
    assert f"resuming {run_dir} at update {updates}" in done.stderr
    assert "skipped" not in done.stderr
    for table in ("progress", "episodes"):
        assert len(read_runlog(run_dir, table)["wall_seconds"]) > 0
    assert (np.diff(read_runlog(run_dir, "progress")["global_update"]) >= 0).all()


def _kill_one(job, run_dir, rng, *, training):
    """Kill a rank of a job while it writes one checkpoint after the other, or at some moment of its start."""
    pids = wait_for(lambda: len(found := rank_pids(job)) == 3 and found)
    if training:
        events = run_dir / "events.log"
        before = events.read_text().count("written in") if events.exists() else 0
        wait_for(lambda: events.exists() and events.read_text().count("written in") > before)
    time.sleep(rng.uniform(0.0, 1.0 if training else 4.0))
    assert job.poll() is None, job.communicate()
    files = shared_memory(pids)
    os.kill(rng.choice(pids), signal.SIGKILL)
    _, err = job.communicate(timeout=30)  # some two seconds where the machine is free
    assert job.returncode != 0, err
    wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))
    left = left_in_shared_memory(files)
    # One that is killed while MPI starts leaves the file in which its ranks meet, or that of a window being made.
    meeting = ("/dev/shm/mpich_shm_", "/dev/shm/mpich_shar_")
    assert not [path for path in left if training or not path.startswith(meeting)]
