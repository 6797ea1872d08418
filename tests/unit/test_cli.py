"""The command line, in processes of its own: what it prints, its exit codes, and what it does not import."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CATCH = str(ROOT / "configs" / "catch_serial.toml")
PONG = str(ROOT / "configs" / "pong_gorila.toml")


def hpcrl(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "hpcrl", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def imports(*arguments):
    """Top-level modules that a command imports."""
    code = (
        "import sys; from hpcrl.cli import main; sys.argv = ['hpcrl', *sys.argv[1:]]\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print('MODULES', *{name.partition('.')[0] for name in sys.modules})"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return set(run.stdout.rpartition("MODULES")[2].split())


def test_help_is_quick_and_needs_neither_torch_nor_mpi():
    begin = time.monotonic()
    run = hpcrl("--help")
    assert run.returncode == 0
    for command in ("train", "plan", "stop", "evaluate", "bench"):
        assert command in run.stdout
    assert time.monotonic() - begin < 5  # 0.1 s on an idle machine
    assert not imports("--help") & {"torch", "mpi4py", "numpy", "pydantic", "h5py"}


@pytest.mark.parametrize(
    ("said", "spins"),
    [({}, "5000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_torchs_threads_sleep_soon_unless_the_user_said_otherwise(said, spins, monkeypatch):
    for variable in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(variable, raising=False)
    code = (
        "import os, sys; from hpcrl.cli import main; sys.argv = ['hpcrl', '--help']\n"
        "try: main()\nexcept SystemExit: print('SPINS', os.environ.get('GOMP_SPINCOUNT'))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **said}, capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.rpartition("SPINS")[2].strip() == str(spins)


def test_keys_need_neither_torch_nor_mpi():
    run = hpcrl("plan", "--keys")
    assert run.returncode == 0
    assert "learning.batch_size = 32  (int)\n    transitions per minibatch" in run.stdout
    assert not imports("plan", "--keys") & {"torch", "mpi4py", "numpy", "h5py"}


@pytest.mark.parametrize("command", ["watch", "inspect"])
def test_looking_at_a_run_needs_neither_torch_nor_mpi(command, tmp_path):
    (tmp_path / "config.toml").write_text((ROOT / "configs" / "catch_serial.toml").read_text())
    assert not imports(command, str(tmp_path)) & {"torch", "mpi4py", "gymnasium"}


def test_plan_prints_map_and_forecast_without_mpi():
    run = hpcrl("plan", CATCH)
    assert run.returncode == 0, run.stderr
    assert "actor 0, learner 0, parameter_server 0, monitor 0" in run.stdout
    assert "7,619 parameters (30.5 kB); replay memories: 1, 641 kB in all" in run.stdout
    assert "mpi4py" not in imports("plan", CATCH)


def test_plan_of_several_nodes():
    arguments = ("--ranks", "8", "--nodes", "2", "--set", "topology.servers=2", "--cores-per-node", "16")
    run = hpcrl("plan", CATCH, *arguments, "--set", "topology.layout=bundled", "--updates-per-second", "50")
    assert run.returncode == 0, run.stderr
    assert "bundled layout: 8 ranks on 2 nodes" in run.stdout
    assert "at 50 global updates/s: 200 steps/s acted" in run.stdout


def test_impossible_plan_shows_the_arithmetic_and_exits_with_2():
    run = hpcrl("plan", PONG, "--ranks", "4", "--set", "topology.bundles=2")
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.startswith("hpcrl: error: 1 server + 2 bundles + 0 evaluators = 3 ranks, but the job has 4")


def test_faults_of_a_configuration_exit_with_2_before_anything_is_written(tmp_path):
    run = hpcrl("train", CATCH, "--set", "learning.bacth_size=1", "--run-dir", str(tmp_path / "run"))
    assert run.returncode == 2
    assert "learning.bacth_size: unknown key; did you mean learning.batch_size?" in run.stderr
    assert not (tmp_path / "run").exists()
    other = hpcrl("train", CATCH, "--set", "learning.bacth_size=1", PMI_RANK="3")
    assert other.returncode == 2
    assert other.stderr.count("\n") == 1
    assert other.stderr.startswith("hpcrl: error: rank 3: ")


@pytest.mark.parametrize(
    "arguments", [("plan",), ("plan", CATCH, "--ranks", "1", "--nodes", "2"), ("bench", "nothing")]
)
def test_wrong_use_exits_with_2(arguments):
    run = hpcrl(*arguments)
    assert run.returncode == 2
    assert "hpcrl: error: expected" in run.stderr


def test_stop_writes_the_request_into_a_run_directory_only(tmp_path):
    run = hpcrl("stop", str(tmp_path))
    assert run.returncode == 1
    assert "expected a run directory" in run.stderr
    (tmp_path / "config.toml").touch()
    assert hpcrl("stop", str(tmp_path)).returncode == 0
    assert (tmp_path / "stop").exists()
