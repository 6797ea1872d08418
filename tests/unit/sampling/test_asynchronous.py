"""The asynchronous sampler: nobody waits for others, and every step of every simulator is in a rollout once."""

import numpy as np
import pytest
from counting import Counting, Scripted
from crew import make_crew
from test_sampler import follow

from hpcrl.sampling.asynchronous import AsynchronousSampler
from hpcrl.sampling.rollout import Rollout

HORIZON, SIMULATORS = 5, 6


def make_rollout(num_envs):
    return Rollout(
        HORIZON,
        num_envs,
        observation_shape=(2, 3),
        observation_dtype=np.float32,
        action_shape=(),
        action_dtype=np.int64,
    )


def make(envs, *, taken=2):
    return AsynchronousSampler(envs, Scripted(), make_rollout, taken=taken, restarts_at_once=False)


def remote(*, ranks=3, groups=1):
    exchange, roles = make_crew(
        lambda size, first: Counting(size, first=first), simulators=SIMULATORS, ranks=ranks, groups=groups
    )
    return exchange.shares(), roles


def collect(sampler, seen):
    """Take what is full, and note every valid step by its simulator."""
    taken = sampler.take(1)
    for rollout in taken or ():
        for t, e in np.argwhere(rollout.valid):
            simulator, episode, step = rollout.observation[t, e, 1]
            end = "terminated" if rollout.terminated[t, e] else "truncated" if rollout.truncated[t, e] else ""
            seen[int(simulator)].append((int(episode), int(step), int(rollout.reward[t, e]), end))
    sampler.give_back()
    return taken


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("ranks", "groups"), [(1, 1), (3, 1), (3, 2)])
def test_every_step_is_in_a_rollout_once_and_in_order(ranks, groups, seed):
    envs, roles = remote(ranks=ranks, groups=groups)
    sampler, rng, seen = make(envs), np.random.default_rng(seed), [[] for _ in range(SIMULATORS)]
    told = np.zeros(SIMULATORS, int)
    for _ in range(600):
        which = rng.integers(ranks + 1)
        if which < ranks:
            roles[which].step()
        elif sampler.ready:
            for of, step in sampler.step():
                told[of] += ~step.reset
        collect(sampler, seen)
    for simulator, steps in enumerate(seen):
        assert len(steps) > 3 * HORIZON
        assert steps == follow(simulator, len(steps))
        assert len(steps) <= told[simulator] <= len(steps) + HORIZON


def test_a_simulator_that_stops_holds_up_only_its_own_rollout():
    envs, roles = remote()
    sampler, seen = make(envs), [[] for _ in range(SIMULATORS)]
    for _ in range(100):
        for role in roles[:2]:
            role.step()
        if sampler.ready:
            sampler.step()
        collect(sampler, seen)
    assert min(len(steps) for steps in seen[:4]) > 50
    assert not any(seen[4:])


def test_all_that_are_ready_act_in_one_batch():
    envs, roles = remote()
    sampler = make(envs)
    sampler.step()
    for role in roles[:2]:
        role.step()
    assert sampler.ready
    sampler.step()
    assert sampler.policy.passes == [6, 4]
    assert not sampler.ready


def test_where_learning_is_behind_groups_wait_for_rollouts():
    sampler = make([Counting(2, first=first) for first in (0, 2, 4)], taken=2)
    while sampler.ready:
        sampler.step()
    taken = sampler.take(2)
    assert len(taken) == 2
    assert len(sampler.take(3)) == 3
    assert sampler.take(1) is None
    sampler.give_back()
    assert sampler.ready


def test_a_rollout_has_the_version_of_its_first_step_and_ends_in_what_is_acted_upon_next():
    sampler = make([Counting(2)], taken=1)
    last = None
    for version in range(30):
        sampler.version = version
        if sampler.ready:
            sampler.step()
        taken = sampler.take(1)
        if taken:
            if last is not None:
                np.testing.assert_array_equal(taken[0].observation[0], last)
            assert version - taken[0].version == HORIZON
            last = taken[0].observation[-1].copy()
            sampler.give_back()
    assert last is not None
