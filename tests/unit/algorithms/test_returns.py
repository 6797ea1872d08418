"""Advantages and V-trace: by hand, against slow loops of their definitions, and their identities."""

import numpy as np
import pytest

from hpcrl.algorithms.returns import generalized_advantages, vtrace

GAMMA = 0.9


def rollout(steps=12, simulators=5, seed=0):
    """reward, discount, goes_on, value, log_ratio of a random rollout with terminated and truncated steps."""
    rng = np.random.default_rng(seed)
    end = rng.random((steps, simulators))
    terminated, truncated = end < 0.15, (end >= 0.15) & (end < 0.3)
    assert terminated.any()
    assert truncated.any()
    discount = np.where(terminated, 0.0, GAMMA)
    goes_on = 1.0 - (terminated | truncated)
    value = rng.normal(size=(steps + 1, simulators))
    return rng.normal(size=(steps, simulators)), discount, goes_on, value, rng.normal(0, 0.7, (steps, simulators))


def slow_return(reward, discount, goes_on, value, t, e):
    """Discounted rewards from ``t`` on, to the end of the episode or of the rollout, and the value there."""
    total, factor = 0.0, 1.0
    for k in range(t, len(reward)):
        total += factor * reward[k, e]
        factor *= discount[k, e]
        if not goes_on[k, e]:
            break
    return total + factor * value[k + 1, e]


def slow_advantage(reward, discount, goes_on, value, lam, t, e):
    """The definition: the sum of all later errors, each times the discounts and lambdas between."""
    total, factor = 0.0, 1.0
    for k in range(t, len(reward)):
        total += factor * (reward[k, e] + discount[k, e] * value[k + 1, e] - value[k, e])
        factor *= lam * discount[k, e]
        if not goes_on[k, e]:
            break
    return total


def slow_vtrace(reward, discount, goes_on, value, log_ratio, lam, rho_bound, c_bound, t, e):
    """Equation 1 of the paper: V + sum of discounted, c-weighted, rho-weighted errors."""
    target, factor = value[t, e], 1.0
    for k in range(t, len(reward)):
        rho = min(rho_bound, np.exp(log_ratio[k, e]))
        target += factor * rho * (reward[k, e] + discount[k, e] * value[k + 1, e] - value[k, e])
        factor *= discount[k, e] * lam * min(c_bound, np.exp(log_ratio[k, e]))
        if not goes_on[k, e]:
            break
    return target


def everywhere(function, shape):
    return np.array([[function(t, e) for e in range(shape[1])] for t in range(shape[0])])


def test_advantages_by_hand():
    """Two steps and a bootstrap: delta = 1 + 0.5*4 - 2 = 1 and 3 + 0.5*6 - 4 = 2; A = 1 + 0.5*0.5*2, 2."""
    column = np.array([[1.0], [3.0]])
    advantage = generalized_advantages(
        column, np.full((2, 1), 0.5), np.ones((2, 1)), np.array([[2.0], [4.0], [6.0]]), 0.5
    )
    assert advantage.ravel().tolist() == [1.5, 2.0]


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_a_slow_loop_agrees(lam):
    *arrays, _ = rollout()
    slow = everywhere(lambda t, e: slow_advantage(*arrays, lam, t, e), arrays[0].shape)
    np.testing.assert_allclose(generalized_advantages(*arrays, lam), slow, rtol=1e-12, atol=1e-12)


def test_without_decay_the_advantage_is_the_return_less_the_value():
    *arrays, _ = rollout()
    slow = everywhere(lambda t, e: slow_return(*arrays, t, e), arrays[0].shape)
    np.testing.assert_allclose(generalized_advantages(*arrays, 1.0) + arrays[3][:-1], slow, rtol=1e-12, atol=1e-12)


def test_with_lambda_zero_it_is_the_temporal_difference():
    reward, discount, goes_on, value, _ = rollout()
    delta = reward + discount * value[1:] - value[:-1]
    np.testing.assert_array_equal(generalized_advantages(reward, discount, goes_on, value, 0.0), delta)


