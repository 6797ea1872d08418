"""How many threads a rank's arithmetic gets, and who is pinned to whose cores."""

import os
from pathlib import Path

import pytest
from mpi4py import MPI

from hpcrl.config import load
from hpcrl.errors import MachineError
from hpcrl.launch import train
from hpcrl.launch.nodes import places
from hpcrl.launch.threads import THREAD_VARIABLES, Place, cores_given, cores_of_simulators, crowded, limit_threads

CATCH = Path(__file__).parents[3] / "configs" / "catch_serial.toml"
CORES = len(os.sched_getaffinity(0))


def place(cores, machine_cores=8, node=0, given=None):
    return Place(node, f"n{node}", frozenset(cores), given or len(cores), machine_cores, 0)


@pytest.mark.parametrize(
    ("overrides", "threads"),
    [
        (["network.kind=mlp"], 1),
        (["network.kind=nature"], CORES),
        (["network.kind=mlp", "topology.learner_threads=3"], 3),
        (["network.kind=nature", "topology.learner_threads=3"], 3),
    ],
)
def test_a_small_network_gets_one_thread_and_a_large_one_its_cores(overrides, threads, monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    rank_map = train.make_plan(places(MPI.COMM_SELF), load(CATCH, ["topology.layout=serial", *overrides]))
    assert [rank.threads for rank in rank_map.ranks] == [threads]


@pytest.mark.parametrize(
    ("given", "threads"),
    [
        ([8, 8, 8], [1, 3, 3]),  # nothing is bound: two bundles share the 7 cores that the server leaves
        ([2, 2, 2], [1, 2, 2]),  # srun --cpus-per-task=2, unbound
        ([1, 4, 1], [1, 3, 1]),
    ],
)
def test_bundles_use_their_share_and_no_more_than_they_were_given(given, threads):
    config = load(CATCH, ["topology.layout=bundled", "network.kind=nature"])
    found = [place(range(8), given=cores) for cores in given]
    assert [rank.threads for rank in train.make_plan(found, config).ranks] == threads


def test_actors_and_servers_have_one_thread_however_many_cores():
    config = load(CATCH, ["topology.layout=split", "network.kind=nature"])
    ranks = train.make_plan([place(range(64), 64) for _ in range(4)], config).ranks
    assert [(rank.roles[0].kind, rank.threads) for rank in ranks] == [
        ("parameter_server", 1),
        ("learner", 61),
        ("actor", 1),
        ("actor", 1),
    ]


@pytest.mark.parametrize(
    ("affinity", "environ", "cores"),
    [
        (range(8), {}, 8),
        (range(8), {"SLURM_CPUS_PER_TASK": "3"}, 3),
        ([4, 5], {"SLURM_CPUS_PER_TASK": "3"}, 2),
        (range(8), {"SLURM_CPUS_PER_TASK": ""}, 8),
        (range(8), {"SLURM_CPUS_PER_TASK": "0"}, 8),
    ],
)
def test_affinity_and_slurm_say_what_was_given(affinity, environ, cores):
    assert cores_given(set(affinity), environ) == cores


def test_thread_pools_are_told_before_they_are_made():
    environ = {}
    assert limit_threads(3, environ) == 3
    assert environ == dict.fromkeys(THREAD_VARIABLES, "3")


def test_what_the_user_said_stays():
    environ = {"OMP_NUM_THREADS": "2,1"}
    assert limit_threads(8, environ) == 2
    assert environ["OMP_NUM_THREADS"] == "2,1"
    assert environ["MKL_NUM_THREADS"] == "8"


@pytest.mark.parametrize("said", ["", "many", "0", "-1"])
def test_nonsense_is_a_clear_error(said):
    with pytest.raises(MachineError, match="OMP_NUM_THREADS: expected a number of threads, got"):
        limit_threads(8, {"OMP_NUM_THREADS": said})


def test_ranks_pinned_to_one_core_are_named():
    found = [place([0]), place([1]), place([0]), place([0], node=1), place([1], node=1)]
    assert crowded(found) == ["ranks 0, 2 of node 0 are all pinned to core 0"]


def test_more_ranks_than_the_cores_they_are_pinned_to():
    assert crowded([place([2, 3])] * 3) == ["ranks 0, 1, 2 of node 0 are all pinned to cores 2, 3"]
    assert crowded([place([2, 3])] * 2) == []


def test_the_whole_machine_is_not_pinned():
    assert crowded([place([0, 1], machine_cores=2)] * 8) == []
    assert crowded([place([0], machine_cores=1)] * 8) == []


def crew_map(found):
    config = load(
        CATCH.with_name("cartpole_a2c.toml"),
        ["topology.layout=sampler_learner", "topology.evaluators=0", "topology.simulator_ranks=2"],
    )
    return train.make_plan(found, config)


def test_simulators_have_a_core_each_and_the_others_what_is_left():
    found = [place(range(2, 8)) for _ in range(4)]
    assert cores_of_simulators(crew_map(found), found) == {0: {2, 3, 4, 5}, 1: {2, 3, 4, 5}, 2: {6}, 3: {7}}


@pytest.mark.parametrize(
    "found",
    [
        [place([core]) for core in range(4)],  # the launcher has bound them
        [place(range(3)) for _ in range(4)],  # there are not enough
        [place(range(8)), *(place(range(4)) for _ in range(3))],
    ],
)
def test_simulators_are_left_alone_where_the_launcher_has_decided_or_cores_are_short(found):
    assert cores_of_simulators(crew_map(found), found) == {}


def test_where_learners_step_their_simulators_themselves_nobody_is_pinned():
    found = [place(range(8)) for _ in range(3)]
    rank_map = train.make_plan(found, load(CATCH.with_name("cartpole_a3c.toml")))
    assert cores_of_simulators(rank_map, found) == {}
