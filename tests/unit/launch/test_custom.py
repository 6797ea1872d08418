"""The worked examples of docs/custom.md run, and what breaks the contract is told."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl.algorithms.making import replay_algorithm
from hpcrl.algorithms.rules import ScalarRule
from hpcrl.analysis import load
from hpcrl.config import from_dict
from hpcrl.errors import ConfigError
from hpcrl.networks import FlatParameters
from hpcrl.types import Batch

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "docs" / "custom"


class Held:
    """What a learning rule needs of a replica."""

    device = "cpu"

    def __init__(self, network):
        self.network, self.flat = network, FlatParameters(network)


def test_environment_network_and_learning_rule_of_the_page_train_together(tmp_path):
    command = [sys.executable, "-m", "hpcrl", "train", EXAMPLES / "corridor.toml", "--run-dir", tmp_path / "run"]
    command += ["--set", "run.total_frames=1600", "--set", "topology.learner_threads=1"]
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}"}
    done = subprocess.run(
        command, env={**os.environ, **paths}, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    run = load(tmp_path / "run")
    assert run.config["learning.algorithm"] == "munchausen:Munchausen"
    assert run.last("global_update") > 200
    assert set(run.tables["episodes"]["episode_return"]) <= {-1.0, 1.0}


def test_the_learning_rule_of_the_page_is_that_of_its_paper(monkeypatch):
    """Against equation 1 worked out in float64, for two transitions."""
    monkeypatch.syspath_prepend(EXAMPLES)
    make = replay_algorithm("munchausen:Munchausen")
    online, target = (torch.nn.Linear(2, 2, bias=False) for _ in range(2))
    online.weight.data = torch.tensor([[0.1, 0.2], [0.3, -0.1]])
    target.weight.data = torch.tensor([[0.2, 0.1], [0.1, 0.2]])
    held = Held(online)
    rule = make(held, Held(target), rule=ScalarRule("huber"), double=False, max_gradient_norm=0.0, dtype=torch.float32)
    states = np.eye(2, dtype=np.float32)
    reward, discount = np.array([0.5, -0.25], np.float32), np.array([0.9, 0.0], np.float32)
    loss, mean_q, errors = rule.gradient(Batch(states, np.array([0, 1]), reward, discount, states[::-1].copy()))

    def soft(q):
        scaled = q / 0.03
        log_pi = scaled - np.log(np.exp(scaled - scaled.max()).sum()) - scaled.max()
        return log_pi, float((np.exp(log_pi) * (q - 0.03 * log_pi)).sum())

    q_target, q_online = np.array([[0.2, 0.1], [0.1, 0.2]]), np.array([[0.1, 0.3], [0.2, -0.1]])
    expected = []
    for i, action in enumerate((0, 1)):
        bonus = max(0.03 * soft(q_target[i])[0][action], -1.0)
        expected.append(reward[i] + 0.9 * bonus + discount[i] * soft(q_target[1 - i])[1] - q_online[i, action])
    np.testing.assert_allclose(errors, expected, rtol=1e-5)
    assert loss == pytest.approx(np.mean(0.5 * np.square(expected)), rel=1e-5)
    assert mean_q == pytest.approx(np.mean([0.3, 0.2]), rel=1e-5)
    gradient = np.zeros((2, 2))
    gradient[0, 0], gradient[1, 1] = -expected[0] / 2, -expected[1] / 2
    np.testing.assert_allclose(held.flat.gradients.numpy().reshape(2, 2), gradient, rtol=1e-5, atol=1e-8)


def test_what_is_no_learning_rule_is_told():
    for name in ("nowhere:Rule", "hpcrl.algorithms.dqn:Nothing"):
        with pytest.raises(ConfigError, match='learning.algorithm: expected "module:attribute" that can be imported'):
            replay_algorithm(name)
    with pytest.raises(ConfigError, match=r"to make an object with gradient\(batch\), got OrderedDict"):
        replay_algorithm("collections:OrderedDict")()
    with pytest.raises(ConfigError, match="learning.algorithm: expected text like"):
        from_dict({"learning": {"algorithm": "dqm"}})