def test_true_values_have_no_advantage():
    """A reward of 1 for ever is worth 1 / (1 - gamma), also where episodes are cut: that is bootstrapped once."""
    shape = (20, 3)
    goes_on = np.ones(shape)
    goes_on[5::7] = 0
    value = np.full((21, 3), 1 / (1 - GAMMA))
    arrays = np.ones(shape), np.full(shape, GAMMA), goes_on, value
    np.testing.assert_allclose(generalized_advantages(*arrays, 0.95), 0, atol=1e-12)
    traced = vtrace(np.full(shape, -0.3), *arrays)
    np.testing.assert_allclose(traced.target, value[:-1], rtol=1e-12)
    np.testing.assert_allclose(traced.advantage, 0, atol=1e-12)


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
def test_nothing_comes_from_behind_the_end_of_an_episode(ends):
    reward, discount, goes_on, value, log_ratio = rollout()
    goes_on[4] = 0
    discount[4] = 0 if ends == "terminated" else GAMMA
    before = generalized_advantages(reward, discount, goes_on, value, 0.9)[:5]
    traced = vtrace(log_ratio, reward, discount, goes_on, value)
    reward[5:] += 100
    value[6:] -= 50
    np.testing.assert_array_equal(generalized_advantages(reward, discount, goes_on, value, 0.9)[:5], before)
    again = vtrace(log_ratio, reward, discount, goes_on, value)
    np.testing.assert_array_equal(again.target[:5], traced.target[:5])
    np.testing.assert_array_equal(again.advantage[:5], traced.advantage[:5])
    value[5] += 1  # the state that the step led to: worth something only where the episode was cut
    change = generalized_advantages(reward, discount, goes_on, value, 0.9)[4] - before[4]
    np.testing.assert_allclose(change, GAMMA if ends == "truncated" else 0)


@pytest.mark.parametrize(("lam", "rho_bound", "c_bound"), [(1.0, 1.0, 1.0), (0.9, 2.0, 0.8), (1.0, np.inf, np.inf)])
def test_vtrace_agrees_with_a_slow_loop(lam, rho_bound, c_bound):
    *arrays, log_ratio = rollout()
    bounds = {"trace_decay": lam, "rho_bound": rho_bound, "c_bound": c_bound}
    traced = vtrace(log_ratio, *arrays, **bounds)
    slow = everywhere(lambda t, e: slow_vtrace(*arrays, log_ratio, lam, rho_bound, c_bound, t, e), arrays[0].shape)
    np.testing.assert_allclose(traced.target, slow, rtol=1e-10)


def test_vtrace_advantages_look_one_target_ahead():
    """``rho (r + discount v_{t+1} - V)``, and the value in place of ``v_{t+1}`` where nothing follows."""
    reward, discount, goes_on, value, log_ratio = rollout()
    traced = vtrace(log_ratio, reward, discount, goes_on, value, advantage_rho_bound=1.5)

    def advantage(t, e):
        follows = t + 1 < len(reward) and goes_on[t, e]
        ahead = traced.target[t + 1, e] if follows else value[t + 1, e]
        return min(1.5, np.exp(log_ratio[t, e])) * (reward[t, e] + discount[t, e] * ahead - value[t, e])

    np.testing.assert_allclose(traced.advantage, everywhere(advantage, reward.shape), rtol=1e-10, atol=1e-12)


def test_vtrace_on_policy_is_the_return():
    *arrays, log_ratio = rollout()
    traced = vtrace(np.zeros_like(log_ratio), *arrays)
    slow = everywhere(lambda t, e: slow_return(*arrays, t, e), log_ratio.shape)
    np.testing.assert_allclose(traced.target, slow, rtol=1e-12)
    np.testing.assert_allclose(traced.advantage, slow - arrays[3][:-1], rtol=1e-12, atol=1e-12)


def test_vtrace_on_policy_with_a_decay_is_the_lambda_return():
    *arrays, log_ratio = rollout()
    traced = vtrace(np.zeros_like(log_ratio), *arrays, trace_decay=0.7)
    np.testing.assert_allclose(traced.target - arrays[3][:-1], generalized_advantages(*arrays, 0.7), atol=1e-12)


def test_an_action_that_the_learner_would_never_take_teaches_nothing():
    reward, discount, goes_on, value, log_ratio = rollout()
    traced = vtrace(np.full_like(log_ratio, -np.inf), reward, discount, goes_on, value)
    np.testing.assert_array_equal(traced.target, value[:-1])
    np.testing.assert_array_equal(traced.advantage, np.zeros_like(reward))


def test_the_dtype_is_kept():
    arrays = [array.astype(np.float32) for array in rollout()]
    assert generalized_advantages(*arrays[:4], 0.95).dtype == np.float32
    assert {array.dtype for array in vtrace(arrays[4], *arrays[:4])} == {np.dtype(np.float32)}
