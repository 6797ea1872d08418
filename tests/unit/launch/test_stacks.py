"""Libraries are told apart by what they say of themselves, and known faults by version and place."""

import pytest

from hpcrl.launch.stacks import KNOWN_FAULTS, Library, Setting, identify, known_faults, recommended

YIELDING = "measured: see hpcrl.launch.stacks.recommended"
NONBLOCKING = "OMPI_MCA_osc_ucx_enable_nonblocking_accumulate"
SAID = {
    "MPICH Version:      5.0.2\nMPICH Release date: Fri Sep 25\nMPICH Device:       ch4:ucx ofi": ("MPICH", (5, 0, 2)),
    "Open MPI v5.0.11, package: Open MPI user@localhost Distribution, ident: 5.0.11": ("Open MPI", (5, 0, 11)),
    "Intel(R) MPI Library 2021.15 for Linux* OS\n": ("Intel MPI", (2021, 15)),
    "MPI VERSION    : CRAY MPICH version 8.1.28.15 (ANL base 3.4a2)\nMPI BUILD INFO": ("Cray MPICH", (8, 1, 28, 15)),
    "MVAPICH2 Version      :\t2.3.7\nMVAPICH2 Release date": ("MVAPICH", (2, 3, 7)),
    "Something Else 3\nmore": ("Something Else 3", ()),
}


@pytest.mark.parametrize("text", SAID)
def test_libraries_are_identified(text):
    assert identify(text) == SAID[text]


def reports(vendor, version, **setting):
    found = known_faults(Library(vendor, version), Setting(**setting))
    return {(report, fault.fatal) for fault in found for report in fault.report.split(", ")}


def test_the_stacks_that_hpcrl_is_tested_with_are_clean():
    for setting in ({}, {"nodes": 2}, {"most_ranks_on_a_node": 128}, {"libfabric": (2, 5)}):
        assert reports("MPICH", (5, 0, 2), **setting) == set()
        assert reports("Open MPI", (5, 0, 11), **setting) == set()


@pytest.mark.parametrize(
    ("vendor", "version", "setting", "report", "fatal"),
    [
        ("Open MPI", (4, 1, 6), {}, "ompi#5200", True),
        ("Open MPI", (5, 0, 3), {}, "mpi4py's test suite", False),
        ("Open MPI", (5, 0, 6), {"most_ranks_on_a_node": 65}, "ompi#12979", True),
        ("Open MPI", (5, 0, 11), {"nodes": 2, "most_ranks_on_a_node": 2}, "ompi#14203", False),
        (
            "Open MPI",
            (5, 0, 11),
            {"environ": {"OMPI_MCA_osc_ucx_enable_nonblocking_accumulate": "1"}},
            "ompi#13064",
            True,
        ),
        ("Open MPI", (5, 0, 11), {"environ": {"OMPI_MCA_osc": "ucx"}}, "ompi#10559", False),
        ("Open MPI", (5, 0, 11), {"environ": {"OMPI_MCA_mpi_yield_when_idle": "0"}}, YIELDING, False),
        ("Open MPI", (5, 0, 11), {"libfabric": (1, 11)}, "ompi#9123", False),
        ("MPICH", (4, 0, 2), {}, "mpich#6110", True),
        ("MPICH", (4, 2, 3), {}, "mpi4py's test suite", False),
        ("MPICH", (5, 0, 1), {}, "MPICH 5.0.2's changes", False),
        ("MPICH", (5, 0, 2), {"environ": {"FI_PROVIDER": "cxi"}}, "mpich#7830", False),
        ("Intel MPI", (2021, 15), {}, "mpi4py's test suite", True),
    ],
)
def test_bad_stacks_are_recognised(vendor, version, setting, report, fatal):
    assert (report, fatal) in reports(vendor, version, **setting)


def test_every_known_fault_is_tried_above():
    tried = {case[3] for case in test_bad_stacks_are_recognised.pytestmark[0].args[1]}
    assert all(tried & set(fault.report.split(", ")) for fault in KNOWN_FAULTS)


def test_where_a_fault_does_not_matter_it_is_not_told():
    assert reports("Open MPI", (5, 0, 6), most_ranks_on_a_node=64) == set()
    assert reports("Open MPI", (5, 0, 6), most_ranks_on_a_node=65, environ={"OMPI_MCA_btl": "self,tcp"}) == set()
    assert reports("Open MPI", (5, 0, 11), environ={"OMPI_MCA_osc": "^ucx"}) == set()
    assert reports("Something Else", ()) == set()


def test_recommended_settings():
    yielding = {"OMPI_MCA_mpi_yield_when_idle": "true"}
    assert recommended(Library("Open MPI", (5, 0, 11)), has_infiniband=False) == {"OMPI_MCA_osc": "^ucx", **yielding}
    assert recommended(Library("Open MPI", (5, 0, 11)), has_infiniband=True) == yielding
    assert recommended(Library("MPICH", (5, 0, 2)), has_infiniband=False) == {}
