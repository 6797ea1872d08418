"""Distributions of returns: by hand, against slow loops, mass and gradients."""

import numpy as np
import pytest
import torch

from hpcrl.algorithms.distributional import (
    categorical_projection,
    kl_divergence,
    quantile_huber_loss,
    quantile_midpoints,
    taken,
)

ATOMS = torch.tensor([-1.0, 0.0, 1.0, 2.0])


def distributions(*shape, dtype=torch.float64, seed=0):
    return torch.tensor(np.random.default_rng(seed).dirichlet(np.ones(shape[-1]), shape[:-1]), dtype=dtype)


def test_outputs_of_the_taken_action():
    outputs = torch.arange(12).view(2, 3, 2)
    assert taken(outputs, torch.tensor([2, 0])).tolist() == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([-1.0, 0.0, 1.0, 2.0], [0.1, 0.2, 0.3, 0.4]),  # every return on an atom: nothing moves, nothing is lost
        ([0.0, 1.0, 2.0, 3.0], [0.0, 0.1, 0.2, 0.7]),  # shifted by one atom, the last beyond the end
        ([-0.5, 0.5, 1.5, 2.5], [0.05, 0.15, 0.25, 0.55]),  # half of each to either side
        ([0.25, 0.25, 0.25, 0.25], [0.0, 0.75, 0.25, 0.0]),  # the nearer neighbour gets more
        ([-9.0, -9.0, 9.0, 9.0], [0.3, 0.0, 0.0, 0.7]),  # beyond both ends
        ([2.0, 2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 1.0]),  # terminated: all atoms at the reward, which is the last one
    ],
)
def test_projection_by_hand(returns, expected):
    p = torch.tensor([[0.1, 0.2, 0.3, 0.4]])
    torch.testing.assert_close(categorical_projection(torch.tensor([returns]), p, ATOMS), torch.tensor([expected]))


def slow_projection(returns, p, atoms):
    """``sum_j p_j clip(1 - |clip(z'_j) - z_i| / dz, 0, 1)`` for every sample and atom: hats instead of neighbours."""
    width = (atoms[-1] - atoms[0]) / (len(atoms) - 1)
    projected = np.zeros(p.shape)
    for b, i, j in np.ndindex(*p.shape, len(atoms)):
        z = min(max(returns[b, j], atoms[0]), atoms[-1])
        projected[b, i] += p[b, j] * max(0.0, 1 - abs(z - atoms[i]) / width)
    return projected


def test_a_slow_projection_agrees():
    atoms, p = torch.linspace(-10, 10, 51, dtype=torch.float64), distributions(8, 51)
    returns = torch.tensor(np.random.default_rng(1).normal(0, 8, (8, 51)))
    expected = slow_projection(returns.numpy(), p.numpy(), atoms.numpy())
    np.testing.assert_allclose(categorical_projection(returns, p, atoms).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("low", "high", "atoms"), [(-10, 10, 51), (-1, 1, 3), (0, 7, 29), (-10, 10, 101)])
def test_no_mass_is_lost_in_float32(low, high, atoms):
    """Returns shifted onto atoms, between them and beyond the ends, with the rounding errors of float32."""
    z, p = torch.linspace(low, high, atoms), distributions(500, atoms, dtype=torch.float32)
    width = (high - low) / (atoms - 1)
    shifts = torch.arange(500, dtype=torch.float32)[:, None] % (2 * atoms) - atoms
    for discount in (1.0, 0.99, 0.5, 0.0):
        projected = categorical_projection(shifts * width + discount * z, p, z)
        torch.testing.assert_close(projected.sum(dim=1), p.sum(dim=1), rtol=0, atol=2e-6)
        assert projected.min() >= 0
    shifted = categorical_projection((width + z).expand_as(p), p, z)[:, 1:-1]
    torch.testing.assert_close(shifted, p[:, :-2], rtol=0, atol=1e-5)


def test_divergence_by_hand():
    target = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.2, 0.3, 0.5]])
    p = torch.tensor([[0.25, 0.25, 0.5], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]])
    torch.testing.assert_close(kl_divergence(target, p.log()), torch.tensor([np.log(2.0), np.log(10.0), 0.0]).float())


def test_the_gradient_of_the_divergence_is_prediction_minus_target():
    logits = torch.randn(6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target = distributions(6, 9)
    kl_divergence(target, logits.log_softmax(dim=1)).sum().backward()
    torch.testing.assert_close(logits.grad, logits.detach().softmax(dim=1) - target)
    assert torch.autograd.gradcheck(lambda x: kl_divergence(target, x.log_softmax(dim=1)), (logits,))


def test_midpoints_by_hand():
    assert quantile_midpoints(4).tolist() == [0.125, 0.375, 0.625, 0.875]


def test_quantile_loss_by_hand():
    """Quantiles 0 and 1 at 1/4 and 3/4; targets 0.5 and -3: errors 0.5, -3 and -0.5, -4."""
    loss = quantile_huber_loss(torch.tensor([[0.0, 1.0]]), quantile_midpoints(2), torch.tensor([[0.5, -3.0]]))
    below = (0.25 * 0.125 + 0.75 * 2.5) / 2
    above = (0.25 * 0.125 + 0.25 * 3.5) / 2
    torch.testing.assert_close(loss, torch.tensor([below + above]))


def slow_quantile_loss(quantiles, tau, target):
    losses = np.zeros(len(quantiles))
    for b, i, j in np.ndindex(*quantiles.shape, target.shape[1]):
        delta = target[b, j] - quantiles[b, i]
        size = delta**2 / 2 if abs(delta) <= 1 else abs(delta) - 0.5
        losses[b] += abs(tau[i] - (delta < 0)) * size / target.shape[1]
    return losses


def random_quantiles(batch=6, quantiles=5, targets=7):
    rng = np.random.default_rng(2)
    return torch.tensor(rng.normal(0, 2, (batch, quantiles))), torch.tensor(rng.normal(0, 2, (batch, targets)))


def test_a_slow_quantile_loss_agrees():
    quantiles, target = random_quantiles()
    tau = quantile_midpoints(5).double()
    expected = slow_quantile_loss(quantiles.numpy(), tau.numpy(), target.numpy())
    np.testing.assert_allclose(quantile_huber_loss(quantiles, tau, target).numpy(), expected, rtol=1e-12)


def test_gradients_of_the_quantile_loss_by_finite_differences():
    quantiles, target = random_quantiles(batch=3)
    delta = target[:, None] - quantiles[:, :, None]
    assert min(delta.abs().min(), (delta.abs() - 1).abs().min()) > 1e-5  # none near a kink
    tau = quantile_midpoints(5).double()
    assert torch.autograd.gradcheck(lambda q: quantile_huber_loss(q, tau, target), (quantiles.requires_grad_(),))


def test_quantile_regression_finds_the_quantiles_of_a_distribution():
    """The minimum over one sample is where a share tau of it lies below each quantile, up to Huber's rounding."""
    sample = torch.tensor(np.random.default_rng(3).normal(0, 50, (1, 400)))
    tau, found = quantile_midpoints(4).double(), torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([found], lr=1.0)
    for _ in range(600):
        optimizer.zero_grad()
        quantile_huber_loss(found, tau, sample).sum().backward()
        optimizer.step()
    torch.testing.assert_close(found.detach()[0], torch.quantile(sample[0], tau), rtol=0, atol=2.0)
