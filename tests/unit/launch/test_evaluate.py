"""Evaluation: whole episodes by each protocol, the same whoever plays which group of them."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from hpcrl.config import from_dict
from hpcrl.config.presets import EVALUATION_PROTOCOLS
from hpcrl.errors import ConfigError, StorageError
from hpcrl.launch import evaluate as evaluation
from hpcrl.launch.agents import load_agent, save_weights
from hpcrl.launch.evaluate import GROUP, Result, evaluate, in_relation, play_group, play_once
from hpcrl.launch.protocols import protocol_arguments
from hpcrl.launch.starts import main as record_starts
from hpcrl.storage.starts import read_starts
from hpcrl.types import EnvStep

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "0.1.0" / "run"
PONG = from_dict({"env": {"id": "ALE/Pong-v5", "protocol": "nature"}})


class Uneven:
    """Simulator ``e`` plays episodes of ``lengths[e]`` steps that give a reward of 5 each."""

    def __init__(self, lengths):
        self.lengths, self.num_envs = np.array(lengths), len(lengths)
        self.observation = np.zeros((len(lengths), 1, 1), np.float32)

    def reset(self):
        self.t = np.zeros(self.num_envs, np.int64)

    def step(self, actions):
        self.t += 1
        over = self.t % self.lengths == 0
        never, frame = np.zeros_like(over), self.observation[:, 0]
        return EnvStep(frame, np.full(self.num_envs, 5, np.float32), over, never, over, never, frame)


def still(observation, epsilon):
    return np.zeros(len(observation), np.int64)


def test_one_whole_episode_of_each_simulator_counts():
    result = play_once(Uneven([1, 10, 3]), still, 0.0)
    assert result.returns.tolist() == [5, 50, 15]
    assert result.steps.tolist() == [1, 10, 3]


def test_as_many_episodes_as_asked_for_in_order_of_their_groups():
    result = evaluate(GROUP + 2, lambda group: Result(np.full(GROUP, float(group)), np.full(GROUP, group)))
    assert result.returns.tolist() == [0] * GROUP + [1] * 2


def test_a_group_depends_on_its_number_and_the_seed_alone():
    player = evaluation.trained_player(GOLDEN, "newest")
    arguments = protocol_arguments(player.config, "own")

    def play(group, seed=1):
        return play_group(arguments, player.make_policy, group, epsilon=0.5, seed=seed).returns.tolist()

    first = [play(group) for group in range(6)]
    assert [play(group) for group in reversed(range(6))] == first[::-1]
    assert len({tuple(returns) for returns in first}) > 1
    assert [play(group, seed=2) for group in range(6)] != first


def test_protocols_fix_what_the_papers_fix():
    noop = protocol_arguments(PONG, "noop")
    assert (noop["noop_min"], noop["noop_max"], noop["max_episode_frames"]) == (1, 30, 18_000)
    assert noop["life_loss"] == "ignore"
    assert protocol_arguments(PONG, "sticky")["sticky_probability"] == 0.25
    assert protocol_arguments(PONG, "noop", 400)["max_episode_frames"] == 400
    assert protocol_arguments(PONG, "own")["noop_max"] == 30
    with pytest.raises(ConfigError, match="expected an agent of all 18 actions"):
        protocol_arguments(PONG, "saber")
    saber = protocol_arguments(from_dict({"env": {"id": "ALE/Pong-v5", "protocol": "saber"}}), "saber")
    assert (saber["stuck_frames"], saber["max_episode_frames"]) == (18_000, 21_600_000)
    with pytest.raises(ConfigError, match="expected --protocol own for catch"):
        protocol_arguments(from_dict({"env": {"id": "catch"}}), "noop")
    with pytest.raises(ConfigError, match="expected --protocol own, noop"):
        protocol_arguments(PONG, "nooop")


def test_random_play_by_the_noop_protocol_is_that_of_the_tables(capsys, tmp_path):
    player = evaluation.random_player("ALE/Freeway-v5")
    options = {"epsilon": None, "seed": 3, "starts_file": None}
    evaluation.main(
        player, protocol="noop", episodes=2, max_episode_frames=120, output=tmp_path / "out.json", **options
    )
    said = capsys.readouterr().out
    assert "random play, a new action every 6th frame" in said
    assert "human score in Gorila, 49 games, no-op starts (random 0, human 29.6, dqn 30.3, gorila 11.69)" in said
    record = json.loads((tmp_path / "out.json").read_text())
    assert (record["steps"], record["frames_per_step"], record["epsilon"]) == ([20, 20], 6, 1.0)


def test_no_table_stands_beside_other_protocols():
    assert len(in_relation("pong", "noop", 0.0)) == 2
    assert (
        in_relation("pong", "human", 0.0) == in_relation("pong", "sticky", 0.0) == in_relation("catch", "own", 0) == []
    )


def test_starts_are_recorded_played_from_and_labelled_as_surrogate(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(EVALUATION_PROTOCOLS["noop"], "max_episode_frames", 600)
    player, file = evaluation.random_player("ALE/Pong-v5"), tmp_path / "starts.h5"
    record_starts(player, file, count=2, epsilon=None, seed=1)
    starts = read_starts(file)
    assert (starts.game, starts.surrogate, len(starts.starts)) == ("ALE/Pong-v5", True, 2)
    assert all(0 <= start.frames < 600 for start in starts.starts)
    cap = max(start.frames for start in starts.starts) + 60
    options = {"episodes": 2, "epsilon": None, "seed": 1, "max_episode_frames": cap, "output": tmp_path / "out.json"}
    evaluation.main(player, protocol="human", starts_file=file, **options)
    assert "surrogate starts by random play" in capsys.readouterr().out
    # The frames before the start count towards the cap, so the later start leaves fewer steps.
    left = [(cap - start.frames - 1 + 5) // 6 for start in starts.starts]
    steps = json.loads((tmp_path / "out.json").read_text())["steps"]
    assert min(steps) == min(left)
    with pytest.raises(ConfigError, match="expected starts of ALE/Freeway-v5, got some of ALE/Pong-v5"):
        evaluation.main(evaluation.random_player("ALE/Freeway-v5"), protocol="human", starts_file=file, **options)
    for protocol, given in [("human", None), ("noop", file)]:
        with pytest.raises(ConfigError, match="expected --starts FILE with --protocol human, and with no other"):
            evaluation.main(player, protocol=protocol, starts_file=given, **options)


def test_an_agent_is_the_same_from_a_run_its_checkpoint_a_shard_and_a_file_of_weights(tmp_path):
    agent = load_agent(GOLDEN)
    checkpoint = GOLDEN / "checkpoints" / "step-000000000080"
    save_weights(agent, tmp_path / "agent.h5")
    others = [
        load_agent(GOLDEN, "80"),
        load_agent(checkpoint),
        load_agent(checkpoint / "parameter_server-0.h5"),
        load_agent(tmp_path / "agent.h5"),
    ]
    for other in others:
        np.testing.assert_array_equal(other.params, agent.params)
        assert other.global_update == agent.global_update == 80
        assert other.config.env == agent.config.env
    assert load_agent(GOLDEN, "40").global_update == 40
    assert load_agent(GOLDEN, "best").global_update in (40, 80)


def test_weights_load_into_a_plain_module_by_the_lines_of_the_readme(tmp_path, monkeypatch):
    (lines,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    agent = load_agent(GOLDEN)
    save_weights(agent, tmp_path / "pong.h5")
    monkeypatch.chdir(tmp_path)
    linear = torch.nn.Linear  # a module that knows nothing of hpcrl, with the layers that the network has
    module = torch.nn.Sequential(torch.nn.Flatten(), linear(50, 8), torch.nn.ReLU(), linear(8, 3))
    exec(lines, {"h5py": h5py, "torch": torch, "module": module})
    assert len(lines.splitlines()) == 3
    observation = torch.rand(7, 1, 10, 5)
    assert torch.equal(module(observation), agent.network()(observation))


def test_what_holds_no_agent_is_a_clear_error(tmp_path):
    with pytest.raises(StorageError, match="holds no checkpoint of update 7; hpcrl inspect lists"):
        load_agent(GOLDEN, "7")
    with pytest.raises(StorageError, match="expected --checkpoint newest, best or a global update"):
        load_agent(GOLDEN, "newst")
    with pytest.raises(StorageError, match="expected a run directory"):
        load_agent(tmp_path)
    with pytest.raises(StorageError, match="expected an hpcrl file of type 'weights', found type 'runlog'"):
        load_agent(GOLDEN / "runlog-000.h5")
    (tmp_path / "notes.h5").write_text("not HDF5")
    with pytest.raises(StorageError, match="cannot read"):
        load_agent(tmp_path / "notes.h5")
