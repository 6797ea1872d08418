"""Learners over several hosts: sums inside a host and between hosts equal flat ones, jobs train, nodes share."""

import json
import statistics
from pathlib import Path

import pytest

from hpcrl.bench._jobs import MARK
from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED
from hpcrl.roles.updates import APPLIED
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

HERE = Path(__file__).parent
AVERAGING = HERE.parent / "mpi" / "ranks" / "averaging.py"
CONFIG = HERE.parent / "mpi" / "small.toml"
TRAIN, APART = ["-m", "hpcrl", "train"], HERE / "ranks" / "apart.py"


@pytest.mark.long
def test_hierarchical_sums_equal_flat_ones(hosts):
    """Both against one learner with all minibatches, for SGD, RMSProp and Adam; ``gloo`` is the hierarchical one."""
    ways = ["mpi", "gloo", "mpi+overlap", "gloo+overlap"]
    done = hosts.run_ranks({"h1": 2, "h2": 2}, ["-m", "mpi4py", AVERAGING, *ways], timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == [word for way in ways for word in (way, "equal")]


@pytest.mark.long
def test_synchronous_learners_on_two_hosts_reach_their_updates_over_a_slow_cable(hosts, tmp_path):
    hosts.limit("h2", 100_000_000)
    options = ["topology.layout=sampler_learner", "learning.update=allreduce", "learner.reduce=gloo"]
    sets = [part for option in [*options, "run.total_updates=60"] for part in ("--set", option)]
    arguments = [*TRAIN, CONFIG, "--run-dir", tmp_path, *sets]
    done = hosts.run_ranks({"h1": 1, "h2": 2}, arguments, timeout=90)
    assert done.returncode == EXIT_FINISHED, done.stderr
    assert latest(tmp_path)[0].global_update == 60


@pytest.mark.long
@pytest.mark.parametrize("megabits", [100, 1000], ids="{}-Mbit".format)
def test_sums_that_begin_during_the_backward_pass_over_a_slow_link(megabits, hosts):
    """Nature DQN, a minibatch of 128 on each host; ``pytest -s`` shows the times, which docs/learners.md has."""
    hosts.limit("h2", megabits * 10**6)
    program = ["-m", "hpcrl.bench._learners_ranks", 128, 2, 5, "mpi", "mpi+overlap"]
    done = hosts.run_ranks({"h1": 1, "h2": 1}, program, timeout=150)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith(MARK))
    for way, seconds in zip(
        ("as one", "in parts", "not at all"),
        zip(*json.loads(line.removeprefix(MARK))["pairs"], strict=True),
        strict=True,
    ):
        print(f"{megabits} Mbit/s, summed {way}: {statistics.median(seconds):.3f} s", *(f"{s:.3f}" for s in seconds))


WIDE = ["network.hidden=[1024, 1024]", "run.time_limit_seconds=20", "checkpoint.replay=none"]


def rates(hosts, run_dir, program: list, *overrides: str) -> tuple[float, float]:
    """Updates and minibatches per second of a server on one host and four bundles on another."""
    sets = [part for option in [*WIDE, *overrides] for part in ("--set", option)]
    done = hosts.run_ranks({"h1": 1, "h2": 4}, [*program, CONFIG, "--run-dir", run_dir, *sets], timeout=150)
    assert done.returncode == EXIT_STOPPED, done.stderr
    progress, gradients = read_runlog(run_dir, "progress"), read_runlog(run_dir, "gradients")
    applied = gradients["count"][gradients["fate"] == APPLIED].sum()
    seconds = progress["wall_seconds"][-1]
    return float(progress["global_update"][-1] / seconds), float(applied / seconds)


@pytest.mark.long
@pytest.mark.parametrize("megabits", [100, 1000])
def test_what_a_node_shares_lets_it_learn_more_over_a_slow_link(megabits, hosts, tmp_path):
    """1.1 million parameters; ``pytest -s`` shows the rates, which docs/learners.md has."""
    hosts.limit("h2", megabits * 10**6)
    found = {
        "apart": rates(hosts, tmp_path / "apart", [APART]),
        "shared": rates(hosts, tmp_path / "shared", TRAIN),
        "combined": rates(hosts, tmp_path / "combined", TRAIN, "learning.node_combine=true"),
    }
    for name, (updates, minibatches) in found.items():
        print(f"{megabits} Mbit/s, {name}: {updates:.2f} updates/s, {minibatches:.2f} minibatches/s")
    if megabits == 100:  # where the link is what limits
        assert found["combined"][1] > 1.3 * found["apart"][1]
