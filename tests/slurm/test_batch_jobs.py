"""The batch scripts of jobs/, scaled down, on a real Slurm: warned and queued again, stopped, cancelled, ended."""

import sys
import sysconfig
import time
import venv
from pathlib import Path

import numpy as np
import pytest
from launching import ROOT, updates_of

from hpcrl.errors import EXIT_STOPPED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import list_segments, read_runlog

CONFIG = ROOT / "tests" / "mpi" / "small.toml"
TWO_NODES = ("--nodes=2", "--ntasks-per-node=2", "--time=10")
ENVIRONMENT = {
    "HPCRL_VENV": str(Path(sys.executable).parents[1]),
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "HPCRL_SITE": "/dev/null",
}


def submit(slurm, run_dir, script, *arguments, config=CONFIG, sbatch=TWO_NODES, **extra):
    """Submit a script of jobs/ and return the id of its job."""
    command = ["sbatch", "--parsable", f"--output={run_dir}-%a.out", *sbatch, ROOT / "jobs" / script]
    command += [config] if config else []
    command += [part for argument in arguments for part in ("--set", argument)]
    return slurm.client(*command, **{**ENVIRONMENT, "RUN_DIR": str(run_dir), **extra}).strip()


def output_of(run_dir):
    """What a job that is no array has printed."""
    return Path(f"{run_dir}-4294967294.out").read_text()


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


pytestmark = pytest.mark.usefixtures("cancelled")
APEX, PPO = ROOT / "configs" / "apex_small.toml", ROOT / "configs" / "cartpole_ppo.toml"
SYNCHRONOUS = ("topology.layout=sampler_learner", "topology.evaluators=0", "learning.update=allreduce")
OF_EACH_GROUP = ("--nodes=1", "--ntasks=1", "--cpus-per-task=2", ":", "--nodes=2", "--ntasks-per-node=2")
SCRIPTS = {
    "slurm_gorila.sh": (CONFIG, ("--nodes=2", "--ntasks-per-node=1", "--time=10"), ("run.total_updates=50",)),
    "slurm_node.sh": (CONFIG, ("--ntasks=3", "--time=10"), ("run.total_updates=50",)),
    "slurm_ppo.sh": (
        PPO,
        (*TWO_NODES, "--gpus-per-node=2", "--cpus-per-task=2"),
        (*SYNCHRONOUS, "run.total_frames=10000"),
    ),
    "slurm_apex.sh": (APEX, (*TWO_NODES, "--gpus-per-node=1"), ("run.total_frames=3000",)),
    "slurm_apex_het.sh": (APEX, OF_EACH_GROUP, ("run.total_frames=3000",)),
}


@pytest.mark.parametrize(
    "script", [name if name == "slurm_gorila.sh" else pytest.param(name, marks=pytest.mark.long) for name in SCRIPTS]
)
def test_a_script_trains_to_the_end_of_its_run(slurm, tmp_path, script):
    config, sbatch, arguments = SCRIPTS[script]
    arguments += (f"run.scratch_dir={tmp_path}/$SLURMD_NODENAME",)
    job = submit(slurm, tmp_path / "run", script, *arguments, config=config, sbatch=sbatch)
    ended, said = wait_for_end(slurm, job), output_of(tmp_path / "run")
    assert ended == ("COMPLETED", 0, 0), said
    newest, skipped = latest(tmp_path / "run")
    assert not skipped
    assert newest.global_update > 0
    nodes = {"slurm_node.sh": 1, "slurm_apex_het.sh": 3}.get(script, 2)
    files = {path.name for path in newest.path.iterdir()}
    assert files == {"manifest.json", *(f"node-{node}.tar" for node in range(nodes))}
    assert not [*tmp_path.glob("n[1-4]/*")]  # scratch directories are removed in the end
    ranks = {"slurm_gorila.sh": 2, "slurm_node.sh": 3, "slurm_apex_het.sh": 5}.get(script, 4)
    assert f"new run {tmp_path / 'run'}: {ranks} ranks" in said  # one world, whatever it is made of


@pytest.mark.long
def test_the_script_of_the_49_games(slurm, tmp_path):
    small = ("run.total_updates=3", "replay.capacity_steps=400", "replay.learning_starts_steps=64", "env.simulators=2")
    sbatch = ("--array=1", "--ntasks-per-node=2", "--time=10")
    job = submit(slurm, tmp_path / "out", "atari49.sh", *small, config=None, sbatch=sbatch, SCRATCH=str(tmp_path))
    wait_for(lambda: not slurm.client("squeue", "--noheader", "--jobs", job, check=False).strip())
    assert latest(tmp_path / "atari49" / "Alien")[0].global_update == 3, (tmp_path / "out-1.out").read_text()


