"""PQN: returns against a slow loop, the gradient against an independent one, and what a rollout is told."""

import numpy as np
import pytest
import torch

from hpcrl.algorithms.a2c import Experience
from hpcrl.algorithms.pqn import EpsilonGreedyRollout, Pqn
from hpcrl.algorithms.returns import generalized_advantages
from hpcrl.networks import Replica, mlp


def slow_returns(reward, discount, goes_on, q, decay):
    """``R_t = r_t + discount_t (lambda R_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a))``, one step after the other."""
    returns = np.zeros_like(reward)
    for e in range(reward.shape[1]):
        for t in reversed(range(len(reward))):
            best = max(q[t + 1, e])
            later = returns[t + 1, e] if t + 1 < len(reward) and goes_on[t, e] else best
            returns[t, e] = reward[t, e] + discount[t, e] * (decay * later + (1 - decay) * best)
    return returns


@pytest.mark.parametrize("decay", [0.0, 0.65, 1.0])
def test_the_lambda_return_of_greatest_values_is_that_of_q_learning(decay):
    rng = np.random.default_rng(0)
    reward, q = rng.normal(size=(9, 4)), rng.normal(size=(10, 4, 3))
    end = rng.random((9, 4))
    discount, goes_on = np.where(end < 0.2, 0, 0.9), np.where(end < 0.4, 0.0, 1.0)  # terminated, truncated
    value = q.max(axis=2)
    found = generalized_advantages(reward, discount, goes_on, value, decay) + value[:-1]
    np.testing.assert_allclose(found, slow_returns(reward, discount, goes_on, q, decay), rtol=1e-12)


def test_returns_by_hand():
    """Two steps, rewards 1 and 2, discount 1/2, lambda 1/2, and greatest values 4 and 8 behind them."""
    column = lambda *numbers: np.array(numbers, float)[:, None]  # noqa: E731
    value = column(0, 4, 8)
    advantage = generalized_advantages(column(1, 2), column(0.5, 0.5), column(1, 1), value, 0.5)
    last = 2 + 0.5 * 8
    assert (advantage + value[:-1])[:, 0].tolist() == [1 + 0.5 * (0.5 * last + 0.5 * 4), last]


def replica(seed=0):
    torch.manual_seed(seed)
    return Replica(mlp((1, 3), 4, (6,), layer_norm=True), None, 1)


def experience(batch=10):
    rng = np.random.default_rng(1)
    floats = lambda *shape: rng.normal(size=shape).astype(np.float32)  # noqa: E731
    return Experience(floats(batch, 1, 3), rng.integers(4, size=batch), floats(batch), floats(batch), floats(batch))


def test_the_gradient_equals_an_independent_one():
    online, taken = replica(), experience()
    algorithm = Pqn(online, max_gradient_norm=0.0, dtype=torch.float32)
    for _ in range(2):
        losses = algorithm.gradient(taken)
    q = online.network(torch.tensor(taken.observation))
    chosen = (q * torch.nn.functional.one_hot(torch.tensor(taken.action), 4)).sum(dim=1)
    loss = torch.nn.functional.mse_loss(chosen, torch.tensor(taken.target)) / 2
    expected = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(online.network.parameters()))])
    torch.testing.assert_close(online.flat.gradients, expected, rtol=1e-5, atol=1e-7)
    assert losses.loss == pytest.approx(loss.item(), rel=1e-5)
    assert losses.value == pytest.approx(q.max(dim=1).values.mean().item(), rel=1e-5)
    assert losses.gradient_norm == pytest.approx(expected.norm().item(), rel=1e-5)
    Pqn(online, max_gradient_norm=losses.gradient_norm / 3, dtype=torch.float32).gradient(taken)
    torch.testing.assert_close(online.flat.gradients, expected / 3, rtol=1e-4, atol=1e-7)


def test_a_rollout_is_told_the_greatest_values():
    online = replica()
    epsilons = iter([0.0] * 11 + [1.0] * 30)
    policy = EpsilonGreedyRollout(
        online, lambda q: q, 4, np.random.default_rng(0), torch.float32, epsilon=lambda: next(epsilons)
    )
    observation = np.random.default_rng(2).normal(size=(4, 1, 3)).astype(np.float32)
    with torch.no_grad():
        q = online.network(torch.tensor(observation)).numpy()
    actions = []
    for _ in range(30):
        decision = policy.decide(observation)
        actions.append(decision.action)
        np.testing.assert_allclose(decision.value, q.max(axis=1), rtol=1e-6)
        assert decision.log_probability.tolist() == [0.0] * 4
    actions = np.array(actions)
    assert (actions[:10] == q.argmax(axis=1)).all()
    assert set(actions[10:].flat) == {0, 1, 2, 3}
    assert policy.epsilon == 1.0
    np.testing.assert_allclose(policy.value(observation), q.max(axis=1), rtol=1e-6)
