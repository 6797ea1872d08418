"""What goes wrong between hosts: ranks that die on another host, and networks that are cut."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from launching import is_open_mpi, updates_of

from hpcrl.errors import EXIT_STALLED

CONFIG = Path(__file__).parents[1] / "mpi" / "small.toml"


@contextlib.contextmanager
def training_job(hosts, placement: dict[str, int], run_dir: Path, *overrides: str) -> Iterator:
    """A job that is training: one server, on the first host, and bundles."""
    sets = [part for override in overrides for part in ("--set", override)]
    with hosts.job(placement, ["-m", "hpcrl", "train", CONFIG, "--run-dir", run_dir, *sets]) as job:
        wait_for_updates(job, run_dir, 1, seconds=120)
        yield job


def wait_for_updates(job, run_dir: Path, updates: int, *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while updates_of(run_dir) < updates:
        assert time.monotonic() < deadline, f"no {updates} updates in {seconds} s"
        assert job.poll() is None, job.communicate()
        time.sleep(0.2)


def wait_until_gone(hosts, *names: str) -> None:
    """Until no rank is left on some hosts; the launcher, which has ended, does not wait for what it has killed."""
    deadline = time.monotonic() + 10
    while any(hosts.ranks(name) for name in names):
        assert time.monotonic() < deadline, {name: hosts.ranks(name) for name in names}
        time.sleep(0.1)


@pytest.mark.one_mpi  # quick enough for the short suite under MPICH only
@pytest.mark.parametrize("host", ["h2", pytest.param("h1", marks=pytest.mark.long)])
def test_a_killed_rank_ends_the_job(host, hosts, tmp_path):
    with training_job(hosts, {"h1": 2, "h2": 1}, tmp_path / "run") as job:
        os.kill(hosts.ranks(host)[0], signal.SIGKILL)
        killed = time.monotonic()
        job.communicate(timeout=30)
        assert time.monotonic() - killed < 10
        assert job.returncode != 0
        wait_until_gone(hosts, "h1", "h2")


@pytest.mark.one_mpi
def test_a_cut_of_a_few_seconds_is_survived(hosts, tmp_path):
    with training_job(hosts, {"h1": 2, "h2": 1}, tmp_path / "run") as job:
        hosts.cut("h2")
        time.sleep(4)
        hosts.join("h2")
        wait_for_updates(job, tmp_path / "run", updates_of(tmp_path / "run") + 100, seconds=120)


@pytest.mark.parametrize("placement", [{"h1": 2, "h2": 2}, pytest.param({"h1": 1, "h2": 2}, marks=pytest.mark.long)])
def test_a_network_cut_for_good_ends_the_job_with_the_stalled_code(placement, hosts, tmp_path):
    limits = ["run.heartbeat_seconds=2.0", "run.stall_seconds=8.0"]
    with training_job(hosts, placement, tmp_path / "run", *limits) as job:
        hosts.cut("h2")
        _, err = job.communicate(timeout=120)
        assert "run.stall_seconds" in err
        # Open MPI's launcher waits for the hosts that are cut off until it is ended itself, and then says 1.
        assert job.returncode == (1 if is_open_mpi() else EXIT_STALLED), err
        wait_until_gone(hosts, "h1")
