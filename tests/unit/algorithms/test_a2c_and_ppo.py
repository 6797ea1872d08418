"""Gradients of A2C and PPO: against a loss written out by hand, and what PPO ignores."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcrl.algorithms.a2c import A2c, Experience, gradient_diversity
from hpcrl.algorithms.policy_gradient import Categorical, DiagonalGaussian, SampledPolicy
from hpcrl.algorithms.ppo import Ppo
from hpcrl.networks import FlatParameters, make_policy_network

WEIGHTS = {"value_weight": 0.3, "entropy_weight": 0.02, "dtype": torch.float32}


def make(kind=Ppo, *, continuous=False, clip=0.2, normalizes=False, max_gradient_norm=0.0, seed=0):
    """An algorithm on a small network, and experience that its own policy gathered."""
    torch.manual_seed(seed)
    network = make_policy_network("mlp", (16,), (1, 5), 3, np.float32, continuous)
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.5)
    online = SimpleNamespace(network=network, flat=FlatParameters(network), device="cpu")
    distribution = (DiagonalGaussian if continuous else Categorical)(3)
    further = {"clip": lambda: clip} if kind is Ppo else {}
    algorithm = kind(
        online, distribution, normalizes=normalizes, max_gradient_norm=max_gradient_norm, **WEIGHTS, **further
    )
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(40, 1, 5)).astype(np.float32)
    decision = SampledPolicy(online, distribution, rng, torch.float32).decide(observation)
    advantage, target = rng.normal(size=(2, 40)).astype(np.float32)
    return algorithm, Experience(observation, decision.action, decision.log_probability, advantage, target)


def by_hand(algorithm, experience, clip):
    """Gradient of the loss of the paper, each step by itself, on torch's own distributions."""
    network, continuous = algorithm.online.network, isinstance(algorithm.distribution, DiagonalGaussian)
    loss = 0.0
    for observation, action, log_mu, advantage, target in zip(*experience, strict=True):
        outputs, value = network(torch.from_numpy(observation)[None])
        if continuous:
            twin = torch.distributions.Normal(outputs[0, :3], outputs[0, 3:].exp())
        else:
            twin = torch.distributions.Categorical(logits=outputs[0])
        log_pi, entropy = twin.log_prob(torch.as_tensor(action)).sum(), twin.entropy().sum()
        if clip is None:
            policy_loss = -log_pi * advantage
        else:
            ratio = torch.exp(log_pi - log_mu)
            policy_loss = -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        loss = loss + policy_loss + 0.3 * 0.5 * (value[0] - target) ** 2 - 0.02 * entropy
    gradients = torch.autograd.grad(loss / len(experience.advantage), list(network.parameters()))
    return torch.cat([g.reshape(-1) for g in gradients])


def move(algorithm, amount=0.3):
    """Give the learner another policy than the one that acted."""
    algorithm.online.flat.values.add_(amount * torch.randn(len(algorithm.online.flat.values)))


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize(("kind", "clip"), [(A2c, None), (Ppo, 0.2)])
def test_the_gradient_is_that_of_the_loss(kind, clip, continuous):
    algorithm, experience = make(kind, continuous=continuous)
    move(algorithm)
    losses = algorithm.gradient(experience)
    torch.testing.assert_close(
        algorithm.online.flat.gradients, by_hand(algorithm, experience, clip), rtol=1e-4, atol=1e-6
    )
    assert losses.gradient_norm == pytest.approx(algorithm.online.flat.gradients.norm().item(), rel=1e-5)
    if kind is Ppo:
        assert losses.clipped > 0


@pytest.mark.parametrize("continuous", [False, True])
def test_in_the_first_epoch_all_ratios_are_one(continuous):
    """So the first gradient of PPO is that of A2C."""
    algorithm, experience = make(Ppo, continuous=continuous)
    losses = algorithm.gradient(experience)
    assert losses.kl == pytest.approx(0, abs=1e-6)
    assert losses.clipped == 0
    assert losses.policy_loss == pytest.approx(-experience.advantage.mean(), abs=1e-5)
    gradient = algorithm.online.flat.gradients.clone()
    a2c, same = make(A2c, continuous=continuous)
    a2c.gradient(same)
    torch.testing.assert_close(a2c.online.flat.gradients, gradient, rtol=1e-4, atol=1e-6)


def test_advantages_are_normalized_in_the_gradient():
    algorithm, experience = make(normalizes=True)
    algorithm.gradient(experience)
    gradient = algorithm.online.flat.gradients.clone()
    algorithm.gradient(experience._replace(advantage=5 + 3 * experience.advantage))
    torch.testing.assert_close(algorithm.online.flat.gradients, gradient, rtol=1e-3, atol=1e-5)


def test_the_whole_gradient_is_clipped_to_its_norm():
    algorithm, experience = make(max_gradient_norm=0.05)
    assert algorithm.gradient(experience).gradient_norm > 0.05
    assert algorithm.online.flat.gradients.norm().item() == pytest.approx(0.05, rel=1e-4)


def test_one_step_has_an_advantage_of_zero_when_normalized():
    algorithm, experience = make(normalizes=True)
    losses = algorithm.gradient(experience.take(np.array([3])))
    assert losses.policy_loss == 0
    assert np.isfinite(losses.loss)


def test_taking_rows():
    _, experience = make()
    some = experience.take(np.array([5, 1]))
    np.testing.assert_array_equal(some.advantage, experience.advantage[[5, 1]])
    assert some.observation.shape == (2, 1, 5)


@pytest.mark.parametrize("kind", [A2c, Ppo])
@pytest.mark.parametrize("steps", [40, 7])
def test_two_halves_make_the_same_gradient_and_tell_their_diversity(kind, steps):
    algorithm, experience = make(kind, normalizes=True)
    move(algorithm)
    experience = experience.take(np.arange(steps))
    whole = algorithm.gradient(experience)
    gradient = algorithm.online.flat.gradients.clone()
    assert np.isnan(whole.diversity)
    algorithm.compares_halves = True
    halves = algorithm.gradient(experience)
    torch.testing.assert_close(algorithm.online.flat.gradients, gradient, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(halves[:8], whole[:8], rtol=1e-4, atol=1e-6)
    assert halves.diversity >= 0.5


def test_diversity_by_hand():
    x, y = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert gradient_diversity(x, x) == 0.5
    assert gradient_diversity(x, y) == 1.0
    assert gradient_diversity(x, -0.5 * x) == pytest.approx(5.0)
