"""Simulators on other ranks: the same rollouts as without, whoever is faster, and what slow ones cost."""

import numpy as np
import pytest
from counting import Counting, Scripted
from crew import make_crew

from hpcrl.algorithms.policy_gradient import Decision
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler
from hpcrl.types import EnvSpec, EnvStep


def make_sampler(envs, *, simulators=8, horizon=7, same_step=False):
    rollout = Rollout(
        horizon,
        simulators,
        observation_shape=(2, 3),
        observation_dtype=np.float32,
        action_shape=(),
        action_dtype=np.int64,
    )
    return Sampler(envs, Scripted(), rollout, restarts_at_once=same_step)


def fill(sampler, roles, rng):
    """Learner and simulators step in any order."""
    while not sampler.rollout.full:
        which = rng.integers(len(roles) + 1)
        if which < len(roles):
            roles[which].step()
        elif sampler.ready:
            sampler.step()


def ready(env):
    env.look()
    return env.ready


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (2, 1), (2, 2), (4, 2)])
def test_rollouts_are_those_of_simulators_on_the_learners_own_rank(ranks, groups, same_step):
    def counting(size, first):
        return Counting(size, first=first, same_step=same_step)

    exchange, roles = make_crew(counting, simulators=8, ranks=ranks, groups=groups)
    remote = make_sampler([exchange.group(group) for group in range(groups)], same_step=same_step)
    own = make_sampler([counting(8 // groups, 8 // groups * group) for group in range(groups)], same_step=same_step)
    rng = np.random.default_rng(ranks)
    for _ in range(4):
        fill(remote, roles, rng)
        while not own.rollout.full:
            own.step()
        for name, value in own.rollout.state().items():
            np.testing.assert_array_equal(remote.rollout.state()[name], value, err_msg=name)
        remote.begin()
        own.begin()


def test_what_a_step_led_to_stays_while_the_next_one_is_made():
    exchange, roles = make_crew(lambda size, first: Counting(size, first=first), simulators=4, ranks=2, groups=1)
    env = exchange.group(0)
    before, copy = env.observation, env.observation.copy()
    env.send(np.zeros(4, np.int64))
    for role in roles:
        assert role.step()
    assert ready(env)
    np.testing.assert_array_equal(before, copy)
    step = env.receive()
    assert (env.observation[:, 1, 2] == 1).all()
    np.testing.assert_array_equal(step.frame, env.observation[:, -1])


def test_a_group_is_ready_when_its_last_rank_is():
    exchange, roles = make_crew(lambda size, first: Counting(size, first=first), simulators=4, ranks=2, groups=2)
    first, second = exchange.group(0), exchange.group(1)
    first.send(np.zeros(2, np.int64))
    second.send(np.zeros(2, np.int64))
    assert roles[0].step()
    assert not ready(first)
    assert roles[1].step()
    assert ready(first)
    assert not ready(second)
    assert [role.step() for role in roles] == [True, True]
    assert ready(second)
    assert not roles[0].step()


# Slow simulators, in a time that only passes as they say -------------------------------------------------------------

SPEC = EnvSpec((1,), np.dtype(np.float32), 1, 2, 1)
SLOW, ONE_IN = 10.0, 16


class Slow:
    """Simulators of which each takes 1 for a step, or `SLOW`: one in `ONE_IN` always, or each as often by chance."""

    def __init__(self, num_envs, first, *, by_chance):
        self.num_envs, self.spec, self.by_chance = num_envs, SPEC, by_chance
        self.number, self.rng = first + np.arange(num_envs), np.random.default_rng(first)
        self.observation, self.cost = np.zeros((num_envs, 1, 1), np.float32), 0.0

    def reset(self):
        return self.observation[:, 0]

    def step(self, actions):
        chance = self.rng.integers(ONE_IN, size=self.num_envs)
        slow = (chance if self.by_chance else self.number % ONE_IN) == 0
        self.cost = float(np.where(slow, SLOW, 1.0).sum())
        no = np.zeros(self.num_envs, bool)
        return EnvStep(
            self.observation[:, 0], np.zeros(self.num_envs, np.float32), no, no, no, no, self.observation[:, 0]
        )


class Idle:
    """A policy that costs nothing."""

    def decide(self, observation):
        zeros = np.zeros(len(observation), np.float32)
        return Decision(np.zeros(len(observation), np.int64), zeros, zeros)

    def value(self, observation):
        return np.zeros(len(observation), np.float32)


def throughput(*, stacked, ranks, groups, by_chance, horizon=200):
    """Steps in the time of one of them on each rank, over what the mean time of a step allows."""
    simulators = stacked * ranks
    exchange, roles = make_crew(
        lambda size, first: Slow(size, first, by_chance=by_chance), simulators=simulators, ranks=ranks, groups=groups
    )
    rollout = Rollout(
        horizon,
        simulators,
        observation_shape=(1, 1),
        observation_dtype=np.float32,
        action_shape=(),
        action_dtype=np.int64,
    )
    sampler = Sampler([exchange.group(g) for g in range(groups)], Idle(), rollout, restarts_at_once=False)
    memory, free, now = exchange.memory, [0.0] * ranks, 0.0
    while not rollout.full:
        for rank, role in enumerate(roles):
            _catch_up(memory, exchange, role, free, rank)
        memory.now = now
        if sampler.ready:
            sampler.step()
        else:
            now = min(when for word in memory.moved for when in word if when > now)
    mean = 1 + (SLOW - 1) / ONE_IN
    return simulators * horizon * mean / (ranks * now)


def _catch_up(memory, exchange, role, free, rank):
    """Let a rank do all that it was asked for, each step when it was asked and the rank was free."""
    while True:
        words = [exchange.word(rank, group, done=False) for group in range(exchange.groups)]
        asked = [
            memory.moved[word][done]
            for word, done in zip(words, role.done, strict=True)
            if len(memory.moved[word]) > done
        ]
        if not asked:
            return
        memory.now = max(free[rank], min(asked))
        role.exchange = _Later(exchange, role)
        assert role.step()
        role.exchange = exchange
        free[rank] = memory.now


class _Later:
    """The exchange as a simulator sees it whose answer comes when its step has taken its time."""

    def __init__(self, exchange, role):
        self._exchange, self._role = exchange, role

    def __getattr__(self, name):
        return getattr(self._exchange, name)

    def answer(self, rank, group, *what):
        self._exchange.memory.now += self._role.envs[group].cost
        self._exchange.answer(rank, group, *what)


@pytest.mark.parametrize("by_chance", [False, True], ids=["always the same", "by chance"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_stacked_simulators_outweigh_slow_ones(ranks, by_chance):
    alone = throughput(stacked=1, ranks=16, groups=1, by_chance=by_chance)
    stacked = throughput(stacked=32, ranks=ranks, groups=2, by_chance=by_chance)
    assert alone < 0.4
    assert 0.8 <= stacked <= 1.0
