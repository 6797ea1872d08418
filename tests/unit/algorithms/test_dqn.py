"""DQN's gradient against an independent one, and what epsilon-greedy draws."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.algorithms.dqn import Dqn, EpsilonGreedy
from hpcrl.algorithms.rules import ScalarRule, make_rule
from hpcrl.networks import Replica, make_network, mlp
from hpcrl.types import Batch


def replica(seed, hidden=(7,)):
    torch.manual_seed(seed)
    return Replica(mlp((2, 3), 4, hidden), vector=None, num_shards=1)


def batch(size=16):
    rng = np.random.default_rng(3)
    return Batch(
        s_tm1=rng.normal(size=(size, 2, 3)).astype(np.float32),
        a_tm1=rng.integers(4, size=size),
        r_t=(3 * rng.normal(size=size)).astype(np.float32),
        discount_t=np.where(rng.random(size) < 0.3, 0, 0.9).astype(np.float32),
        s_t=rng.normal(size=(size, 2, 3)).astype(np.float32),
    )


def dqn(online, target, *, loss="huber", double=False, max_gradient_norm=0.0):
    return Dqn(
        online, target, rule=ScalarRule(loss), double=double, max_gradient_norm=max_gradient_norm, dtype=torch.float32
    )


def independent(online, target, b, loss, double):
    """Loss, mean value and flat gradient of a two-layer network, from its weights alone."""
    w1, b1, w2, b2 = (p.detach().clone().requires_grad_() for p in online.network.parameters())
    u1, c1, u2, c2 = (p.detach() for p in target.network.parameters())
    s_tm1, s_t = (torch.tensor(s).reshape(len(s), -1) for s in (b.s_tm1, b.s_t))
    q = torch.relu(s_tm1 @ w1.T + b1) @ w2.T + b2
    q_t = torch.relu(s_t @ u1.T + c1) @ u2.T + c2
    best = torch.amax(q_t, dim=1)
    if double:
        chosen_t = (torch.relu(s_t @ w1.T + b1) @ w2.T + b2).argmax(dim=1)
        best = torch.stack([row[action] for row, action in zip(q_t, chosen_t, strict=True)])
    y = torch.tensor(b.r_t) + torch.tensor(b.discount_t) * best
    chosen = (q * nn.functional.one_hot(torch.tensor(b.a_tm1), 4)).sum(dim=1)
    value = nn.functional.smooth_l1_loss(chosen, y) if loss == "huber" else nn.functional.mse_loss(chosen, y) / 2
    gradient = torch.autograd.grad(value, [w1, b1, w2, b2])
    return value.item(), torch.amax(q, dim=1).mean().item(), torch.cat([g.reshape(-1) for g in gradient])


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("loss", ["huber", "mse"])
def test_the_gradient_equals_an_independent_one(loss, double):
    online, target, b = replica(0), replica(1), batch()
    algorithm = dqn(online, target, loss=loss, double=double)
    expected_loss, expected_q, expected = independent(online, target, b, loss, double)
    for _ in range(2):  # the second time into gradients that are no longer zero
        found_loss, mean_q, _ = algorithm.gradient(b)
        assert found_loss == pytest.approx(expected_loss, rel=1e-5)
        assert mean_q == pytest.approx(expected_q, rel=1e-5)
        torch.testing.assert_close(online.flat.gradients, expected, rtol=1e-5, atol=1e-7)
    online.flat.check()
    assert not target.flat.gradients.any()


def test_the_parameters_stay_as_they_are():
    online, target = replica(0), replica(1)
    before = [r.flat.values.clone() for r in (online, target)]
    dqn(online, target).gradient(batch())
    assert torch.equal(online.flat.values, before[0])
    assert torch.equal(target.flat.values, before[1])


def test_weights_scale_each_sample_and_errors_are_unweighted():
    """Weights of 0 and 2 on halves of a batch: the gradient of the second half alone, and the same TD errors."""
    online, target, b = replica(0), replica(1), batch()
    _, _, plain = dqn(online, target).gradient(b)
    half = b._replace(**{name: getattr(b, name)[8:] for name in ("s_tm1", "a_tm1", "r_t", "discount_t", "s_t")})
    _, _, errors = dqn(online, target).gradient(half)
    np.testing.assert_allclose(errors, plain[8:], rtol=1e-6)
    expected = online.flat.gradients.clone()
    weighted = b._replace(weight=np.repeat(np.float32([0, 2]), 8))
    _, _, errors = dqn(online, target).gradient(weighted)
    np.testing.assert_array_equal(errors, plain)
    torch.testing.assert_close(online.flat.gradients, expected, rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        q = online.network(torch.tensor(b.s_tm1)).numpy()[np.arange(16), b.a_tm1]
        y = b.r_t + b.discount_t * target.network(torch.tensor(b.s_t)).numpy().max(axis=1)
    np.testing.assert_allclose(plain, y - q, rtol=1e-5, atol=1e-6)
    assert plain.dtype == np.float32


def test_the_norm_of_the_whole_gradient_is_bounded():
    online, target, b = replica(0), replica(1), batch()
    dqn(online, target).gradient(b)
    whole = online.flat.gradients.clone()
    norm = whole.norm().item()
    dqn(online, target, max_gradient_norm=norm / 4).gradient(b)
    torch.testing.assert_close(online.flat.gradients, whole / 4, rtol=1e-4, atol=1e-7)
    dqn(online, target, max_gradient_norm=norm * 1.01).gradient(b)
    torch.testing.assert_close(online.flat.gradients, whole, rtol=0, atol=0)


@pytest.mark.parametrize(("distribution", "atoms"), [("none", 0), ("categorical", 11), ("quantile", 10)])
def test_bfloat16_gradients_are_close(distribution, atoms):
    torch.manual_seed(0)
    networks = (make_network("nature", (), (4, 36, 36), 3, np.uint8, atoms=atoms) for _ in range(2))
    online, target = (Replica(network, vector=None, num_shards=1) for network in networks)
    rule = make_rule(distribution, loss="huber", atoms=atoms, support=(-2.0, 2.0), device="cpu")
    rng = np.random.default_rng(0)
    frames = rng.integers(256, size=(2, 4, 4, 36, 36), dtype=np.uint8)
    b = Batch(frames[0], np.arange(4) % 3, np.ones(4, np.float32), np.full(4, 0.9, np.float32), frames[1])
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        Dqn(online, target, rule=rule, double=True, max_gradient_norm=0, dtype=dtype).gradient(b)
        assert online.flat.gradients.dtype == torch.float32
        gradients.append(online.flat.gradients.clone())
    assert (gradients[1] - gradients[0]).norm() < 0.05 * gradients[0].norm()


class Known(nn.Module):
    """Action values are the observation itself; counts its calls."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, observation):
        self.calls += 1
        return observation.flatten(1)


