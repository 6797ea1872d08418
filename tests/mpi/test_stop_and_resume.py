"""A run stops cleanly when asked, in whatever way, and the same command goes on where it stopped."""

import os
import signal
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from launching import is_open_mpi, rank_pids, run_ranks, train, training_job

from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

CONFIG = Path(__file__).with_name("small.toml")


@pytest.fixture
def job(tmp_path):
    """A training job of three ranks, which packs its checkpoints and goes on until it is stopped; its run directory."""
    with training_job(3, CONFIG, tmp_path / "run", f"run.scratch_dir={tmp_path}/scratch") as process:
        yield process, tmp_path / "run"


def _assert_stopped(process, run_dir):
    out, err = process.communicate(timeout=30)
    assert process.returncode == EXIT_STOPPED, err
    checkpoint, skipped = latest(run_dir)
    assert checkpoint is not None, err
    assert not skipped
    assert checkpoint.global_update > 0
    assert {path.name for path in checkpoint.path.iterdir()} == {"manifest.json", "node-0.tar"}
    assert "stopped" in out
    assert str(run_dir) in out  # the summary says where things lie
    assert not list((run_dir / "checkpoints").glob("*.tmp"))


def test_hpcrl_stop_ends_the_run_with_a_checkpoint(job):
    process, run_dir = job
    done = run_ranks(0, ["-m", "hpcrl", "stop", run_dir])
    assert done.returncode == 0
    _assert_stopped(process, run_dir)


@pytest.mark.skipif(is_open_mpi(), reason="Open MPI's mpiexec ends the ranks at once on INT")
def test_ctrl_c_ends_the_run_with_a_checkpoint(job):
    process, run_dir = job
    process.send_signal(signal.SIGINT)
    _assert_stopped(process, run_dir)


def test_a_signal_to_one_rank_stops_all(job):
    process, run_dir = job
    os.kill(rank_pids(process)[-1], signal.SIGUSR2)
    _assert_stopped(process, run_dir)


@pytest.mark.one_mpi
def test_a_job_stops_by_itself_before_it_is_ended_from_outside(tmp_path):
    end = time.time() + 24  # much more than a start takes on a busy machine
    done = train(3, CONFIG, tmp_path, HPCRL_END_TIME=f"{end:.0f}", timeout=120)
    assert done.returncode == EXIT_STOPPED, done.stderr
    assert "the job is ended in" in done.stderr
    assert latest(tmp_path)[0].global_update > 0


@pytest.mark.one_mpi
def test_the_run_log_can_be_read_while_the_run_is_going(job):
    _, run_dir = job
    deadline = time.monotonic() + 30
    while len(read_runlog(run_dir, "progress")["total_frames"]) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert (np.diff(read_runlog(run_dir, "progress")["total_frames"]) > 0).all()
    assert len(read_runlog(run_dir, "episodes")["episode_return"]) > 0
    assert "new run" in (run_dir / "events.log").read_text()


@pytest.mark.one_mpi
def test_a_second_job_on_the_same_run_directory_is_refused(job):
    process, run_dir = job
    second = train(2, CONFIG, run_dir)
    assert second.returncode != 0
    assert "Traceback" not in second.stderr
    assert second.stderr.count(f"{run_dir} is in use by another job (host ") == 1
    assert f"pid {rank_pids(process)[0]})" in second.stderr
    run_ranks(0, ["-m", "hpcrl", "stop", run_dir])
    _assert_stopped(process, run_dir)  # the first went on undisturbed
    assert not (run_dir / "lock").exists()


