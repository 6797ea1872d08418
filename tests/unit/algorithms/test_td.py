"""Temporal-difference errors and losses: by hand, against a slow loop, and their gradients."""

import numpy as np
import pytest
import torch

from hpcrl.algorithms.td import (
    LOSSES,
    huber,
    q_learning_target,
    squared,
    td_error,
)


def test_target_by_hand():
    """The target network values the action that itself (DQN) or the online network (Double DQN) chose."""
    r_t, discount_t = torch.tensor([1.0, -1.0, 0.5]), torch.tensor([0.9, 0.0, 0.5])  # the second one terminated
    q_target_t = torch.tensor([[2.0, 3.0], [100.0, 50.0], [7.0, -2.0]])
    plain = q_learning_target(r_t, discount_t, q_target_t, q_target_t.argmax(dim=1))
    torch.testing.assert_close(plain, torch.tensor([1 + 0.9 * 3, -1.0, 0.5 + 0.5 * 7]))
    q_online_t = torch.tensor([[9.0, 0.0], [0.0, 1.0], [-4.0, -2.0]])
    double = q_learning_target(r_t, discount_t, q_target_t, q_online_t.argmax(dim=1))
    torch.testing.assert_close(double, torch.tensor([1 + 0.9 * 2, -1.0, 0.5 + 0.5 * -2]))


def test_td_error_by_hand():
    q_tm1 = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    delta = td_error(q_tm1, torch.tensor([2, 0]), torch.tensor([3.5, 1.0]))
    assert delta.tolist() == [0.5, -3.0]


def test_losses_by_hand():
    delta = torch.tensor([-3.0, -1.0, -0.5, 0.0, 0.25, 1.0, 2.0])
    assert huber(delta).tolist() == [2.5, 0.5, 0.125, 0.0, 0.03125, 0.5, 1.5]
    assert squared(delta).tolist() == [4.5, 0.5, 0.125, 0.0, 0.03125, 0.5, 2.0]


def slow_losses(name, q_tm1, a_tm1, r_t, discount_t, q_target_t):
    """The loss of each transition, one after the other."""
    losses = []
    for b in range(len(a_tm1)):
        best = max(float(q) for q in q_target_t[b])
        delta = float(r_t[b]) + float(discount_t[b]) * best - float(q_tm1[b][a_tm1[b]])
        losses.append(abs(delta) - 0.5 if name == "huber" and abs(delta) > 1 else delta**2 / 2)
    return losses


def random_batch(dtype=torch.float64, batch=64, actions=5):
    rng = np.random.default_rng(0)
    q_tm1, q_target_t = (torch.tensor(rng.normal(0, 2, (batch, actions)), dtype=dtype) for _ in range(2))
    r_t, discount_t = torch.tensor(rng.normal(size=batch), dtype=dtype), torch.tensor(rng.random(batch), dtype=dtype)
    return q_tm1, torch.tensor(rng.integers(actions, size=batch)), r_t, discount_t, q_target_t


@pytest.mark.parametrize("name", LOSSES)
def test_a_slow_loop_agrees(name):
    batch = random_batch()
    q_tm1, a_tm1, r_t, discount_t, q_target_t = batch
    loss = LOSSES[name](
        td_error(q_tm1, a_tm1, q_learning_target(r_t, discount_t, q_target_t, q_target_t.argmax(dim=1)))
    )
    np.testing.assert_allclose(loss.numpy(), slow_losses(name, *batch), rtol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_gradients_by_finite_differences(name):
    q_tm1, a_tm1, r_t, discount_t, q_target_t = random_batch(batch=8)
    target = q_learning_target(r_t, discount_t, q_target_t, q_target_t.argmax(dim=1))
    assert (td_error(q_tm1, a_tm1, target).abs() - 1).abs().min() > 1e-4  # none near the kink
    q_tm1.requires_grad_()
    assert torch.autograd.gradcheck(lambda q: LOSSES[name](td_error(q, a_tm1, target)), (q_tm1,))


def test_the_gradient_of_huber_is_the_clipped_error():
    delta = torch.linspace(-3, 3, 25, dtype=torch.float64, requires_grad=True)
    huber(delta).sum().backward()
    torch.testing.assert_close(delta.grad, delta.detach().clamp(-1, 1))


def test_only_the_taken_action_gets_a_gradient_and_the_target_none():
    q_tm1, a_tm1, r_t, discount_t, q_target_t = random_batch(batch=8)
    q_tm1.requires_grad_()
    q_target_t.requires_grad_()
    target = q_learning_target(r_t, discount_t, q_target_t, q_target_t.argmax(dim=1))
    squared(td_error(q_tm1, a_tm1, target)).sum().backward()
    assert q_target_t.grad is None
    assert (q_tm1.grad != 0).sum(dim=1).tolist() == [1] * 8
    assert (q_tm1.grad != 0).long().argmax(dim=1).tolist() == a_tm1.tolist()