class Fixed:
    device = "cpu"

    def __init__(self):
        self.network = Known()


VALUES = np.array([[[0.0, 3.0, 1.0]], [[9.0, 3.0, 1.0]]], np.float32)
"""Two simulators whose best actions are 1 and 0."""


def policy(seed=0, num_actions=3):
    return EpsilonGreedy(Fixed(), lambda outputs: outputs, num_actions, np.random.default_rng(seed), torch.float32)


def test_without_epsilon_every_action_is_greedy():
    greedy = policy()
    for _ in range(20):
        actions = greedy.act(VALUES, 0.0)
        assert actions.tolist() == [1, 0]
        assert actions.dtype == np.int64


def test_the_values_of_a_distribution_decide():
    """Two outputs an action, whose difference is its value: 0, 2 and 1, then 1, 0 and 0."""
    outputs = np.array([[[[0, 0], [4, 2], [1, 0]]], [[[3, 2], [5, 5], [0, 0]]]], np.float32)
    acting = EpsilonGreedy(
        Fixed(), lambda x: x.view(2, 3, 2).diff().neg()[..., 0], 3, np.random.default_rng(0), torch.float32
    )
    acting.keeps_values = True
    assert acting.act(outputs, 0.0).tolist() == [1, 0]
    assert acting.values.tolist() == [[0, 2, 1], [1, 0, 0]]


def test_values_are_kept_where_asked_for_even_if_nobody_is_greedy():
    acting = policy()
    acting.act(VALUES, 1.0)
    assert acting.values is None
    acting.keeps_values = True
    acting.act(VALUES, 1.0)
    np.testing.assert_array_equal(acting.values, VALUES[:, 0])


def test_ties_go_to_the_first_of_the_best():
    assert policy().act(np.array([[[2.0, 5.0, 5.0]], [[4.0, 4.0, 4.0]]], np.float32), 0.0).tolist() == [1, 0]


def test_each_simulator_may_have_an_epsilon_of_its_own():
    greedy = policy()
    actions = np.array([greedy.act(VALUES, np.array([0.0, 1.0])) for _ in range(300)])
    assert set(actions[:, 0]) == {1}
    assert set(actions[:, 1]) == {0, 1, 2}


@pytest.mark.parametrize("epsilon", [0.1, 0.6, 1.0])
def test_actions_come_at_their_rates(epsilon):
    """The best action with probability 1 - epsilon + epsilon / 3, each other one with epsilon / 3."""
    trials = 100_000
    counts = np.bincount(policy().act(np.repeat(VALUES[:1], trials, axis=0), epsilon), minlength=3)
    expected = np.full(3, epsilon / 3)
    expected[1] += 1 - epsilon
    assert np.all(np.abs(counts - trials * expected) <= 4 * np.sqrt(trials * expected * (1 - expected)))


def test_the_random_stream_does_not_depend_on_epsilon():
    ends = set()
    for epsilon in (0.0, 0.3, 1.0):
        behaviour = policy(seed=5)
        for _ in range(10):
            behaviour.act(VALUES, epsilon)
        ends.add(behaviour.rng.random())
    assert len(ends) == 1


def test_a_larger_epsilon_only_adds_exploring_steps():
    """Same stream: where both explore they take the same action, so a changed schedule changes as little as it can."""
    little, much = policy(seed=5), policy(seed=5)
    for _ in range(200):
        a, b = little.act(VALUES, 0.2), much.act(VALUES, 0.8)
        greedy = np.array([1, 0])
        assert np.all((a == b) | (a == greedy))


def test_the_network_is_run_only_where_some_simulator_is_greedy():
    behaviour = policy()
    behaviour.act(VALUES, 1.0)
    assert behaviour.replica.network.calls == 0
    behaviour.act(VALUES, 0.0)
    assert behaviour.replica.network.calls == 1
