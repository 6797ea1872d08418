"""The batch scripts of jobs/, scaled down, on a real Slurm: warned and queued again, stopped, cancelled, ended."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT, updates_of

from hpcrl.errors import EXIT_STOPPED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import list_segments, read_runlog

CONFIG = ROOT / "tests" / "mpi" / "small.toml"
TWO_NODES = ("--nodes=2", "--ntasks-per-node=2", "--time=10")


def submit(slurm, run_dir, script, *arguments, sbatch=TWO_NODES, **extra):
    """Submit a script of jobs/ and return the id of its job."""
    command = ["sbatch", "--parsable", f"--output={run_dir}-%a.out", *sbatch, ROOT / "jobs" / script, CONFIG]
    environment = {"HPCRL_VENV": str(Path(sys.executable).parents[1]), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command += [part for argument in arguments for part in ("--set", argument)]
    return slurm.client(*command, **environment, RUN_DIR=str(run_dir), **extra).strip()


def wait_for(what, seconds=120.0):
    """Wait until ``what()`` is true and return it."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def wait_for_end(slurm, job):
    """Wait until a job is over; its state, exit code and restarts."""
    wait_for(lambda: not slurm.client("squeue", "--noheader", "--jobs", job, check=False).strip())
    shown = dict(word.split("=", 1) for word in slurm.client("scontrol", "show", "job", job).split() if "=" in word)
    return shown["JobState"], int(shown["ExitCode"].partition(":")[0]), int(shown["Restarts"])


def wait_for_start(slurm, job, run_dir, number, seconds=120.0):
    """Wait until a job has been queued again and begun to train, for the ``number``-th time.

    Slurm lets it wait for two minutes, since a job that begins in the second in which it ended is refused by its nodes.
    """
    wait_for(lambda: slurm.client("squeue", "--noheader", "--jobs", job, "--format=%T").strip() == "PENDING", seconds)
    slurm.client("scontrol", "update", f"JobId={job}", "StartTime=now+3seconds")
    wait_for(lambda: len(list_segments(run_dir)[0]) == number, seconds)


def stop(slurm, run_dir):
    """``hpcrl stop``."""
    slurm.client(Path(sys.executable).with_name("hpcrl"), "stop", run_dir, PYTHONPATH=str(ROOT))


@pytest.fixture
def cancelled(slurm):
    """No job outlives its test."""
    yield
    slurm.client("scancel", "--user=root", check=False)
    wait_for(lambda: not slurm.client("squeue", "--noheader").strip())


pytestmark = [pytest.mark.long, pytest.mark.usefixtures("cancelled")]


def test_a_warned_job_is_queued_again_and_goes_on_until_it_is_stopped(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_gorila.sh")
    wait_for(lambda: updates_of(run_dir))
    slurm.client("scancel", "--batch", "--signal=USR1", job)
    wait_for_start(slurm, job, run_dir, 2)
    before, skipped = latest(run_dir)
    assert not skipped
    wait_for(lambda: updates_of(run_dir) > before.global_update)
    stop(slurm, run_dir)
    state, code, restarts = wait_for_end(slurm, job)
    said = Path(f"{run_dir}-4294967294.out").read_text()
    assert (state, code, restarts) == ("FAILED", EXIT_STOPPED, 1), said
    assert "before its end: queued again" in said
    assert f"resuming {run_dir} at update {before.global_update}" in said
    assert latest(run_dir)[0].global_update > before.global_update
    rows = read_runlog(run_dir, "progress")
    assert (np.diff(rows["global_update"]) >= 0).all()
    assert (np.diff(rows["total_frames"]) > 0).all()


def test_a_cancelled_job_leaves_a_checkpoint_and_is_not_queued_again(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_node.sh", sbatch=("--ntasks=3", "--time=10"))
    wait_for(lambda: updates_of(run_dir))
    slurm.client("scancel", job)
    state, _, restarts = wait_for_end(slurm, job)
    assert (state, restarts) == ("CANCELLED", 0)
    assert latest(run_dir)[0].global_update > 0
    assert not list((run_dir / "checkpoints").glob("*.tmp"))


def test_a_job_stops_before_its_time_limit_and_goes_on(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_node.sh", sbatch=("--ntasks=3", "--time=1", "--signal=B:USR1@1"))
    wait_for(lambda: updates_of(run_dir))
    for number in (2, 3):
        wait_for_start(slurm, job, run_dir, number)
    stop(slurm, run_dir)
    state, code, restarts = wait_for_end(slurm, job)
    said = Path(f"{run_dir}-4294967294.out").read_text()
    assert (state, code, restarts) == ("FAILED", EXIT_STOPPED, 2), said
    assert said.count("the job is ended in") == 2
    assert said.count("resuming") == 2


def test_a_job_gives_way_to_a_more_urgent_one_and_goes_on_after_it(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_gorila.sh")
    wait_for(lambda: updates_of(run_dir))
    urgent = slurm.client("sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "-t1", "--wrap", "sleep 5")
    assert wait_for_end(slurm, urgent.strip())[0] == "COMPLETED"
    wait_for_start(slurm, job, run_dir, 2, 300)
    stop(slurm, run_dir)
    assert wait_for_end(slurm, job) == ("FAILED", EXIT_STOPPED, 1)
    said = Path(f"{run_dir}-4294967294.out").read_text()
    assert "resuming" in said


def test_a_job_goes_on_after_one_of_its_nodes_failed(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_gorila.sh", "checkpoint.period_seconds=1.0")
    wait_for(lambda: latest(run_dir)[0])
    slurm.fail_node("n2")
    wait_for(lambda: len(list_segments(run_dir)[0]) == 2, 300)  # on the other nodes, at once
    slurm.start_node("n2")
    stop(slurm, run_dir)
    assert wait_for_end(slurm, job) == ("FAILED", EXIT_STOPPED, 1)


def test_an_array_of_games_and_seeds(slurm, tmp_path):
    arguments = ("run.total_updates=50",)
    # One after the other: of jobs of MPICH that start at once on one host, one has got another's message.
    sbatch = ("--array=0-3%1", "--ntasks=2", "--time=10")
    games = {"GAMES": "catch CartPole-v1", "RUNS": str(tmp_path)}
    job = submit(slurm, tmp_path / "array", "slurm_array.sh", *arguments, sbatch=sbatch, **games)
    wait_for(lambda: not slurm.client("squeue", "--noheader", "--jobs", job, check=False).strip(), 300)
    for member, (game, seed) in enumerate((game, seed) for game in ("catch", "CartPole-v1") for seed in (1, 2)):
        said = (tmp_path / f"array-{member}.out").read_text()
        assert f"member {member}: {game}, seed {seed}" in said
        run_dir = tmp_path / game / f"seed-{seed}"
        assert latest(run_dir)[0].global_update == 50, said
        config = (run_dir / "config.toml").read_text()
        assert f'id = "{game}"' in config
        assert f"seed = {seed} " in config or f"seed = {seed}\n" in config
