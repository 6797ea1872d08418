"""Films of an episode: every step is there, with the values of the network that acted."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl.config import from_dict
from hpcrl.errors import ConfigError
from hpcrl.launch import record as recording
from hpcrl.launch.agents import Agent, load_agent
from hpcrl.launch.sizes import new_network

GOLDEN = Path(__file__).parents[2] / "golden" / "0.1.0" / "run"


def test_a_picture_for_each_step_of_the_episode():
    agent = load_agent(GOLDEN)
    shown = list(recording.pictures(agent, protocol="own", epsilon=0.0, seed=1))
    assert len(shown) == 9  # catch: a ball falls through ten rows
    assert len({picture.shape for picture, _ in shown}) == 1
    assert not np.array_equal(shown[0][0], shown[1][0])
    again = list(recording.pictures(agent, protocol="own", epsilon=0.0, seed=1))
    assert all(np.array_equal(one, other) for (one, _), (other, _) in zip(shown, again, strict=True))


def test_a_policy_is_filmed_and_evaluated_as_well():
    config = from_dict(
        {"env": {"id": "CartPole-v1", "simulators": 2}, "network": {"kind": "mlp"}, "learning": {"algorithm": "ppo"}}
    )
    params = torch.nn.utils.parameters_to_vector(new_network(config).parameters()).detach().numpy()
    agent = Agent(config, params, 0, "new")
    observation = np.zeros((1, 1, 4), np.float32)
    assert recording.action_values(agent, agent.network(), observation).sum() == pytest.approx(1)
    picture, points = next(recording.pictures(agent, protocol="own", epsilon=0.0, seed=1))
    assert (picture.shape[2], points) == (3, 1.0)


def test_the_bar_of_the_chosen_action_is_marked_and_lengths_follow_the_values():
    panel = recording._panel(np.array([0.0, 1.0, 0.5], np.float32), 2, 0.0)
    lengths = {}
    for action in range(3):
        row = panel[34 + action * 24 + 10]
        for colour in (recording.BAR, recording.CHOSEN):
            if count := int((row == colour).all(axis=1).sum()):
                lengths[action] = (colour, count)
    assert [lengths[action][0] for action in range(3)] == [recording.BAR, recording.BAR, recording.CHOSEN]
    assert lengths[0][1] < lengths[2][1] < lengths[1][1]


@pytest.mark.parametrize("suffix", [".gif", ".mp4"])
def test_a_film_has_as_many_frames_as_steps(tmp_path, suffix):
    imageio = pytest.importorskip("imageio.v2", reason="imageio is not installed (extra `export`)")
    if suffix == ".mp4":
        pytest.importorskip("imageio_ffmpeg", reason="imageio-ffmpeg is not installed (extra `export`)")
    how = {"protocol": "own", "epsilon": 0.0, "seed": 1, "max_steps": 100, "frames_per_second": 10.0}
    steps, points = recording.record(load_agent(GOLDEN), tmp_path / f"film{suffix}", **how)
    assert steps == 9
    assert abs(points) == 1
    with imageio.get_reader(tmp_path / f"film{suffix}") as film:
        assert (film.count_frames() if suffix == ".mp4" else len(film)) == steps


def test_a_name_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="expected --output FILE.mp4 or FILE.gif"):
        recording.record(
            load_agent(GOLDEN),
            tmp_path / "film.avi",
            protocol="own",
            epsilon=0,
            seed=1,
            max_steps=1,
            frames_per_second=1,
        )
