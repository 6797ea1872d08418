"""Jobs that benchmarks start: their launcher and environment, and how they end."""

import sys
import time
from pathlib import Path

import pytest

from hpcrl.bench import _jobs
from hpcrl.errors import ConfigError, HpcrlError


def fake_launcher(path, body):
    path.write_text(f"#!{sys.executable}\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_failed_job_shows_its_last_lines(tmp_path):
    command = [fake_launcher(tmp_path / "mpiexec", "import sys; print('what went wrong'); sys.exit(3)")]
    with pytest.raises(HpcrlError, match=r"(?s)ended with code 3.*what went wrong"):
        _jobs.run(command, tmp_path / "out", 60.0)
    _jobs.run(command, tmp_path / "out", 60.0, codes=(0, 3))


def test_a_job_that_does_not_end_is_killed_with_all_it_started(tmp_path):
    launcher = fake_launcher(
        tmp_path / "mpiexec",
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print(subprocess.Popen(['sleep', '600']).pid, flush=True)\n"
        "time.sleep(600)",
    )
    with pytest.raises(HpcrlError, match="did not end in time") as raised:
        _jobs.run([launcher], tmp_path / "out", 3.0)
    child = Path("/proc", str(raised.value).splitlines()[-1], "stat")
    deadline = time.monotonic() + 10
    while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "it still runs"
        time.sleep(0.05)


def test_the_launcher_beside_python_comes_first(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="expected an mpiexec"):
        _jobs.find_mpiexec()
    on_path = fake_launcher(tmp_path / "mpiexec", "")
    assert _jobs.find_mpiexec() == [on_path]
    beside = fake_launcher(tmp_path / "bin" / "mpiexec", "")
    assert _jobs.find_mpiexec() == [beside]
    monkeypatch.setenv("HPCRL_MPIEXEC", "mpiexec -hosts 'a, b'")
    assert _jobs.find_mpiexec() == ["mpiexec", "-hosts", "a, b"]


def test_a_job_of_its_own_is_started_even_inside_another(monkeypatch):
    for name in ("PMI_RANK", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "7")
    names = set(_jobs.environment())
    assert not names & {"PMI_RANK", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "OMP_NUM_THREADS"}
    assert "PATH" in names
