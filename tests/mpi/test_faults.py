"""What goes wrong ends the whole job quickly, says where, and never leaves ranks behind."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from launching import environment, mpiexec, run_ranks, train

from hpcrl.errors import EXIT_CONFIG, EXIT_FAULT

HERE = Path(__file__).parent
CONFIG = HERE / "small.toml"
ROOT = HERE.parents[1]


@pytest.mark.parametrize(
    ("role", "ranks"),
    [
        ("parameter_server", 3),
        ("writer thread", 3),
        *(pytest.param(role, 3, marks=pytest.mark.one_mpi) for role in ("actor", "learner", "monitor")),
    ],
)
def test_an_exception_on_any_rank_ends_the_job_with_traceback_role_and_rank(role, ranks, tmp_path):
    done = run_ranks(ranks, [HERE / "ranks" / "raising.py", role, CONFIG, tmp_path / "run"], timeout=60)
    raised = float(next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("raising-at")))
    assert done.returncode == EXIT_FAULT, done.stderr
    assert "ZeroDivisionError: on purpose" in done.stderr
    where = "monitor 0), thread writer" if role == "writer thread" else f"{role} 0"
    assert where in done.stderr
    assert "rank " in done.stderr
    assert time.monotonic() - raised < 10


def test_the_console_script_ends_the_job_as_well(tmp_path):
    script = Path(sys.executable).with_name("hpcrl")
    assert script.exists(), "hpcrl is not installed in this environment: pip install -e ."
    command = [mpiexec(), "-n", "3", script, "train", CONFIG, "--run-dir", tmp_path / "run"]
    command += ["--set", "env.id=ranks.raising_env:make"]
    done = subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(PYTHONPATH=f"{HERE}{os.pathsep}{ROOT}"),
    )
    assert done.returncode == EXIT_FAULT, done.stderr
    assert "RuntimeError: the simulator broke" in done.stderr
    assert "actor" in done.stderr


@pytest.mark.one_mpi
@pytest.mark.parametrize("variable", ["SLURM_NTASKS", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE"])
def test_accidental_singletons_are_refused_and_nothing_is_written(variable, tmp_path):
    done = train(0, CONFIG, tmp_path / "run", **{variable: "4"})
    assert done.returncode == EXIT_CONFIG
    assert f"{variable}=4" in done.stderr
    assert "a job of its own" in done.stderr
    assert ("srun --mpi=" if variable.startswith("SLURM") else "mpiexec -n 4") in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.one_mpi
def test_faults_of_a_configuration_are_told_once_in_full_and_nothing_is_written(tmp_path):
    done = train(3, CONFIG, tmp_path / "run", "replay.capacityy=3", "learning.batch_size=0")
    assert done.returncode == EXIT_CONFIG
    assert done.stderr.count("replay.capacityy: unknown key") == 1
    assert "learning.batch_size" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.one_mpi
def test_impossible_counts_show_the_arithmetic(tmp_path):
    done = train(3, CONFIG, tmp_path / "run", "topology.servers=2", "topology.bundles=2")
    assert done.returncode == EXIT_CONFIG
    assert "2 servers + 2 bundles + 0 evaluators = 4 ranks, but the job has 3" in done.stderr
    assert done.stderr.count("but the job has 3") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.one_mpi
def test_an_unwritable_run_directory_is_a_clear_error(tmp_path):
    (tmp_path / "file").touch()
    done = train(3, CONFIG, tmp_path / "file" / "run")
    assert done.returncode != 0
    assert "cannot write the run directory" in done.stderr
    assert "Traceback" not in done.stderr
