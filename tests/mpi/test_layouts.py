"""Every layout, and every switch of the transport, trains: all roles work, and the job ends by itself."""

from pathlib import Path

import numpy as np
import pytest
from launching import run_ranks, train

from hpcrl.storage.checkpoint import latest, state_path
from hpcrl.storage.runlog import read_runlog
from hpcrl.storage.statefile import read_state

CONFIG = Path(__file__).with_name("small.toml")

CASES = {
    "serial": (0, ["topology.layout=serial"]),
    "one bundle": (2, []),
    "three servers": (5, ["topology.servers=3", "topology.bundles=2"]),
    "monitor of its own": (4, ["topology.monitor=own"]),
    "an evaluator": (3, ["topology.evaluators=1", "run.evaluation_period_updates=20", "run.evaluation_episodes=4"]),
    "split": (3, ["topology.layout=split"]),
    "split, many of each": (7, ["topology.layout=split", "topology.servers=2", "topology.learners=2"]),
    "windows by create": (3, ['server.window_flavour="create"']),
    "pipelined": (3, ["learner.pipeline=1"]),
    "lock step": (3, ["run.lock_step=true"]),
    "global": (4, ["replay.place=global", "topology.servers=2"]),
    "global, split, prioritized": (
        5,
        ["replay.place=global", "replay.sampling=prioritized", "topology.servers=2", "topology.layout=split"],
    ),
    "global, serial": (0, ["replay.place=global", "replay.sampling=prioritized", "topology.layout=serial"]),
    "prioritized": (3, ["replay.sampling=prioritized", "replay.n_step=3"]),
    "rare pulls": (3, ["actor.sync_period_steps=5", "learner.pull_period_updates=4"]),
}


ON_BOTH = ("three servers", "windows by create", "global, split, prioritized")
"""The other cases differ in what MPI does not see."""
LONG = (
    "one bundle",
    "monitor of its own",
    "split",
    "split, many of each",
    "pipelined",
    "global",
    "global, serial",
    "rare pulls",
)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(c, marks=pytest.mark.long if c in LONG else () if c in ON_BOTH else pytest.mark.one_mpi)
        for c in CASES
    ],
)
def test_trains_and_ends(case, tmp_path):
    ranks, overrides = CASES[case]
    done = train(ranks, CONFIG, tmp_path, "run.total_updates=80", *overrides)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    checkpoint, skipped = latest(tmp_path)
    assert not skipped
    assert checkpoint.global_update == 80
    last = {name: column[-1] for name, column in read_runlog(tmp_path, "progress").items()}
    assert last["global_update"] == 80
    # The run ends when shard 0 has made its last update; the others may lack one of each learner.
    assert last["gradients_accepted"] + last["gradients_dropped"] >= 80 - 2
    # 8 transitions trained per step, in batches of 32, after 64 steps of each memory
    assert last["total_steps"] >= 64 + 79 * 4
    assert last["total_frames"] == last["total_steps"]
    assert 0 < last["replay_fill"] <= 1
    assert np.isfinite(last["loss"])
    gradients = read_runlog(tmp_path, "gradients")
    # Of the last gradients of each learner, up to two on the way, nobody may have heard.
    assert 80 - 2 * len(set(gradients["learner"])) <= gradients["count"].sum() <= last["gradients_accepted"] + 80
    assert set(gradients["fate"]) <= {0, 1, 2}
    episodes = read_runlog(tmp_path, "episodes")
    assert set(episodes["length_steps"]) == {9}
    assert set(episodes["episode_return"]) <= {-1.0, 1.0}
    if case == "an evaluator":
        assert len(read_runlog(tmp_path, "evaluations")["mean_return"]) > 0


@pytest.mark.one_mpi
def test_a_run_can_be_evaluated_without_mpi(tmp_path):
    assert train(0, CONFIG, tmp_path, "run.total_updates=40", "topology.layout=serial").returncode == 0
    results = [run_ranks(0, ["-m", "hpcrl", "evaluate", tmp_path, "--episodes", "6", "--seed", "3"]) for _ in range(2)]
    assert results[0].returncode == 0, results[0].stderr
    assert "catch" in results[0].stdout
    assert "over 6 episodes" in results[0].stdout
    assert results[0].stdout == results[1].stdout


@pytest.mark.one_mpi
def test_a_virtual_delay_is_in_the_log_as_it_was_chosen(tmp_path):
    options = ["run.total_updates=80", "topology.layout=serial", "learning.virtual_delay=30"]
    done = train(0, CONFIG, tmp_path, *options, "server.staleness_bound_updates=30")
    assert done.returncode == 0, done.stderr
    rows = read_runlog(tmp_path, "gradients")
    counts = dict(zip(rows["delay_updates"].tolist(), rows["count"].tolist(), strict=True))
    assert {delay: counts[delay] for delay in range(30)} == dict.fromkeys(range(30), 1)  # at first nothing is as old
    assert 48 <= counts.pop(30) <= 50
    assert set(counts) == set(range(30))
    assert set(rows["fate"]) == {0}


@pytest.mark.one_mpi
def test_serial_runs_are_deterministic(tmp_path):
    states = []
    for name in ("a", "b"):
        done = train(0, CONFIG, tmp_path / name, "run.total_updates=60", "topology.layout=serial")
        assert done.returncode == 0, done.stderr
        checkpoint, _ = latest(tmp_path / name)
        arrays, _ = read_state(state_path(checkpoint.path, "parameter_server-0"), "parameter_server")
        states.append({**arrays, "total_frames": np.array(checkpoint.attributes["total_frames"])})
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name], err_msg=name)


@pytest.mark.one_mpi
@pytest.mark.parametrize("what", ["checkpoint", "directory"])
def test_evaluating_what_is_no_run_is_a_clear_error(what, tmp_path):
    if what == "checkpoint":
        (tmp_path / "config.toml").write_text(CONFIG.read_text())
    done = run_ranks(0, ["-m", "hpcrl", "evaluate", tmp_path])
    assert done.returncode != 0
    assert ("no checkpoint that can be used" if what == "checkpoint" else "expected a run directory") in done.stderr
    assert "Traceback" not in done.stderr
