"""What jobs/slurm.sh does with each end of a job, with programs in the place of Slurm's."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("date", "find", "sort", "tail", "head", "sh", "mkdir", "touch")
FAKES = {
    "srun": 'echo "srun $*"; eval "$DURING"; exit "$CODE"',
    "squeue": 'case $* in *%e*) echo 2030-01-01T00:00:00 ;; *) echo "$STATE" ;; esac',
    "scontrol": 'echo "scontrol $*"; exit "${REFUSED:-0}"',
}
JOB = 'source "$1/jobs/slurm.sh"; enter_environment; train_and_requeue runs/a config.toml --set run.seed=1'


@pytest.fixture
def job(tmp_path):
    """Run a batch script whose step exits with ``code``; its exit code and what it prints."""
    (tmp_path / "bin").mkdir()
    for name in TOOLS:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    for name, text in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)

    def run(code, without=(), **variables):
        for name in without:
            (tmp_path / "bin" / name).unlink()
        environment = {
            "PATH": str(tmp_path / "bin"),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "n1",
            "STATE": "RUNNING",
        }
        environment |= {"SLURM_SUBMIT_DIR": str(tmp_path), "CODE": str(code), "DURING": ""} | variables
        command = [shutil.which("bash"), "-euo", "pipefail", "-c", JOB, "bash", ROOT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


SAVED = "mkdir -p runs/a/checkpoints/step-000000000010"


@pytest.mark.parametrize(
    ("code", "variables", "requeued", "exit_code"),
    [
        (0, {}, None, 0),
        (85, {}, "7", 0),
        (85, {"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "3"}, "5_3", 0),
        (85, {"DURING": "mkdir -p runs/a; touch runs/a/stop"}, None, 85),
        (85, {"STATE": "COMPLETING"}, None, 85),
        (2, {"DURING": SAVED}, None, 2),
        (1, {}, None, 1),
        (1, {"DURING": SAVED}, "7", 0),
        (70, {"DURING": SAVED}, "7", 0),
        (85, {"REFUSED": "1"}, "7", 85),
    ],
)
def test_a_job_is_queued_again_where_it_has_something_to_go_on_with(job, code, variables, requeued, exit_code):
    found, said = job(code, **variables)
    assert found == exit_code, said
    assert (f"scontrol requeue {requeued}\n" in said) == (requeued is not None), said
    assert ("could not be queued again: submit this script once more" in said) == ("REFUSED" in variables)


def test_a_job_runs_where_slurm_has_no_other_programs(job):
    found, said = job(85, without=("squeue", "scontrol"))
    assert found == 85
    assert "could not be queued again: submit this script once more" in said


def test_the_step_gets_the_cores_of_the_job(job):
    _, said = job(0, SLURM_CPUS_PER_TASK="8", HPCRL_SRUN_MPI="pmix")
    trainer = "python -m hpcrl train config.toml --set run.seed=1 --run-dir runs/a"
    assert f"srun --mpi=pmix --kill-on-bad-exit=1 --cpus-per-task=8 {trainer}\n" in said


def test_the_groups_of_a_heterogeneous_job_become_one_step(job):
    sizes = {"SLURM_HET_SIZE": "2", "SLURM_CPUS_PER_TASK_HET_GROUP_0": "8"}
    _, said = job(0, **sizes)
    options, trainer = "--mpi=pmi2 --kill-on-bad-exit=1 --cpus-per-task", "python -m hpcrl train config.toml"
    line = next(line for line in said.splitlines() if line.startswith("srun"))
    assert line.startswith(f"srun --het-group=0 {options}=8 {trainer}")
    assert f" : --het-group=1 {options}=1 {trainer}" in line


def test_a_site_says_what_it_needs_and_a_container_starts_hpcrl(job, tmp_path):
    (tmp_path / "site.sh").write_text("HPCRL_IMAGE=hpcrl.sif HPCRL_SRUN_MPI=pmix\n")
    _, said = job(0, HPCRL_SITE="site.sh", SLURM_JOB_GPUS="0")
    assert (
        f"--mpi=pmix --kill-on-bad-exit=1 apptainer exec --nv --bind {tmp_path} hpcrl.sif python3 -m hpcrl train"
        in said
    )


def test_an_environment_that_is_none_is_told(job):
    found, said = job(0, HPCRL_VENV="absent")
    assert found == 2
    assert "HPCRL_VENV: no Python environment in absent" in said


def test_the_run_is_told_when_the_job_ends(job):
    _, said = job(0, DURING='echo "end $HPCRL_END_TIME"', TZ="UTC", HPCRL_END_TIME="5")
    assert "end 1893456000\n" in said
    _, said = job(0, without=("squeue",), DURING='echo "end ${HPCRL_END_TIME:-none}"', HPCRL_END_TIME="5")
    assert "end none\n" in said
