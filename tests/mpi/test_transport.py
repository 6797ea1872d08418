"""The transport between real ranks: rings, published vectors, counters, transfers and node memory."""

import re
from pathlib import Path

import pytest
from launching import is_open_mpi, rank_program, run_ranks

RANKS = Path(__file__).with_name("ranks")
FLAVOURS = pytest.mark.parametrize("flavour", ["allocate", "create"])


def output(ranks: int, program: str, *arguments, **extra: str) -> str:
    command, settings = rank_program(RANKS / program, *arguments)
    done = run_ranks(ranks, command, timeout=180, **settings, **extra)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@FLAVOURS
@pytest.mark.parametrize(
    ("ranks", "mode"), [(2, "wait"), (3, "wait"), (5, "wait"), (2, "drop"), (3, "drop"), (5, "drop"), (4, "place")]
)
def test_rings_keep_order_and_lose_only_what_they_count(ranks, mode, flavour):
    said = output(ranks, "pushing.py", flavour, mode, 200)
    received, dropped, in_place = map(int, re.search(r"received (\d+) dropped (\d+) in place (\d+)", said).groups())
    consumers = 1 if ranks == 2 else 2
    assert received + dropped == 200 * (ranks - 1) * consumers
    if mode != "drop":
        assert dropped == 0
    if mode == "place":
        # One rank pushes to itself; the memory of others is given away by MPICH (MPI 4.1), where it has allocated it.
        assert in_place == (6 if flavour == "allocate" and not is_open_mpi() else 1)


@FLAVOURS
@pytest.mark.parametrize(("ranks", "servers"), [(4, 1), (5, 2)])
def test_pulls_are_whole_and_take_one_round(ranks, servers, flavour):
    said = output(ranks, "publishing.py", flavour, servers, 30.0, 2.0)
    # In one round each, as the search in tests/unit/transport proves for readers faster than the patience.
    assert re.search(r"most-rounds (\d+)", said).group(1) == "1", said


@FLAVOURS
def test_pulls_are_whole_even_where_the_server_has_no_patience(flavour):
    said = output(4, "publishing.py", flavour, 1, 0.0, 2.0)
    assert int(re.search(r"published (\d+)", said).group(1)) > 10


@FLAVOURS
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_stopped_reader_delays_the_server_by_its_patience_at_most(step, flavour):
    said = output(3, "stopping.py", flavour, step)
    assert int(re.search(r"published (\d+) past", said).group(1)) > 10, said


@FLAVOURS
@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_counters_are_exact(ranks, flavour):
    assert "exact" in output(ranks, "counting.py", flavour)


@FLAVOURS
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_transfers_are_cut_and_bounded(ranks, flavour):
    assert "transfers" in output(ranks, "chunking.py", flavour, ranks)


def test_lanes_in_node_memory_are_sampled_whole_while_others_write():
    found = re.search(r"written (\d+) drawn (\d+) overwritten (\d+)", output(3, "sharing.py", 3.0))
    written, drawn, overwritten = map(int, found.groups())
    assert written > 500
    assert drawn > 500
    assert overwritten > 0


def test_a_node_pulls_each_version_once_and_pushes_sums():
    said = output(4, "node_sharing.py")
    assert "crossed" in said
    assert "pushes" in said


STACKS = {
    "tcp": {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"},
    "ofi": {"MPIR_CVAR_CH4_NETMOD": "ofi"},
    "ofi without shared memory": {"MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NOLOCAL": "1"},
}


@pytest.mark.skipif(is_open_mpi(), reason="these settings are MPICH's; Open MPI crosses a network in tests/hosts")
@pytest.mark.parametrize("flavour", ["allocate", pytest.param("create", marks=pytest.mark.long)])
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize(
    ("program", "ranks", "arguments", "said"),
    [
        ("publishing.py", 4, (1, 30.0, 1.0), "most-rounds 1"),
        ("pushing.py", 3, ("wait", 200), "dropped 0"),
        pytest.param("counting.py", 3, (), "exact", marks=pytest.mark.long),
        pytest.param("chunking.py", 3, (1,), "transfers", marks=pytest.mark.long),
        pytest.param("stopping.py", 3, (2,), "past the stopped reader", marks=pytest.mark.long),
    ],
    ids=lambda value: value if isinstance(value, str) and value.endswith(".py") else "",
)
def test_other_ways_of_mpich_between_ranks(program, ranks, arguments, said, stack, flavour):
    assert said in output(ranks, program, flavour, *arguments, **STACKS[stack])


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_a_hosted_memory_is_sampled_whole_and_evenly_while_others_write(sampling):
    """Over two hosts; evenly: by a score that is standard normal, or less, where draws are as they should be."""
    said = output(5, "hosting.py", 2, sampling, 3.0)
    draws, scores = re.search(r"draws (\d+) overwritten \d+ scores (.*)", said).groups()
    assert int(draws) > 1000, said
    assert all(float(score) < 5.5 for score in scores.split()), said  # 2e-8 each
