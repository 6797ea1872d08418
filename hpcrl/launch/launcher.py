"""What the launcher said about this job, compared with what MPI says."""

import contextlib
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from hpcrl.errors import MachineError, TopologyError
from hpcrl.launch.stacks import Library

SIZE_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": "mpiexec of Open MPI",
    "PMI_SIZE": "mpiexec of MPICH, or srun --mpi=pmi2",
    "SLURM_STEP_NUM_TASKS": "srun",
    "SLURM_NTASKS": "sbatch or salloc",
}
"""Environment variables with the number of ranks, in the order in which they are believed."""

LINGERING = ("prterun", "prted")
"""Open MPI's launcher and its daemons: where a network is cut they wait for each other for a quarter of an hour."""
LAUNCHER_SECONDS = 10
"""How long the launcher may take to end after its ranks."""
END_LAUNCHER = """
for second in $(seq "$2"); do
    sleep 1
    kill -0 "$1" || exit
done
for signal in TERM TERM TERM KILL; do  # at the first it asks its daemons, and after the third leaves by itself
    kill -$signal "$1" || exit
    sleep 1
done
"""

RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def launcher_rank(environ: Mapping[str, str]) -> str | None:
    """Rank as the launcher tells it, before MPI is up; None without a launcher."""
    return next((environ[name] for name in RANK_VARIABLES if name in environ), None)


def is_launched(environ: Mapping[str, str]) -> bool:
    """Whether a launcher started this process, maybe among others; a batch script itself was started by none."""
    return any(name in environ for name in SIZE_VARIABLES if name != "SLURM_NTASKS")


def announced_size(environ: Mapping[str, str]) -> tuple[str, int] | None:
    """The variable that is believed and the number of ranks that it announces; None without a launcher."""
    return next(
        ((name, int(environ[name])) for name in SIZE_VARIABLES if environ.get(name, "").isdigit()),
        None,
    )


def check_launcher(library: Library, environ: Mapping[str, str]) -> None:
    """Refuse, before MPI starts, a launcher that this library cannot talk to.

    Raises
    ------
    MachineError
        Open MPI's mpiexec started ranks with another library, which would end in its initialisation; or MPICH's (PMI)
        started ranks with Open MPI 5, which speaks PMIx only.
    """
    announced = announced_size(environ)
    if announced is None or announced[1] == 1:
        return
    variable, expected = announced
    is_open_mpi = library.vendor == "Open MPI"
    if (variable == "OMPI_COMM_WORLD_SIZE" and not is_open_mpi) or (
        variable == "PMI_SIZE" and is_open_mpi and library.version >= (5,)
    ):
        raise MachineError(
            f"the launcher ({SIZE_VARIABLES[variable]}) started {expected} ranks ({variable}={expected}), but it is "
            f"not this MPI's, and each would be a job of its own. {_advice(expected, library, environ)}"
        )


def check_world_size(world_size: int, library: Library, environ: Mapping[str, str]) -> None:
    """Refuse to run as several accidental jobs of one rank each.

    Parameters
    ----------
    world_size : int
        Size of MPI's world.
    library : Library
    environ : mapping

    Raises
    ------
    TopologyError
        A launcher started more ranks than MPI sees. The message names the command that would have worked.
    """
    announced = announced_size(environ)
    if world_size == 1 and announced is not None and announced[1] > 1:
        variable, expected = announced
        raise TopologyError(
            f"the launcher ({SIZE_VARIABLES[variable]}) says {expected} ranks ({variable}={expected}), but MPI sees 1: "
            f"every rank is a job of its own. {_advice(expected, library, environ)}"
        )


def _advice(expected: int, library: Library, environ: Mapping[str, str]) -> str:
    if any(variable.startswith("SLURM_") for variable in environ):
        kind = "pmix" if library.vendor == "Open MPI" else "pmi2"
        return (
            f"This hpcrl runs with {library}; start it with: srun --mpi={kind} -n {expected} hpcrl train ... "
            f"(`srun --mpi=list` shows what this site has), or with the mpiexec of that MPI inside the allocation"
        )
    return (
        f"This hpcrl runs with {library}; start it with the mpiexec of that same MPI "
        f"(the one in the environment's bin directory): mpiexec -n {expected} hpcrl train ..."
    )


def end_lingering_launcher(environ: Mapping[str, str], seconds: int = LAUNCHER_SECONDS) -> None:
    """To be called where this rank is about to abort the job: see that what started the rank ends, too.

    After an abort Open MPI's launcher waits until the daemons of all hosts have ended their ranks. From a host that is
    cut off it hears nothing, and so a job whose ranks have all left would last until TCP gives up. The launcher then
    exits with 1, whatever the code of the abort. A process of its own looks after it, as the launcher ends its ranks.
    """
    if environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environ.get("OMPI_COMM_WORLD_SIZE"):
        return  # another MPI's, or all on one host
    parent = os.getppid()
    with contextlib.suppress(OSError):
        if Path(f"/proc/{parent}/comm").read_text().strip() in LINGERING:
            command = ["sh", "-c", END_LAUNCHER, "sh", str(parent), str(seconds)]
            null = subprocess.DEVNULL  # and not the rank's, whose end the launcher waits for
            subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
