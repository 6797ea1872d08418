"""What outputs mean, and how they are learned: by hand, against slow twins, and in every combination."""

import numpy as np
import pytest
import torch

from hpcrl.algorithms.dqn import Dqn
from hpcrl.algorithms.rules import CategoricalRule, QuantileRule, ScalarRule, make_rule
from hpcrl.networks import Replica, mlp
from hpcrl.types import Batch

RULES = {
    "scalar": (ScalarRule("huber"), 0),
    "categorical": (CategoricalRule(5, -2.0, 2.0), 5),
    "quantile": (QuantileRule(4), 4),
}


def test_values_by_hand():
    assert ScalarRule("mse").q(torch.tensor([[1.0, 2.0]])).tolist() == [[1.0, 2.0]]
    probabilities = torch.tensor([[[0.2, 0.3, 0.5], [1e-9, 1.0, 1e-9]]])
    q = CategoricalRule(3, -2.0, 2.0).q(probabilities.log() + 7)  # a constant changes no distribution
    torch.testing.assert_close(q, torch.tensor([[0.6, 0.0]]), rtol=1e-5, atol=1e-6)
    assert QuantileRule(2).q(torch.tensor([[[1.0, 3.0], [-1.0, 0.0]]])).tolist() == [[2.0, -0.5]]


def test_a_categorical_transition_by_hand():
    """Atoms -1, 0, 1. The target network gives action 1 the probabilities 0, 1/2, 1/2; r = 0.5, discount 0.5."""
    rule = CategoricalRule(3, -1.0, 1.0)
    small = 1e-12
    outputs_t = torch.tensor([[[1.0, small, small], [small, 0.5, 0.5]]]).log()
    uniform = torch.zeros(1, 2, 3)
    action = torch.tensor([0]), torch.tensor([1])
    losses, errors = rule.losses(uniform, action[0], torch.tensor([0.5]), torch.tensor([0.5]), outputs_t, action[1])
    # Atom 0 goes to 0.5: a quarter each to 0 and 1; atom 1 goes to 1. So the target is 0, 1/4, 3/4.
    expected = 0.25 * np.log(0.25) + 0.75 * np.log(0.75) + np.log(3)
    assert losses.item() == pytest.approx(expected, rel=1e-5)
    assert errors.item() == losses.item()


def test_a_quantile_transition_by_hand():
    """Targets 1 + 0.5 * (0, 2) = 1, 2 for quantiles 1, 1: errors 0 and 1, weighted by tau where positive."""
    rule = QuantileRule(2)
    outputs_tm1, outputs_t = torch.ones(1, 2, 2), torch.tensor([[[9.0, 9.0], [0.0, 2.0]]])
    ones = torch.ones(1)
    losses, errors = rule.losses(outputs_tm1, torch.tensor([1]), ones, ones / 2, outputs_t, torch.tensor([1]))
    assert losses.item() == pytest.approx((0.25 + 0.75) * 0.5 / 2)
    assert errors.item() == pytest.approx(0.5)


def slow_losses(name, rule, outputs_tm1, a_tm1, r_t, discount_t, outputs_t, a_t):
    """Losses and errors, one transition and one pair of outputs after the other, in float64."""
    losses, errors = [], []
    for b in range(len(a_tm1)):
        now, then = outputs_tm1[b, a_tm1[b]].double().numpy(), outputs_t[b, a_t[b]].double().numpy()
        r, discount = float(r_t[b]), float(discount_t[b])
        if name == "scalar":
            delta = r + discount * then - now
            losses.append(delta**2 / 2 if abs(delta) <= 1 else abs(delta) - 0.5)
            errors.append(delta)
        elif name == "categorical":
            z = rule.atoms.double().numpy()
            p, q = np.exp(then) / np.exp(then).sum(), np.exp(now) / np.exp(now).sum()
            target = np.zeros(len(z))
            for j, i in np.ndindex(len(z), len(z)):
                shifted = np.clip(r + discount * z[j], z[0], z[-1])
                target[i] += p[j] * max(0, 1 - abs(shifted - z[i]) / (z[1] - z[0]))
            losses.append(sum(m * np.log(m / o) for m, o in zip(target, q, strict=True) if m > 0))
            errors.append(losses[-1])
        else:
            count, total = len(now), 0.0
            for i, j in np.ndindex(count, count):
                delta = r + discount * then[j] - now[i]
                size = delta**2 / 2 if abs(delta) <= 1 else abs(delta) - 0.5
                total += abs((i + 0.5) / count - (delta < 0)) * size / count
            losses.append(total)
            errors.append(r + discount * then.mean() - now.mean())
    return losses, errors


def transitions(atoms, batch=12, actions=3):
    rng = np.random.default_rng(5)
    shape = (batch, actions, atoms) if atoms else (batch, actions)
    outputs_tm1, outputs_t = (torch.tensor(rng.normal(0, 1.5, shape), dtype=torch.float32) for _ in range(2))
    discount_t = torch.tensor(np.where(rng.random(batch) < 0.3, 0, 0.9), dtype=torch.float32)
    a_tm1, a_t = (torch.tensor(rng.integers(actions, size=batch)) for _ in range(2))
    return outputs_tm1, a_tm1, torch.tensor(rng.normal(size=batch), dtype=torch.float32), discount_t, outputs_t, a_t


