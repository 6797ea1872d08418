"""N accidental jobs of one rank are refused with the command that would have worked."""

import signal
import subprocess
import sys

import pytest

from hpcrl.errors import EXIT_CONFIG, MachineError, TopologyError
from hpcrl.launch.launcher import SIZE_VARIABLES, check_launcher, check_world_size, is_launched, launcher_rank
from hpcrl.launch.stacks import Library

MPICH, OPEN_MPI = Library("MPICH", (5, 0, 2)), Library("Open MPI", (5, 0, 11))
SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def refusal(library, environ, world_size=1):
    with pytest.raises(TopologyError) as caught:
        check_world_size(world_size, library, environ)
    assert caught.value.exit_code == EXIT_CONFIG
    return str(caught.value)


def test_every_variable_is_covered_here():
    assert set(SIZE_VARIABLES) == {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", *SLURM}


def test_a_batch_script_is_started_by_no_launcher():
    assert not is_launched({"SLURM_NTASKS": "8", "SLURM_PROCID": "0"})
    for variable in set(SIZE_VARIABLES) - {"SLURM_NTASKS"}:
        assert is_launched({variable: "1", "SLURM_NTASKS": "8"})


@pytest.mark.parametrize("library", [MPICH, OPEN_MPI], ids=["mpich", "open mpi"])
@pytest.mark.parametrize("variable", SIZE_VARIABLES)
def test_every_variable_betrays_singletons(variable, library):
    message = refusal(library, {variable: "4"})
    assert f"{variable}=4" in message
    assert "but MPI sees 1: every rank is a job of its own" in message
    assert f"This hpcrl runs with {library}" in message
    if variable in SLURM:
        assert f"srun --mpi={'pmix' if library == OPEN_MPI else 'pmi2'} -n 4 hpcrl train" in message
        assert "srun --mpi=list" in message
    else:
        assert "srun" not in message.replace(SIZE_VARIABLES[variable], "")
        assert "mpiexec of that same MPI" in message
        assert "mpiexec -n 4 hpcrl train" in message


def test_mpiexec_of_another_mpi_is_named():
    message = refusal(MPICH, {"OMPI_COMM_WORLD_SIZE": "8"})
    assert "(mpiexec of Open MPI) says 8 ranks" in message
    assert "runs with MPICH" in message


def test_inside_an_allocation_srun_is_named_whoever_launched():
    assert "srun --mpi=pmi2 -n 3 " in refusal(MPICH, {"PMI_SIZE": "3", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "6"})


@pytest.mark.parametrize("variable", SIZE_VARIABLES)
@pytest.mark.parametrize(("world_size", "said"), [(4, "4"), (1, "1"), (1, ""), (1, "4(x2)"), (2, "4")])
def test_other_sizes_pass(variable, world_size, said):
    check_world_size(world_size, MPICH, {variable: said})


def test_no_launcher_passes():
    check_world_size(1, MPICH, {"PATH": "/bin"})


def test_the_step_is_believed_before_the_allocation():
    """``srun -n 1`` inside an allocation of eight tasks is one rank on purpose."""
    check_world_size(1, MPICH, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"})
    check_world_size(1, MPICH, {"PMI_SIZE": "1", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"})


@pytest.mark.parametrize(
    ("library", "variable", "launcher"),
    [(MPICH, "OMPI_COMM_WORLD_SIZE", "mpiexec of Open MPI"), (OPEN_MPI, "PMI_SIZE", "mpiexec of MPICH")],
)
def test_a_launcher_of_another_mpi_is_refused_before_mpi_starts(library, variable, launcher):
    with pytest.raises(MachineError) as caught:
        check_launcher(library, {variable: "2"})
    assert f"{launcher}" in str(caught.value)
    assert f"started 2 ranks ({variable}=2), but it is not this MPI's" in str(caught.value)
    assert "mpiexec -n 2 hpcrl train" in str(caught.value)
    assert caught.value.exit_code == EXIT_CONFIG


def test_launchers_that_fit_pass():
    check_launcher(OPEN_MPI, {"OMPI_COMM_WORLD_SIZE": "2"})
    check_launcher(MPICH, {"PMI_SIZE": "2"})
    check_launcher(Library("Open MPI", (4, 1, 6)), {"PMI_SIZE": "2"})  # it still spoke PMI-2
    check_launcher(Library("Cray MPICH", (8, 1)), {"SLURM_NTASKS": "4"})
    check_launcher(MPICH, {"OMPI_COMM_WORLD_SIZE": "1"})
    check_launcher(MPICH, {})


def test_the_rank_is_known_before_mpi():
    assert launcher_rank({"SLURM_PROCID": "3"}) == "3"
    assert launcher_rank({"PMI_RANK": "1", "SLURM_PROCID": "0"}) == "1"
    assert launcher_rank({}) is None


@pytest.mark.parametrize(
    ("name", "ranks_here", "ends"), [("prterun", 2, True), ("prterun", 4, False), ("bash", 2, False)]
)
def test_a_launcher_that_outlives_the_job_is_ended(name, ranks_here, ends):
    rank = (
        "from hpcrl.launch.launcher import end_lingering_launcher\n"
        f"end_lingering_launcher({{'OMPI_COMM_WORLD_SIZE': '4', 'OMPI_COMM_WORLD_LOCAL_SIZE': '{ranks_here}'}}, 1)\n"
    )
    launcher = (
        "import subprocess, sys, time\n"
        f"open('/proc/self/comm', 'w').write({name!r})\n"
        f"subprocess.run([sys.executable, '-c', {rank!r}], check=True)\n"
        f"time.sleep({60 if ends else 2})\n"
    )
    assert subprocess.run([sys.executable, "-c", launcher], timeout=50).returncode == (-signal.SIGTERM if ends else 0)