@pytest.mark.one_mpi
def test_the_same_command_goes_on(tmp_path):
    run_dir = tmp_path / "run"
    first = train(3, CONFIG, run_dir, "run.total_updates=150")
    assert first.returncode == EXIT_FINISHED, first.stderr
    before, _ = latest(run_dir)
    assert before.global_update == 150
    again = train(3, CONFIG, run_dir, "run.total_updates=150")
    assert again.returncode == EXIT_FINISHED, again.stderr
    second = train(3, CONFIG, run_dir, "run.total_updates=300")
    assert second.returncode == EXIT_FINISHED, second.stderr
    assert "resuming" in second.stderr
    after, _ = latest(run_dir)
    assert after.global_update == 300
    assert after.attributes["total_frames"] > before.attributes["total_frames"]
    assert after.attributes["wall_seconds"] > before.attributes["wall_seconds"]
    rows = read_runlog(run_dir, "progress")
    assert (np.diff(rows["total_frames"]) > 0).all()
    assert (np.diff(rows["global_update"]) >= 0).all()
    assert rows["global_update"][-1] == 300
    _assert_neither_side_catches_up(after)
    # 64 steps of each bundle before its first gradient (one that got no core may not have come so far) and 4 for every
    # gradient, as if there had been no stop: the memories are not filled once more. Each bundle may be 8 steps ahead
    # of its gradients, and its last one of the first start was lost on its way.
    judged = rows["gradients_accepted"][-1] + rows["gradients_dropped"][-1]
    assert 64 <= rows["total_steps"][-1] - 4 * judged <= 2 * (64 + 8 + 4)
    steps = {}
    for checkpoint in (before, after):
        if checkpoint.path.exists():
            with h5py.File(checkpoint.path / "parameter_server-0.h5") as file:
                steps[checkpoint.global_update] = float(file["arrays/optimizer/step"][()])
    assert steps[300] == 300  # Adam's own count went on from 150


def _assert_neither_side_catches_up(checkpoint):
    """A bundle acts 64 steps before its first gradient and 4 for each; it waits where two gradients are due."""
    for learner in (0, 1):
        with h5py.File(checkpoint.path / f"learner-{learner}.h5") as file:
            steps, trained = (int(file[f"arrays/ratio/{name}"][()]) for name in ("steps", "trained"))
        assert trained == 0 or 0 <= steps - 64 - trained / 8 <= 8


@pytest.mark.long
def test_logs_and_counts_go_on_over_kills(tmp_path):
    often = ["checkpoint.period_seconds=0.3", "log.period_seconds=0.3"]
    for fault in ("renamed 2", "manifest_written 2"):  # rank 0 dies behind a checkpoint, and in the middle of one
        killed = train(3, CONFIG, tmp_path, *often, HPCRL_FAULT_POINT=fault)
        assert killed.returncode not in (EXIT_FINISHED, EXIT_STOPPED), killed.stderr
    end = latest(tmp_path)[0].attributes["global_update"] + 100
    done = train(3, CONFIG, tmp_path, *often, f"run.total_updates={end}")
    assert done.returncode == EXIT_FINISHED, done.stderr
    rows = read_runlog(tmp_path, "progress")
    assert (np.diff(rows["total_frames"]) > 0).all()
    assert (np.diff(rows["global_update"]) >= 0).all()
    assert (np.diff(rows["wall_seconds"]) > 0).all()
    assert rows["global_update"][-1] == rows["gradients_accepted"][-1] == end
    _assert_neither_side_catches_up(latest(tmp_path)[0])


@pytest.mark.long
def test_a_run_resumes_with_another_number_of_servers(tmp_path):
    run_dir = tmp_path / "run"
    for servers, updates in ((3, 100), (1, 120), (2, 140)):
        done = train(servers + 1, CONFIG, run_dir, f"topology.servers={servers}", f"run.total_updates={updates}")
        assert done.returncode == EXIT_FINISHED, done.stderr
        checkpoint, _ = latest(run_dir)
        assert checkpoint.global_update == updates
        assert sum(owner.startswith("parameter_server-") for owner in checkpoint.owners) == servers
    assert "servers 1 -> 2" in done.stderr
    assert "changed: run.total_updates = 140, was 120" in done.stderr


@pytest.mark.one_mpi
def test_another_network_does_not_resume(tmp_path):
    run_dir = tmp_path / "run"
    assert train(3, CONFIG, run_dir, "run.total_updates=50").returncode == EXIT_FINISHED
    done = train(3, CONFIG, run_dir, "run.total_updates=100", "network.hidden=[16]")
    assert done.returncode != 0
    assert "another network or environment" in done.stderr
    assert "Traceback" not in done.stderr
    assert "hidden = [32]" in (run_dir / "config.toml").read_text()  # nothing was changed