@pytest.mark.parametrize("name", RULES)
def test_a_slow_loop_agrees(name):
    rule, atoms = RULES[name]
    given = transitions(atoms)
    losses, errors = rule.losses(*given)
    expected_losses, expected_errors = slow_losses(name, rule, *given)
    np.testing.assert_allclose(losses.numpy(), expected_losses, rtol=2e-4, atol=1e-5)
    np.testing.assert_allclose(errors.numpy(), expected_errors, rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize("name", RULES)
def test_only_the_taken_action_gets_a_gradient_and_the_target_none(name):
    rule, atoms = RULES[name]
    outputs_tm1, a_tm1, r_t, discount_t, outputs_t, a_t = transitions(atoms)
    outputs_tm1.requires_grad_()
    outputs_t.requires_grad_()
    losses, errors = rule.losses(outputs_tm1, a_tm1, r_t, discount_t, outputs_t, a_t)
    assert losses.shape == errors.shape == (12,)
    assert not errors.requires_grad
    losses.sum().backward()
    assert outputs_t.grad is None
    touched = (outputs_tm1.grad != 0).view(12, 3, -1).any(dim=2)
    assert touched.sum(dim=1).tolist() == [1] * 12
    assert touched.long().argmax(dim=1).tolist() == a_tm1.tolist()


@pytest.mark.parametrize("name", RULES)
def test_nothing_is_left_to_learn_where_the_target_is_met(name):
    """A terminated transition whose reward is predicted for certain: no loss, no error, no gradient."""
    rule, atoms = RULES[name]
    outputs = {"scalar": [[1.0]], "categorical": [[[0.0, 0.0, 0.0, 99.0, 0.0]]], "quantile": [[[1.0] * 4]]}[name]
    outputs, zero = torch.tensor(outputs, requires_grad=True), torch.tensor([0])
    losses, errors = rule.losses(outputs, zero, torch.ones(1), torch.zeros(1), outputs.detach(), zero)
    losses.sum().backward()
    for value in (losses, errors, outputs.grad):
        torch.testing.assert_close(value, torch.zeros_like(value))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_options_combine(name, double, dueling, weighted):
    """The gradient of every combination is that of the slow loop's loss, by finite differences in one direction."""
    rule, atoms = RULES[name]
    torch.manual_seed(3)
    online, target = (
        Replica(mlp((2, 3), 3, (6,), dueling=False, atoms=atoms) if not dueling else _dueling(atoms), None, 1)
        for _ in range(2)
    )
    rng = np.random.default_rng(3)
    batch = Batch(
        s_tm1=rng.normal(size=(12, 2, 3)).astype(np.float32),
        a_tm1=rng.integers(3, size=12),
        r_t=rng.normal(size=12).astype(np.float32),
        discount_t=np.where(rng.random(12) < 0.3, 0, 0.9**3).astype(np.float32),
        s_t=rng.normal(size=(12, 2, 3)).astype(np.float32),
        weight=rng.random(12).astype(np.float32) if weighted else None,
    )

    def slow_loss() -> float:
        with torch.no_grad():
            outputs_tm1 = online.network(torch.tensor(batch.s_tm1))
            outputs_t = target.network(torch.tensor(batch.s_t))
        losses, _ = slow_losses(name, rule, outputs_tm1, batch.a_tm1, batch.r_t, batch.discount_t, outputs_t, chosen)
        return float(np.mean(losses * (batch.weight if weighted else np.ones(12))))

    with torch.no_grad():
        chooser = (online if double else target).network(torch.tensor(batch.s_t))
        chosen = rule.q(chooser).argmax(dim=1).numpy()
    algorithm = Dqn(online, target, rule=rule, double=double, max_gradient_norm=0.0, dtype=torch.float32)
    loss, _, errors = algorithm.gradient(batch)
    assert loss == pytest.approx(slow_loss(), rel=1e-4)
    assert errors.shape == (12,)
    direction = torch.randn(len(online.flat), generator=torch.Generator().manual_seed(0))
    along, values, step = float(online.flat.gradients @ direction), online.flat.values.clone(), 1e-3
    sides = []
    for sign in (1, -1):
        online.flat.values.copy_(values + sign * step * direction)
        sides.append(slow_loss())
    assert along == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=0.03, abs=0.003)


def _dueling(atoms):
    """Streams straight from the observation, below which there is nothing whose gradient would be scaled."""
    return mlp((2, 3), 3, (6,), dueling=True, atoms=atoms)


def test_rules_by_name():
    options = {"loss": "huber", "atoms": 4, "support": (-1.0, 2.0), "device": "cpu"}
    assert isinstance(make_rule("none", **options), ScalarRule)
    assert make_rule("categorical", **options).atoms.tolist() == [-1, 0, 1, 2]
    assert make_rule("quantile", **options).midpoints.tolist() == [0.125, 0.375, 0.625, 0.875]
    assert [rule.gives_td_errors for rule, _ in RULES.values()] == [True, False, True]
