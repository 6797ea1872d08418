"""The transport between ranks on different hosts, over real TCP; the rank programs are those of tests/mpi."""

import itertools
import re
from pathlib import Path

import pytest
from launching import rank_program

RANKS = Path(__file__).parents[1] / "mpi" / "ranks"
FLAVOURS = ["allocate", "create"]
PLACEMENTS = {
    "2": {"h1": 1, "h2": 1},
    "3": {"h1": 1, "h2": 1, "h3": 1},
    "5": {"h1": 2, "h2": 2, "h3": 1},
    "8": {"h1": 3, "h2": 3, "h3": 2},
}
"""number of ranks -> how many of them on each host"""


def output(hosts, placement: dict[str, int], program: str, *arguments) -> str:
    command, settings = rank_program(RANKS / program, *arguments)
    done = hosts.run_ranks(placement, command, timeout=180, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_hosts_are_apart(hosts):
    program = (
        "import socket\n"
        "from mpi4py import MPI\n"
        "node = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)\n"
        "print(MPI.COMM_WORLD.gather((node.size, socket.gethostname())) or '')"
    )
    done = hosts.run_ranks(PLACEMENTS["5"], ["-c", program])
    assert done.returncode == 0, done.stderr
    found = re.findall(r"\((\d), '(h\d)'", done.stdout)
    assert found == [("2", "h1"), ("2", "h1"), ("2", "h2"), ("2", "h2"), ("1", "h3")]


def cases(*short: tuple, **parameters: list):
    """All combinations of the parameters; those that are not in ``short`` are long."""
    every = itertools.product(*parameters.values())
    combined = [pytest.param(*case, marks=[] if case in short else [pytest.mark.long]) for case in every]
    return pytest.mark.parametrize(list(parameters), combined, ids=str)


@cases(("2", "create"), ("8", "allocate"), ranks=["2", "5", "8"], flavour=FLAVOURS)
def test_counters_are_exact(ranks, flavour, hosts):
    assert "exact" in output(hosts, PLACEMENTS[ranks], "counting.py", flavour)


@cases(
    ("3", "wait", "allocate"), ("3", "drop", "create"), ranks=["2", "3", "5"], mode=["wait", "drop"], flavour=FLAVOURS
)
def test_rings_keep_order_and_lose_only_what_they_count(ranks, mode, flavour, hosts):
    said = output(hosts, PLACEMENTS[ranks], "pushing.py", flavour, mode, 200)
    received, dropped = map(int, re.search(r"received (\d+) dropped (\d+)", said).groups())
    consumers = 1 if ranks == "2" else 2
    assert received + dropped == 200 * (int(ranks) - 1) * consumers


@cases(("2", "allocate"), ranks=["2", "3"], flavour=FLAVOURS)
def test_transfers_are_cut_and_bounded(ranks, flavour, hosts):
    assert "transfers" in output(hosts, PLACEMENTS[ranks], "chunking.py", flavour, 1)


@cases((3, "allocate"), step=[1, 2, 3], flavour=FLAVOURS)
def test_a_stopped_reader_delays_the_server_by_its_patience_at_most(step, flavour, hosts):
    said = output(hosts, {"h1": 1, "h2": 2}, "stopping.py", flavour, step)
    assert int(re.search(r"published (\d+) past", said).group(1)) > 10, said


@cases((1, "allocate"), servers=[1, 2], flavour=FLAVOURS)
def test_eight_readers_never_see_two_versions_in_a_shard_nor_need_more_than_two_rounds(servers, flavour, hosts):
    placement = {"h1": servers, "h2": 4, "h3": 4}
    said = output(hosts, placement, "publishing.py", flavour, servers, 30.0, 2.0)
    assert int(re.search(r"most-rounds (\d+)", said).group(1)) <= 2, said
    pulls = list(map(int, re.search(r"pulls ([\d ]+)", said).group(1).split()))
    assert len(pulls) == 8
    assert min(pulls) > 3, said


@cases(("allocate",), flavour=FLAVOURS)
def test_pulls_are_whole_over_a_slow_cable(flavour, hosts):
    hosts.limit("h1", 100_000_000)
    said = output(hosts, PLACEMENTS["5"], "publishing.py", flavour, 1, 30.0, 2.0)
    assert int(re.search(r"most-rounds (\d+)", said).group(1)) <= 2, said
