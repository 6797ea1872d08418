"""What the doctor concludes from what it found."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from hpcrl.launch.diagnosis import Finding, Report, WindowTest, judge, verdict
from hpcrl.launch.doctor_report import MOST_RANKS, show
from hpcrl.launch.memory_limits import Limit
from hpcrl.launch.stacks import Library
from hpcrl.launch.threads import Place

GIGA = 10**9
TEST = WindowTest("allocate", "inside a node", 2e-6, 30e9, 20e9, needs_target=False)


def place(node=0, cores=(0, 1, 2, 3)):
    return Place(node, f"n{node}", frozenset(cores), len(cores), 4, 0)


GOOD = Report(
    library=Library("MPICH", (5, 0, 2)),
    mpi_version=(5, 0),
    launcher="mpiexec of MPICH",
    announced_size=3,
    size=3,
    multiple_threads=True,
    places=[place()] * 3,
    models={"allocate": True, "create": True},
    windows=[TEST],
    skew_seconds=0.0,
    shared={0: Limit(GIGA, "/dev/shm")},
    memory={0: Limit(9 * GIGA, "MemAvailable")},
)


def text_of(report):
    stream = io.StringIO()
    show(report, judge(report), Console(file=stream, width=150))
    return stream.getvalue()


def test_a_good_stack_is_fit_without_a_word():
    assert judge(GOOD) == []
    assert verdict([]) == "fit for hpcrl: yes, because launcher, MPI and windows do what training needs"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"library": Library("Open MPI", (4, 1, 5))}, "Open MPI 4.1.5 has a known fault"),
        ({"size": 1, "places": [place()]}, "the launcher says 3 ranks, and MPI sees 1"),
        ({"wrong": ["MPI_Get on windows by create returned wrong data"]}, "returned wrong data"),
        ({"models": {"allocate": False, "create": False}}, "allocate, create have no unified memory model"),
    ],
)
def test_what_makes_a_stack_unfit(changes, words):
    findings = judge(replace(GOOD, **changes))
    assert findings[0].fatal
    assert words in findings[0].text
    assert verdict(findings).startswith("fit for hpcrl: no, because ")
    assert words in verdict(findings)
    assert text_of(replace(GOOD, **changes)).splitlines()[-1] == verdict(findings)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"library": Library("MPICH", (5, 0, 1))}, "use MPICH 5.0.2"),
        ({"multiple_threads": False}, "several threads"),
        ({"models": {"allocate": False, "create": True}}, 'set server.window_flavour = "create"'),
        ({"windows": [TEST._replace(needs_target=True)]}, "waits until its target calls MPI"),
        ({"unresolved": ["n7"]}, "host n7 cannot resolve its own name"),
        ({"skew_seconds": -7.0, "places": [place(), place(1)], "size": 2, "announced_size": 2}, "differ by -7.0 s"),
        ({"shared": {0: Limit(64 * 2**20, "/dev/shm")}}, "/dev/shm of node 0 has only 64 MiB free"),
        ({"places": [place(cores=[1])] * 2 + [place()]}, "ranks 0, 1 of node 0 are all pinned to core 1"),
    ],
)
def test_what_is_worth_knowing_leaves_it_fit(changes, words):
    (finding,) = judge(replace(GOOD, **changes))
    assert not finding.fatal
    assert words in finding.text
    assert verdict([finding]).endswith("(1 caution above)")
    assert f"caution {finding.text}" in text_of(replace(GOOD, **changes))


def test_faults_come_before_cautions():
    report = replace(GOOD, multiple_threads=False, wrong=["bad", "worse"])
    assert [finding.fatal for finding in judge(report)] == [True, True, False]
    assert verdict(judge(report)) == "fit for hpcrl: no, because bad; and worse"


def test_windows_by_create_are_no_concern_where_those_by_allocate_need_no_help():
    assert judge(replace(GOOD, windows=[TEST, TEST._replace(flavour="create", needs_target=True)])) == []


def test_nothing_known_yet_can_be_shown():
    assert judge(Report()) == []
    text = text_of(Report())
    assert "launcher" in text
    assert text.splitlines()[-1].startswith("fit for hpcrl: yes")


def test_the_report_shows_what_was_found():
    text = text_of(replace(GOOD, transports={"UCX": (1, 20, 1)}, settings_made={"A": "b"}, gpus=["H200"], nccl="2.27"))
    for words in (
        "MPICH 5.0.2, MPI 5.0",
        "UCX 1.20.1",
        "MPI sees 3, and the launcher says 3",
        "MPI_THREAD_MULTIPLE",
        "unified memory model",
        "one node, one clock",
        "H200; NCCL 2.27",
        "A=b",
        "cores 0-3 of 4",
        "1 GB",
        "9 GB (MemAvailable)",
        "2 us",
        "30 GB/s",
    ):
        assert words in text


def test_of_many_ranks_each_node_is_one_row():
    places = [place(rank // 64) for rank in range(128)]
    assert len(places) > MOST_RANKS
    text = text_of(replace(GOOD, places=places, size=128, announced_size=128))
    assert "0-63" in text
    assert "64-127" in text
    assert len(text.splitlines()) < 30


def test_marks():
    stream = io.StringIO()
    show(Report(), [Finding(True, "[red]broken[/]"), Finding(False, "odd")], Console(file=stream, width=80))
    assert "fault   [red]broken[/]" in stream.getvalue()
    assert "caution odd" in stream.getvalue()
