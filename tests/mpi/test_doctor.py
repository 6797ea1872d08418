"""``hpcrl doctor`` on real ranks: one report, a verdict, an exit code, and never a hang."""

import os
import signal
import time
from pathlib import Path

import pytest
from launching import is_open_mpi, run_ranks

from hpcrl.errors import EXIT_CONFIG, EXIT_STALLED
from hpcrl.launch.mpi import has_infiniband

RANKS = Path(__file__).with_name("ranks")


def doctor(ranks: int, **extra: str):
    return run_ranks(ranks, ["-m", "hpcrl", "doctor"], timeout=90, **extra)


def last_line(done) -> str:
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("ranks", [0, 3])
def test_this_stack_is_fit(ranks):
    done = doctor(ranks, TERM="dumb", NO_COLOR="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fit for hpcrl: yes, because" in last_line(done)
    assert done.stdout.count("hpcrl doctor") == 1
    assert ("Open MPI 5" if is_open_mpi() else "MPICH 5") in done.stdout
    assert f"MPI sees {ranks or 1}" in done.stdout
    assert ("target must call MPI" in done.stdout) == (ranks > 1)
    if is_open_mpi() and not has_infiniband() and "OMPI_MCA_osc" not in os.environ:
        assert "OMPI_MCA_osc=^ucx" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.long  # what a network needs of the target is that machine's own
@pytest.mark.skipif(is_open_mpi(), reason="Open MPI has no setting that keeps ranks of one host from sharing memory")
@pytest.mark.parametrize(
    ("path", "needs_target"), [({"UCX_TLS": "tcp,self"}, True), ({"MPIR_CVAR_CH4_NETMOD": "ofi"}, False)]
)
def test_over_a_network_progress_is_judged_as_well(path, needs_target):
    done = doctor(2, MPIR_CVAR_NOLOCAL="1", **path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("between nodes") >= 2
    assert ("waits until its target calls MPI" in done.stdout) == needs_target
    assert "differ by" in done.stdout


@pytest.mark.one_mpi
@pytest.mark.parametrize("variable", ["SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE" if not is_open_mpi() else "PMI_SIZE"])
def test_accidental_singletons_are_unfit(variable):
    done = doctor(0, **{variable: "4"})
    assert done.returncode == EXIT_CONFIG
    assert "fit for hpcrl: no, because" in last_line(done)
    assert "4" in last_line(done)


@pytest.mark.one_mpi
def test_no_mpi_is_unfit():
    done = doctor(0, MPI4PY_LIBMPI="/nowhere/libmpi.so")
    assert done.returncode == EXIT_CONFIG
    assert "fit for hpcrl: no, because expected an MPI library, got none" in done.stdout


def test_a_step_that_stalls_is_named():
    begin = time.monotonic()
    done = run_ranks(2, [RANKS / "doctor_stalling.py", 1, 3], timeout=60)
    assert done.returncode in (EXIT_STALLED, signal.SIGKILL), done.stdout + done.stderr
    assert "fit for hpcrl: no, because the step 'one-sided speed inside a node, windows by allocate'" in done.stdout
    assert time.monotonic() - begin < 40


@pytest.mark.one_mpi
def test_a_step_that_fails_is_named():
    done = run_ranks(2, [RANKS / "doctor_stalling.py", 0, 30, "fail"], timeout=60)
    assert done.returncode in (EXIT_CONFIG, signal.SIGKILL), done.stdout + done.stderr
    why = "the step 'one-sided speed inside a node, windows by allocate' failed: "
    assert f"fit for hpcrl: no, because {why}" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.one_mpi
@pytest.mark.skipif(os.cpu_count() == 1, reason="this machine has one core")
def test_ranks_pinned_to_one_core_are_reported(tmp_path):
    core = min(os.sched_getaffinity(0))
    program = tmp_path / "pinned.py"
    program.write_text(
        f"import os, runpy, sys\nos.sched_setaffinity(0, {{{core}}})\nsys.argv = ['hpcrl', 'doctor']\n"
        "runpy.run_module('hpcrl', run_name='__main__')\n"
    )
    done = run_ranks(2, [program], timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"ranks 0, 1 of node 0 are all pinned to core {core}" in done.stdout
