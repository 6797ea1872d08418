"""Any number of servers, learners and actors around one global memory learns catch, and each of them takes part."""

import itertools
import time
from pathlib import Path

import numpy as np
import pytest
from launching import training_job

from hpcrl.storage.checkpoint import latest, state_path
from hpcrl.storage.runlog import read_runlog
from hpcrl.storage.statefile import read_state

pytestmark = pytest.mark.one_mpi

CONFIG = Path(__file__).parents[2] / "configs" / "catch_bundled.toml"
OVERRIDES = [
    "topology.layout=split",
    "replay.place=global",
    "env.simulators=4",
    "exploration.epsilon_end=0.01",
    "exploration.decay_length=4000",
    "run.total_frames=0",
    "log.period_seconds=0.5",
    "log.display=plain",
]
IN_THE_SUITE = {(1, 2, 3), (2, 3, 1), (3, 1, 2)}
COUNTS = [
    pytest.param(*counts, marks=() if counts in IN_THE_SUITE else pytest.mark.long)
    for counts in itertools.product((1, 2, 3), repeat=3)
]
GOOD, LIMIT_SECONDS = 0.9, 150.0
WORDS = {"parameter_server": "accepted", "learner": "updates", "actor": "acted_steps"}
"""What each kind of role counts, as its state names it."""


@pytest.mark.parametrize(("servers", "learners", "actors"), COUNTS)
def test_any_counts_learn_around_a_global_memory(servers, learners, actors, tmp_path):
    counts = {"servers": servers, "learners": learners, "actors": actors}
    sampling = "prioritized" if (servers + learners + actors) % 2 else "uniform"
    overrides = [*OVERRIDES, f"replay.sampling={sampling}", *(f"topology.{k}={n}" for k, n in counts.items())]
    learns_and_all_take_part(tmp_path, sum(counts.values()), overrides)


@pytest.mark.parametrize("sampling", [pytest.param("uniform", marks=pytest.mark.long), "prioritized"])
def test_one_actors_memory_in_its_node_feeds_three_learners(sampling, tmp_path):
    counts = ["topology.learners=3", "topology.actors=1"]
    learns_and_all_take_part(tmp_path, 5, [*OVERRIDES, *counts, "replay.place=local", f"replay.sampling={sampling}"])


def learns_and_all_take_part(run_dir: Path, ranks: int, overrides: list[str]) -> None:
    best, deadline = -1.0, time.monotonic() + LIMIT_SECONDS
    with training_job(ranks, CONFIG, run_dir, *overrides) as job:
        while best < GOOD and job.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
            best = float(np.nanmax(read_runlog(run_dir, "progress")["mean_return_100"], initial=-1.0))
        (run_dir / "stop").touch()
        job.wait(60)
    assert best >= GOOD
    checkpoint, _ = latest(run_dir)
    owners = [owner for owner in checkpoint.owners if owner.rpartition("-")[0] in WORDS]
    assert len(owners) == ranks
    for owner in owners:
        kind = owner.rpartition("-")[0]
        state, _ = read_state(state_path(checkpoint.path, owner), kind)
        assert int(state[WORDS[kind]]) > 0, owner
