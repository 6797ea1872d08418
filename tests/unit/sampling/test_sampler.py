"""The sampler against single simulators followed by hand: what is in a rollout, and what is not."""

import numpy as np
import pytest
from counting import EPISODES, Background, Counting, Scripted, value_of

from hpcrl.algorithms.returns import generalized_advantages
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler

GAMMA = 0.5


def make(*, groups=1, simulators=4, horizon=7, env=Counting, same_step=False):
    size = simulators // groups
    envs = [env(size, first=size * index, same_step=same_step) for index in range(groups)]
    rollout = Rollout(
        horizon,
        simulators,
        observation_shape=(2, 3),
        observation_dtype=np.float32,
        action_shape=(),
        action_dtype=np.int64,
    )
    return Sampler(envs, Scripted(), rollout, restarts_at_once=same_step)


def fill(sampler):
    """The steps that it tells of, until the rollout is full."""
    told = []
    while not sampler.rollout.full:
        told += sampler.step()
    return told


def arrays(rollout):
    return {name: value.copy() for name, value in rollout.state().items()}


def follow(simulator, steps):
    """What happens to one simulator, in order: (episode, t, reward, end), resets left out."""
    episode, t, found = simulator, 0, []
    while len(found) < steps:
        length, end = EPISODES[episode % len(EPISODES)]
        t += 1
        found.append((episode, t - 1, t, end if t == length else ""))
        if t == length:
            episode, t = episode + 1, 0
    return found


@pytest.mark.parametrize("same_step", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
def test_every_step_of_every_simulator_is_there_once_over_several_rollouts(groups, same_step):
    sampler = make(groups=groups, same_step=same_step)
    seen = [[] for _ in range(4)]
    for _ in range(4):
        fill(sampler)
        rollout = sampler.rollout
        for t, e in np.argwhere(rollout.valid):
            frame = rollout.observation[t, e, 1]
            assert frame[0] == e
            end = "terminated" if rollout.terminated[t, e] else "truncated" if rollout.truncated[t, e] else ""
            assert rollout.over[t, e] == bool(end)
            assert rollout.action[t, e] == frame[2] % 2
            assert rollout.log_probability[t, e] == -0.5 - rollout.action[t, e]
            assert rollout.value[t, e] == value_of(rollout.observation[t, e][None])[0]
            seen[e].append((int(frame[1]), int(frame[2]), int(rollout.reward[t, e]), end))
        sampler.begin()
    for e in range(4):
        # order within a simulator: argwhere goes through t first
        assert seen[e] == follow(e, len(seen[e]))
    resets = 4 * 4 * 7 - sum(map(len, seen))
    assert resets == 0 if same_step else resets > 0


def slow_return(events, values_ahead, start):
    """Discounted rewards of one simulator to the end of its episode or of the rollout, and the value there."""
    total, factor = 0.0, 1.0
    for (_, _, reward, end), ahead in zip(events[start:], values_ahead[start:], strict=True):
        total, factor = total + factor * reward, factor * GAMMA
        if end == "terminated":
            return total
        last = ahead
        if end:
            break
    return total + factor * last


@pytest.mark.parametrize("same_step", [False, True])
def test_returns_bootstrap_once_at_a_cut_and_at_the_end_of_the_rollout_and_never_else(same_step):
    sampler = make(same_step=same_step, horizon=9)
    fill(sampler)
    rollout = sampler.rollout
    reward, discount, goes_on = rollout.steps(GAMMA, None)
    returns = generalized_advantages(reward, discount, goes_on, rollout.value, 1.0) + rollout.value[:-1]
    for e in range(4):
        steps = np.flatnonzero(rollout.valid[:, e])
        events = follow(e, len(steps))

        def ahead(event):
            """Value of the state that a step leads to: newest frame t + 1, and t before it."""
            episode, t, _, _ = event
            return 100 * episode + (t + 1) + 0.01 * t

        values_ahead = [ahead(event) for event in events]
        expected = [slow_return(events, values_ahead, k) for k in range(len(events))]
        np.testing.assert_allclose(returns[steps, e], expected, rtol=1e-5)
    cuts = (rollout.truncated & rollout.over)[rollout.valid]
    assert cuts.sum() > 3
    assert (rollout.final_value != 0).sum() == (cuts.sum() if same_step else 0)


def test_rewards_are_clipped_but_not_what_is_bootstrapped():
    sampler = make(same_step=True)
    fill(sampler)
    rollout = sampler.rollout
    reward, _, _ = rollout.steps(GAMMA, 1.0)
    np.testing.assert_allclose(reward, rollout.reward.clip(-1, 1) + GAMMA * rollout.final_value)
    assert rollout.final_value.max() > 10


@pytest.mark.parametrize("env", [Counting, Background])
def test_groups_fill_the_same_rollout_as_one(env):
    one, two = make(), make(groups=2, env=env)
    for _ in range(3):
        told, told_of_two = fill(one), fill(two)
        for name, value in arrays(one.rollout).items():
            np.testing.assert_array_equal(arrays(two.rollout)[name], value, err_msg=name)
        assert len(told) * 2 == len(told_of_two)
        one.begin()
        two.begin()


def test_one_forward_pass_for_each_step_of_a_group_and_one_more():
    sampler = make(groups=2, horizon=5)
    fill(sampler)
    assert sampler.policy.passes == [2] * 10 + [4]


def test_simulators_of_a_group_run_while_the_other_one_acts():
    sampler = make(groups=2, env=Background)
    sampler.step()
    sampler.step()
    assert [group.under_way for group in sampler.groups] == [True, True]
    assert [len(group.env.actions) for group in sampler.groups] == [0, 0]
    sampler.step()
    assert [len(group.env.actions) for group in sampler.groups] == [1, 0]


def test_the_policy_may_change_between_rollouts_only():
    sampler = make(groups=2, env=Background, horizon=3)
    for _ in range(2):
        assert sampler.at_start
        while not sampler.rollout.full:
            sampler.step()
            assert not sampler.at_start
        sampler.begin()


@pytest.mark.parametrize("after", range(1, 16))
def test_a_settled_sampler_goes_on_as_if_it_had_not_been(after):
    """Its simulators may be waited for, and its position saved, at any time."""
    disturbed, undisturbed = make(groups=2, env=Background), make(groups=2, env=Background)
    told = []
    for index in range(30):
        for sampler in (disturbed, undisturbed):
            if sampler.rollout.full:
                sampler.begin()
        told.append(disturbed.step())
        undisturbed.step()
        if index == after:
            told += disturbed.settle()
            assert not any(group.under_way for group in disturbed.groups)
            disturbed.restore(disturbed.state())
    fill(disturbed)
    fill(undisturbed)
    for name, value in arrays(undisturbed.rollout).items():
        np.testing.assert_array_equal(arrays(disturbed.rollout)[name], value, err_msg=name)


def test_a_rollout_is_its_state():
    sampler, other = make(), make()
    fill(sampler)
    sampler.rollout.version = 7
    other.rollout.restore(sampler.rollout.state())
    for name, value in arrays(sampler.rollout).items():
        np.testing.assert_array_equal(arrays(other.rollout)[name], value, err_msg=name)
    assert other.rollout.full
    assert other.rollout.version == 7
