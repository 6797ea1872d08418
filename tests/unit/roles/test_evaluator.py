"""Evaluation: as many episodes of each simulator, at parameters that stay put."""

import numpy as np
import pytest
from fakes import FakeReplica, Reports

from hpcrl.roles.evaluator import Episodes, Evaluator
from hpcrl.types import EnvStep


class Uneven:
    """Simulator ``e`` plays episodes of ``lengths[e]`` steps that give a reward of 5 each; NEXT_STEP autoreset."""

    def __init__(self, lengths):
        self.lengths, self.num_envs, self.resets = np.array(lengths), len(lengths), 0
        self.observation = np.zeros((len(lengths), 1, 1), np.float32)

    def reset(self):
        self.resets += 1
        self.t = np.zeros(self.num_envs, np.int64)
        self.to_reset = np.zeros(self.num_envs, bool)
        return self.observation[:, 0]

    def step(self, actions):
        reset = self.to_reset
        self.t = np.where(reset, 0, self.t + 1)
        over = self.to_reset = self.t == self.lengths
        reward = np.where(reset, 0, 5).astype(np.float32)
        frame = self.observation[:, 0]
        return EnvStep(frame, reward, over, np.zeros_like(over), over, reset, frame)


class Policy:
    def __init__(self):
        self.epsilons = set()

    def act(self, observation, epsilon):
        self.epsilons.add(epsilon)
        return np.zeros(len(observation), np.int64)


def play(lengths, episodes):
    played = Episodes(Uneven(lengths), Policy(), episodes=episodes, epsilon=0.05)
    steps = 1
    while not played.step():
        steps += 1
    return played, steps


@pytest.mark.parametrize(
    ("episodes", "expected"),
    [(2, [5, 50]), (4, [5, 5, 50, 50]), (3, [5, 5, 50, 50]), (1, [5, 50])],
)
def test_short_episodes_count_no_more_than_long_ones(episodes, expected):
    """Taking the first that finish would give the short ones only."""
    played, _ = play([1, 10], episodes)
    assert played.result().tolist() == expected
    assert played.result().dtype == np.float64


def test_it_ends_with_the_last_episode():
    assert play([3, 10], 4)[1] == 2 * 10 + 1  # one step in between only resets


def test_a_second_evaluation_starts_afresh():
    played, _ = play([2, 3], 2)
    played.step()
    played.begin()
    assert played.env.resets == 2
    while not played.step():
        pass
    assert played.result().tolist() == [10, 15]


def evaluator(replica, reports, period=100):
    episodes = Episodes(Uneven([2, 3]), Policy(), episodes=2, epsilon=0.05)
    return Evaluator(
        0,
        replica=replica,
        episodes=episodes,
        period=period,
        total_frames=lambda: 4000 + replica.global_update,
        reporter=reports.reporter,
    )


def test_it_waits_until_an_evaluation_is_due():
    replica, reports = FakeReplica((99,)), Reports()
    role = evaluator(replica, reports)
    assert not role.step()
    assert role.episodes.env.resets == 1  # that of the constructor
    replica.source[:] = 100
    assert role.step()


def test_parameters_stay_for_the_whole_evaluation_and_are_named_in_the_report():
    replica, reports = FakeReplica((130,)), Reports()
    role = evaluator(replica, reports)
    assert role.step()
    replica.source[:] = 180
    pulls = replica.pulls
    while not reports.sent:
        assert role.step()
    assert replica.pulls == pulls
    assert reports.of("evaluator") == [
        {
            "total_frames": 4130,
            "global_update": 130,
            "episodes": 2,
            "mean_return": 12.5,
            "std_return": 2.5,
            "epsilon": 0.05,
        }
    ]
    assert role.episodes.policy.epsilons == {0.05}
    assert not role.step()  # the next is due at 200
    replica.source[:] = 200
    assert role.step()


def test_updates_that_went_by_are_not_made_up_for():
    replica, reports = FakeReplica((1234,)), Reports()
    role = evaluator(replica, reports)
    while not reports.sent:
        role.step()
    assert role.next_update == 1300
    assert not role.step()
