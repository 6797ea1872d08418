"""What the launcher said about this job, compared with what MPI says."""

from collections.abc import Mapping

from hpcrl.errors import TopologyError

SIZE_VARIABLES = {
    "OMPI_COMM_WORLD_SIZE": "mpiexec of Open MPI",
    "PMI_SIZE": "mpiexec of MPICH, or srun --mpi=pmi2",
    "SLURM_STEP_NUM_TASKS": "srun",
    "SLURM_NTASKS": "sbatch or salloc",
}
"""Environment variables with the number of ranks, in the order in which they are believed."""


def check_world_size(world_size: int, library: str, environ: Mapping[str, str]) -> None:
    """Refuse to run as several accidental jobs of one rank each.

    Parameters
    ----------
    world_size : int
        Size of MPI's world.
    library : str
        ``MPI.Get_library_version()``.
    environ : mapping

    Raises
    ------
    TopologyError
        A launcher started more ranks than MPI sees. The message names the command that would have worked.
    """
    for variable, launcher in SIZE_VARIABLES.items():
        expected = environ.get(variable, "")
        if not expected.isdigit():
            continue
        if world_size == 1 and int(expected) > 1:
            raise TopologyError(
                f"the launcher ({launcher}) says {expected} ranks ({variable}={expected}), but MPI sees 1: every rank "
                f"is a job of its own. {_advice(expected, library, environ)}"
            )
        return


def _advice(expected: str, library: str, environ: Mapping[str, str]) -> str:
    open_mpi = "open mpi" in library.lower()
    name = "Open MPI" if open_mpi else library.split(",")[0].split("\n")[0].strip()
    if any(variable.startswith("SLURM_") for variable in environ):
        kind = "pmix" if open_mpi else "pmi2"
        return (
            f"This hpcrl runs with {name}; start it with: srun --mpi={kind} -n {expected} hpcrl train ... "
            f"(`srun --mpi=list` shows what this site has), or with the mpiexec of that MPI inside the allocation"
        )
    return (
        f"This hpcrl runs with {name}; start it with the mpiexec of that same MPI "
        f"(the one in the environment's bin directory): mpiexec -n {expected} hpcrl train ..."
    )
