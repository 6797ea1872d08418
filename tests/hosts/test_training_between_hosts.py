"""Whole jobs over several hosts: they train, and servers answer while learners compute and a slow disk is written."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from saved import parameters, stored

from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED
from hpcrl.storage.checkpoint import latest

HERE = Path(__file__).parent
CONFIG = HERE.parent / "mpi" / "small.toml"


def train(hosts, placement: dict[str, int], run_dir: Path, *overrides: str, program=("-m", "hpcrl", "train"), **extra):
    """Run ``hpcrl train``, or another program with the same arguments, to its end."""
    sets = [part for override in overrides for part in ("--set", override)]
    arguments = [*program, CONFIG, "--run-dir", run_dir, *sets]
    return hosts.run_ranks(placement, arguments, timeout=180, **extra)


@pytest.mark.parametrize(
    ("placement", "layout"),
    [
        ({"h1": 2, "h2": 2}, ["topology.servers=2"]),
        # What shares a replay memory shares a host.
        pytest.param(
            {"h1": 1, "h2": 2},
            ["topology.layout=split", "topology.learners=1", "topology.actors=1"],
            marks=pytest.mark.long,
        ),
        # Rollouts cross the cable to the host of the server and the learners.
        pytest.param(
            {"h1": 3, "h2": 2},
            [
                "topology.layout=split",
                "topology.learners=2",
                "topology.actors=2",
                "learning.algorithm=impala",
                "learning.update=server",
                "policy.horizon_steps=9",
            ],
            marks=pytest.mark.long,
        ),
    ],
    ids=["bundled", "split", "rollouts"],
)
def test_a_job_on_two_hosts_reaches_its_updates_over_a_slow_cable(placement, layout, hosts, tmp_path):
    hosts.limit("h2", 100_000_000)
    done = train(hosts, placement, tmp_path, *layout, "run.total_updates=60")
    assert done.returncode == EXIT_FINISHED, done.stderr
    assert "warn" not in done.stderr.lower(), done.stderr
    checkpoint, skipped = latest(tmp_path)
    assert checkpoint.global_update == 60
    assert not skipped


@pytest.mark.long
def test_a_run_goes_on_over_another_number_of_hosts(hosts, tmp_path):
    """No update is made by the second and third job: they save what they restored."""
    before = None
    for placement, servers, bundles, updates, change in (
        ({"h1": 3}, 1, 2, 100, ""),
        ({"h1": 2, "h2": 3}, 2, 3, 100, "ranks 3 -> 5, nodes 1 -> 2, servers 1 -> 2, learners 2 -> 3, actors 2 -> 3"),
        ({"h1": 3}, 1, 2, 100, "ranks 5 -> 3, nodes 2 -> 1, servers 2 -> 1, learners 3 -> 2, actors 3 -> 2"),
        ({"h1": 2, "h2": 2}, 2, 2, 150, "ranks 3 -> 4, nodes 1 -> 2, servers 1 -> 2"),
    ):
        shape = [f"topology.servers={servers}", f"replay.capacity_steps={6000 // bundles}"]
        done = train(
            hosts, placement, tmp_path, 'replay.sampling="prioritized"', *shape, f"run.total_updates={updates}"
        )
        assert done.returncode == EXIT_FINISHED, done.stderr
        assert change in done.stderr
        checkpoint, skipped = latest(tmp_path)
        assert (checkpoint.global_update, skipped) == (updates, [])
        now = parameters(checkpoint), stored(checkpoint)
        assert sum(now[1].values()) > 300
        if before:
            assert (now == before) == (updates == 100)
        before = now


@pytest.fixture(scope="session")
def slow_disk(tmp_path_factory):
    """A library that makes the disk slow where it is preloaded."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a slow disk is made by a small C library, and there is no cc here")
    library = tmp_path_factory.mktemp("slow") / "slow_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, HERE / "slow_disk.c", "-ldl"], check=True)
    return library


@pytest.mark.long  # it measures, and needs the machine for itself
def test_servers_answer_while_learners_compute_and_a_slow_disk_is_written(slow_disk, hosts, tmp_path):
    for attempt in range(3):  # others may use this machine too
        done = train(
            hosts,
            {"h1": 1, "h2": 2},
            tmp_path / str(attempt),
            "topology.layout=split",
            "topology.learners=1",
            "topology.actors=1",
            "network.hidden=[1250, 1250]",  # 6.6 MB of parameters
            "learning.training_intensity=0.5",
            "checkpoint.period_seconds=1.0",
            "run.time_limit_seconds=7.0",
            program=[HERE / "ranks" / "answering.py"],
            LD_PRELOAD=str(slow_disk),
            SLOW_DISK="/checkpoints",
        )
        assert done.returncode == EXIT_STOPPED, done.stderr
        assert done.stderr.count("checkpoint of update") >= 2, done.stderr
        said = re.search(r"pulls (\d+) p50 ([\d.]+) p99 ([\d.]+) max ([\d.]+) ms", done.stdout)
        print(said.group())
        assert int(said.group(1)) > 30
        if float(said.group(3)) < 100:
            return
    pytest.fail(f"the 99th percentile of a pull is above 100 ms: {said.group()}")