STAND_IN = """\
#!/bin/sh
# apptainer exec [--bind DIR] IMAGE COMMAND...
[ "$1 $2" = "exec --bind" ] && [ -f "$4" ] || exit 1
shift 4
exec "$@"
"""


@pytest.mark.long
def test_the_script_of_a_container(slurm, tmp_path):
    """Apptainer itself is replaced by a program that starts the command outside of any container."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "apptainer").write_text(STAND_IN)
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    (tmp_path / "hpcrl.sif").touch()
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{slurm.environment['PATH']}"
    run_dir, image = tmp_path / "run", str(tmp_path / "hpcrl.sif")
    job = submit(slurm, run_dir, "slurm_container.sh", "run.total_updates=50", HPCRL_IMAGE=image, PATH=path)
    assert wait_for_end(slurm, job) == ("COMPLETED", 0, 0), output_of(run_dir)
    assert latest(run_dir)[0].global_update >= 50


@pytest.mark.long
def test_an_environment_is_packed_and_unpacked_on_the_nodes_of_each_group(slurm, tmp_path):
    """One node in each, since all nodes here have the same disk; and a small environment, which finds the packages of
    this one, but no hpcrl."""
    packed, local, small = tmp_path / "environment.tar", tmp_path / "local", tmp_path / "small"
    local.mkdir()
    venv.create(small)
    for packages in small.glob("lib/python*/site-packages"):
        (packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    library = max((Path(sys.prefix) / "lib").glob("libmpi.so.*"))
    variables = {**ENVIRONMENT, "HPCRL_VENV": str(small), "PYTHONPATH": "", "MPI4PY_LIBMPI": str(library)}
    slurm.client("bash", "jobs/pack_environment.sh", packed, **variables)
    run_dir, sbatch = tmp_path / "run", ("--nodes=1", "--ntasks=1", ":", "--nodes=1", "--ntasks-per-node=3")
    staged = {**variables, "HPCRL_PACKED": str(packed), "HPCRL_LOCAL": str(local), "HPCRL_VENV": "/absent"}
    arguments = ("run.total_frames=3000",)
    job = submit(slurm, run_dir, "slurm_apex_het.sh", *arguments, config=APEX, sbatch=sbatch, **staged)
    ended, said = wait_for_end(slurm, job), output_of(run_dir)
    assert ended == ("COMPLETED", 0, 0), said
    assert f"unpacked {packed} in {local}/hpcrl-{job} on every node" in said
    assert latest(run_dir)[0].global_update > 0
    assert not list(local.iterdir())


@pytest.mark.long
def test_the_script_that_hpcrl_writes(slurm, tmp_path):
    (tmp_path / "cluster.toml").write_text("[partitions.main]\ncores = 3\nmemory_gb = 8.0\nnodes = 4\n")
    (tmp_path / "games").write_text("catch\nCartPole-v1\n")
    command = [Path(sys.executable).with_name("hpcrl"), "sbatch", CONFIG, "--nodes", 1, "--time", "10"]
    command += ["--cluster", tmp_path / "cluster.toml", "--array", tmp_path / "games", "--seeds", "1,2"]
    command += ["--run-dir", tmp_path / "runs", "--set", "run.total_updates=20", "--output", tmp_path / "job.sh"]
    assert "3: CartPole-v1, seed 2" in slurm.client(*command, PYTHONPATH=str(ROOT))
    sbatch = ["sbatch", "--parsable", f"--output={tmp_path}/%a.out", tmp_path / "job.sh"]
    job = slurm.client(*sbatch, **ENVIRONMENT).strip()
    wait_for(lambda: not slurm.client("squeue", "--noheader", "--jobs", job, check=False).strip(), 300)
    for game in ("catch", "CartPole-v1"):
        for seed in (1, 2):
            assert latest(tmp_path / "runs" / game / f"seed-{seed}")[0].global_update >= 20
    assert "member 3: CartPole-v1, seed 2" in (tmp_path / "3.out").read_text()


@pytest.mark.long
def test_a_warned_job_is_queued_again_and_goes_on_until_it_is_stopped(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_gorila.sh", f"run.scratch_dir={tmp_path}/$SLURMD_NODENAME")
    wait_for(lambda: updates_of(run_dir))
    slurm.client("scancel", "--batch", "--signal=USR1", job)
    wait_for_start(slurm, job, run_dir, 2)
    before, skipped = latest(run_dir)
    assert not skipped
    wait_for(lambda: updates_of(run_dir) > before.global_update)
    stop(slurm, run_dir)
    state, code, restarts = wait_for_end(slurm, job)
    said = output_of(run_dir)
    assert (state, code, restarts) == ("FAILED", EXIT_STOPPED, 1), said
    assert "before its end: queued again" in said
    assert f"resuming {run_dir} at update {before.global_update}" in said
    assert latest(run_dir)[0].global_update > before.global_update
    rows = read_runlog(run_dir, "progress")
    assert (np.diff(rows["global_update"]) >= 0).all()
    assert (np.diff(rows["total_frames"]) > 0).all()


@pytest.mark.long
def test_a_cancelled_job_leaves_a_checkpoint_and_is_not_queued_again(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_node.sh", sbatch=("--ntasks=3", "--time=10"))
    wait_for(lambda: updates_of(run_dir))
    slurm.client("scancel", job)
    state, _, restarts = wait_for_end(slurm, job)
    assert (state, restarts) == ("CANCELLED", 0)
    assert latest(run_dir)[0].global_update > 0
    assert not list((run_dir / "checkpoints").glob("*.tmp"))


@pytest.mark.long
def test_a_job_stops_before_its_time_limit_and_goes_on(slurm, tmp_path):
    run_dir = tmp_path / "run"
    # Slurm's warning, which may come a minute early, is a signal here that nobody heeds.
    job = submit(slurm, run_dir, "slurm_node.sh", sbatch=("--ntasks=3", "--time=1", "--signal=B:URG@1"))
    wait_for(lambda: updates_of(run_dir))
    for number in (2, 3):
        wait_for_start(slurm, job, run_dir, number)
    stop(slurm, run_dir)
    state, code, restarts = wait_for_end(slurm, job)
    said = output_of(run_dir)
    assert (state, code, restarts) == ("FAILED", EXIT_STOPPED, 2), said
    assert said.count("the job is ended in") == 2
    assert said.count("resuming") == 2


@pytest.mark.long
def test_a_job_gives_way_to_a_more_urgent_one_and_goes_on_after_it(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_gorila.sh")
    wait_for(lambda: updates_of(run_dir))
    urgent = slurm.client("sbatch", "--parsable", "-p", "urgent", "-N4", "--exclusive", "-t1", "--wrap", "sleep 5")
    assert wait_for_end(slurm, urgent.strip())[0] == "COMPLETED"
    wait_for_start(slurm, job, run_dir, 2, 300)
    stop(slurm, run_dir)
    assert wait_for_end(slurm, job) == ("FAILED", EXIT_STOPPED, 1)
    said = output_of(run_dir)
    assert "resuming" in said


@pytest.mark.long
def test_a_job_goes_on_after_one_of_its_nodes_failed(slurm, tmp_path):
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_gorila.sh", "checkpoint.period_seconds=1.0")
    wait_for(lambda: latest(run_dir)[0])
    slurm.fail_node("n2")
    wait_for(lambda: len(list_segments(run_dir)[0]) == 2, 300)  # on the other nodes, at once
    slurm.start_node("n2")
    stop(slurm, run_dir)
    assert wait_for_end(slurm, job) == ("FAILED", EXIT_STOPPED, 1)


@pytest.mark.long
def test_an_array_of_games_and_seeds_whose_members_start_at_once(slurm, tmp_path):
    """Ten of them, on one node."""
    games = {"GAMES": "catch CartPole-v1", "SEEDS": "1 2 3 4 5", "RUNS": str(tmp_path)}
    sbatch = ("--array=0-9", "--ntasks=2", "--time=10", "--nodelist=n3")
    job = submit(slurm, tmp_path / "array", "slurm_array.sh", "run.total_updates=50", sbatch=sbatch, **games)
    wait_for(lambda: not slurm.client("squeue", "--noheader", "--jobs", job, check=False).strip(), 300)
    members = [(game, seed) for game in ("catch", "CartPole-v1") for seed in range(1, 6)]
    for member, (game, seed) in enumerate(members):
        said = (tmp_path / f"array-{member}.out").read_text()
        assert f"member {member}: {game}, seed {seed}" in said
        run_dir = tmp_path / game / f"seed-{seed}"
        assert latest(run_dir)[0].global_update >= 50, said
        config = (run_dir / "config.toml").read_text()
        assert f'id = "{game}"' in config
        assert f"seed = {seed}\n" in config


@pytest.mark.long
def test_a_job_that_was_killed_and_queued_again_on_the_same_nodes_goes_on(slurm, tmp_path):
    """It has the same name then, and what the killed ranks have left in shared memory is still there."""
    run_dir = tmp_path / "run"
    job = submit(slurm, run_dir, "slurm_gorila.sh", "checkpoint.period_seconds=1.0")
    before = 0
    for number in (2, 3):
        wait_for(lambda before=before: (newest := latest(run_dir)[0]) and newest.number > before)
        slurm.kill_ranks(job)
        wait_for_start(slurm, job, run_dir, number, 300)
        before = latest(run_dir)[0].number
    stop(slurm, run_dir)
    assert wait_for_end(slurm, job) == ("FAILED", EXIT_STOPPED, 2), output_of(run_dir)
