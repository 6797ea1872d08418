"""Synchronous learners over several hosts: sums inside a host and between hosts equal flat ones, and jobs train."""

from pathlib import Path

import pytest

from hpcrl.errors import EXIT_FINISHED
from hpcrl.storage.checkpoint import latest

HERE = Path(__file__).parent
AVERAGING = HERE.parent / "mpi" / "ranks" / "averaging.py"
CONFIG = HERE.parent / "mpi" / "small.toml"


@pytest.mark.long
def test_hierarchical_sums_equal_flat_ones(hosts):
    """Both against one learner with all minibatches, for SGD, RMSProp and Adam; ``gloo`` is the hierarchical one."""
    done = hosts.run_ranks({"h1": 2, "h2": 2}, ["-m", "mpi4py", AVERAGING, "mpi", "gloo"], timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["mpi", "equal", "gloo", "equal"]


@pytest.mark.long
def test_synchronous_learners_on_two_hosts_reach_their_updates_over_a_slow_cable(hosts, tmp_path):
    hosts.limit("h2", 100_000_000)
    options = ["topology.layout=sampler_learner", "learning.update=allreduce", "learner.reduce=gloo"]
    sets = [part for option in [*options, "run.total_updates=60"] for part in ("--set", option)]
    arguments = ["-m", "hpcrl", "train", CONFIG, "--run-dir", tmp_path, *sets]
    done = hosts.run_ranks({"h1": 1, "h2": 2}, arguments, timeout=90)
    assert done.returncode == EXIT_FINISHED, done.stderr
    assert latest(tmp_path)[0].global_update == 60
