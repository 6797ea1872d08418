"""Evaluators in training play by the protocols of `hpcrl evaluate`."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcrl.analysis import load
from hpcrl.config import from_dict
from hpcrl.envs.atari import ExactAtari
from hpcrl.errors import ConfigError
from hpcrl.launch import evaluate as evaluation
from hpcrl.launch.simulators import make_evaluation_env
from hpcrl.launch.starts import record_start
from hpcrl.seeding import generator, seed_sequence
from hpcrl.storage.starts import write_starts

ROOT = Path(__file__).parents[3]
GAME = "ALE/Freeway-v5"


@pytest.fixture(scope="module")
def starts_file(tmp_path_factory):
    """Three games that are 100, 120 and 140 frames from the protocol's limit."""
    player, file = evaluation.random_player(GAME), tmp_path_factory.mktemp("starts") / "starts.h5"
    arguments = evaluation.protocol_arguments(player.config, "noop", 240)
    seeds = generator(1, "policy", 0), generator(1, "choice", 0), seed_sequence(1, "env", 0)
    start = record_start(arguments, player.make_policy(seeds[0]), *seeds[1:], 1.0)
    write_starts(file, GAME, "a test", [start._replace(frames=108_000 - left) for left in (100, 120, 140)])
    return file


def evaluation_env(simulators=2, **run):
    config = from_dict({"run": run, "env": {"id": GAME, "protocol": "nature", "simulators": simulators}})
    job = SimpleNamespace(config=config, rank_plan=SimpleNamespace(threads=1), start=0)
    return make_evaluation_env(job, "evaluator", 0)


def test_episodes_begin_in_the_starts_in_turn_and_count_the_frames_before(starts_file):
    env = evaluation_env(evaluation_protocol="human", evaluation_starts=str(starts_file))
    lengths = [[], []]
    for _ in range(2):  # a reset begins with the first start again
        env.reset()
        length, lengths = np.zeros(2, int), [[], []]
        while min(map(len, lengths)) < 3:
            step = env.step(np.zeros(2, np.int64))
            length += 1
            for e in np.flatnonzero(step.episode_over):
                lengths[e].append(int(length[e]))
                length[e] = -1  # the next step only resets
        # Simulator 0 plays starts 0, 2, 1 and simulator 1 starts 1, 0, 2: a frame of each goes into showing it.
        assert [of[:3] for of in lengths] == [[25, 35, 30], [30, 25, 35]]
    env.close()


def test_a_game_goes_on_in_its_start_after_it_was_saved(starts_file):
    one, other = (evaluation_env(evaluation_protocol="human", evaluation_starts=str(starts_file)) for _ in range(2))
    one.reset()
    while not one.step(np.zeros(2, np.int64)).episode_over.any():
        pass
    other.restore(one.state())
    for _ in range(80):
        step, same = one.step(np.zeros(2, np.int64)), other.step(np.zeros(2, np.int64))
        np.testing.assert_array_equal(step.episode_over, same.episode_over)
        np.testing.assert_array_equal(step.frame, same.frame)


def test_the_protocol_decides_the_kind_of_environment():
    own, noop = evaluation_env(), evaluation_env(evaluation_protocol="noop")
    assert not isinstance(own, ExactAtari)
    assert isinstance(noop, ExactAtari)
    frames = set()
    for _ in range(20):
        noop.reset()
        frames.add(noop.observation[0, -1].tobytes())
    assert len(frames) > 5  # different numbers of no-ops


def test_a_run_evaluates_by_its_protocol(starts_file, tmp_path):
    keys = {
        **{"run.total_updates": 30, "run.evaluation_period_updates": 4, "run.evaluation_episodes": 4},
        **{"run.evaluation_protocol": "human", "run.evaluation_starts": str(starts_file), "topology.layout": "serial"},
        **{"topology.evaluators": 1, "env.id": GAME, "env.protocol": "nature", "env.simulators": 2},
        **{"network.kind": "a3c_net", "replay.capacity_steps": 500, "replay.learning_starts_steps": 40},
        **{"learning.batch_size": 8, "learning.training_intensity": 0.5, "checkpoint.replay": "none"},
    }
    (tmp_path / "config.toml").write_text("")
    options = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    command = ["-m", "hpcrl", "train", tmp_path / "config.toml", "--run-dir", tmp_path / "run", *options]
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    evaluations = load(tmp_path / "run").tables["evaluations"]
    assert set(evaluations["episodes"]) == {4}
    assert evaluations["global_update"][0] == 4


@pytest.mark.parametrize(
    ("run", "env", "message"),
    [
        ({"evaluation_protocol": "noop"}, {"id": "catch"}, "run.evaluation_protocol: expected 'own' for 'catch'"),
        ({"evaluation_protocol": "saber"}, {}, "expected another protocol for an agent without all 18 actions"),
        ({"evaluation_protocol": "human"}, {}, "run.evaluation_starts: expected a file with"),
        ({"evaluation_starts": "a.h5"}, {}, "run.evaluation_starts: expected a file with"),
        ({"evaluation_protocol": "nop"}, {}, "run.evaluation_protocol: expected 'own', 'noop', 'human', 'sticky' or"),
    ],
)
def test_a_protocol_that_does_not_fit_is_a_fault_of_the_configuration(run, env, message):
    with pytest.raises(ConfigError, match=message):
        from_dict({"run": run, "env": env or {"id": GAME, "protocol": "nature"}})
