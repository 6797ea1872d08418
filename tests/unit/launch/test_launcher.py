"""N accidental jobs of one rank are refused with the command that would have worked."""

import pytest

from hpcrl.errors import EXIT_CONFIG, TopologyError
from hpcrl.launch.launcher import SIZE_VARIABLES, check_world_size

MPICH = "MPICH Version:      5.0.2\nMPICH Release date: Mon Jan  5 2026\nMPICH ABI: 20:0:8"
OPEN_MPI = "Open MPI v5.0.11, package: Open MPI root@builder Distribution, ident: 5.0.11, Jan 5, 2026"
SLURM = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")


def refusal(library, environ, world_size=1):
    with pytest.raises(TopologyError) as caught:
        check_world_size(world_size, library, environ)
    assert caught.value.exit_code == EXIT_CONFIG
    return str(caught.value)


def test_every_variable_is_covered_here():
    assert set(SIZE_VARIABLES) == {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", *SLURM}


@pytest.mark.parametrize("library", [MPICH, OPEN_MPI], ids=["mpich", "open mpi"])
@pytest.mark.parametrize("variable", SIZE_VARIABLES)
def test_every_variable_betrays_singletons(variable, library):
    message = refusal(library, {variable: "4"})
    assert f"{variable}=4" in message
    assert "but MPI sees 1: every rank is a job of its own" in message
    assert ("Open MPI" if library == OPEN_MPI else "MPICH Version") in message
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
