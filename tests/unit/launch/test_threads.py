"""How many threads a rank's arithmetic gets."""

import os
from pathlib import Path

import pytest
from mpi4py import MPI

from hpcrl.config import load
from hpcrl.launch import train

CATCH = Path(__file__).parents[3] / "configs" / "catch_serial.toml"
VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("overrides", "threads"),
    [
        (["network.kind=mlp"], 1),
        (["network.kind=nature"], CORES),
        (["network.kind=mlp", "topology.learner_threads=3"], 3),
        (["network.kind=nature", "topology.learner_threads=3"], 3),
    ],
)
def test_a_small_network_gets_one_thread_and_a_large_one_its_cores(overrides, threads):
    rank_map = train.make_plan(MPI.COMM_SELF, load(CATCH, ["topology.layout=serial", *overrides]))
    assert [rank.threads for rank in rank_map.ranks] == [threads]


def test_thread_pools_are_told_before_they_are_made(monkeypatch):
    monkeypatch.setattr(os, "environ", {})
    train._limit_threads(3)
    assert os.environ == dict.fromkeys(VARIABLES, "3")


def test_what_the_user_said_stays(monkeypatch):
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "2,1"})
    train._limit_threads(8)
    assert os.environ["OMP_NUM_THREADS"] == "2,1"
    assert os.environ["MKL_NUM_THREADS"] == "8"
