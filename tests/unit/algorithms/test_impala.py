"""IMPALA and GA3C: their gradients against a loop by hand, on the policy and off it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcrl.algorithms.a2c import A2c, Experience
from hpcrl.algorithms.impala import Ga3c, Impala, Trajectories
from hpcrl.algorithms.policy_gradient import Categorical, SampledPolicy
from hpcrl.algorithms.returns import generalized_advantages
from hpcrl.networks import FlatParameters, make_policy_network

STEPS, SIMULATORS, GAMMA = 7, 3, 0.9
WEIGHTS = {"value_weight": 0.3, "entropy_weight": 0.02, "dtype": torch.float32, "normalizes": False}


def make(kind=Impala, *, max_gradient_norm=0.0, seed=0):
    """An algorithm on a small network, and trajectories of its own policy, with ends and a step that only resets."""
    torch.manual_seed(seed)
    network = make_policy_network("mlp", (16,), (1, 5), 3, np.float32)
    for p in network.parameters():
        torch.nn.init.normal_(p, std=0.5)
    online = SimpleNamespace(network=network, flat=FlatParameters(network), device="cpu")
    further = {} if kind is A2c else {"trace_decay": 1.0}
    algorithm = kind(online, Categorical(3), max_gradient_norm=max_gradient_norm, **WEIGHTS, **further)
    rng = np.random.default_rng(seed)
    observation = rng.normal(size=(STEPS + 1, SIMULATORS, 1, 5)).astype(np.float32)
    policy = SampledPolicy(online, Categorical(3), rng, torch.float32)
    decisions = [policy.decide(row) for row in observation[:-1]]
    discount, goes_on = (np.full((STEPS, SIMULATORS), x, np.float32) for x in (GAMMA, 1))
    valid = np.ones((STEPS, SIMULATORS), bool)
    discount[2, 0] = goes_on[2, 0] = 0  # terminated
    goes_on[4, 1], valid[5, 1] = 0, False  # truncated, and reset in the step after
    trajectories = Trajectories(
        observation,
        np.stack([d.action for d in decisions]),
        np.stack([d.log_probability for d in decisions]),
        rng.normal(size=(STEPS, SIMULATORS)).astype(np.float32),
        discount,
        goes_on,
        valid,
    )
    return algorithm, trajectories


def move(algorithm):
    algorithm.online.flat.values.add_(0.3 * torch.randn(len(algorithm.online.flat.values)))


def by_hand(algorithm, trajectories, corrects):
    """Gradient of the summed loss: equation 1 of the paper, term by term, for each step of each simulator."""
    network, loss = algorithm.online.network, 0.0
    for e in range(SIMULATORS):
        outputs, value = network(torch.from_numpy(trajectories.observation[:, e]))
        log_pi = torch.log_softmax(outputs, dim=1)
        entropy = -(log_pi.exp() * log_pi).sum(dim=1)
        v, taken = value.detach().numpy(), trajectories.action[:, e]
        ratio = np.exp(log_pi.detach().numpy()[np.arange(STEPS), taken] - trajectories.log_probability[:, e])
        rho = np.minimum(ratio, 1) if corrects else np.ones(STEPS)
        reward, discount, goes_on = (
            a[:, e] for a in (trajectories.reward, trajectories.discount, trajectories.goes_on)
        )

        def target(t, v=v, rho=rho, reward=reward, discount=discount, goes_on=goes_on):
            total, factor = v[t], 1.0
            for k in range(t, STEPS):
                total += factor * rho[k] * (reward[k] + discount[k] * v[k + 1] - v[k])
                factor *= discount[k] * rho[k]
                if not goes_on[k]:
                    break
            return total

        for t in range(STEPS):
            if not trajectories.valid[t, e]:
                continue
            ahead = target(t + 1) if goes_on[t] and t + 1 < STEPS else v[t + 1]
            advantage = rho[t] * (reward[t] + discount[t] * ahead - v[t])
            loss = loss - log_pi[t, taken[t]] * float(advantage) - 0.02 * entropy[t]
            loss = loss + 0.3 * 0.5 * (value[t] - float(target(t))) ** 2
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return torch.cat([g.reshape(-1) for g in gradients])


@pytest.mark.parametrize(("kind", "corrects"), [(Impala, True), (Ga3c, False)])
def test_the_gradient_is_that_of_the_summed_loss(kind, corrects):
    algorithm, trajectories = make(kind)
    move(algorithm)
    losses = algorithm.gradient(trajectories)
    gradient = algorithm.online.flat.gradients
    torch.testing.assert_close(gradient, by_hand(algorithm, trajectories, corrects), rtol=1e-4, atol=1e-5)
    assert losses.gradient_norm == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert losses.kl > 0


@pytest.mark.parametrize("kind", [Impala, Ga3c])
def test_on_the_policy_both_are_a2c_summed_over_the_steps(kind):
    algorithm, trajectories = make(kind)
    losses = algorithm.gradient(trajectories)
    assert losses.kl == pytest.approx(0, abs=1e-6)
    a2c, same = make(A2c)
    with torch.no_grad():
        rows = torch.from_numpy(same.observation.reshape(-1, 1, 5))
        value = a2c.online.network(rows)[1].numpy().reshape(STEPS + 1, SIMULATORS)
    advantage = generalized_advantages(same.reward, same.discount, same.goes_on, value, 1.0)
    arrays = same.observation[:-1], same.action, same.log_probability, advantage, advantage + value[:-1]
    experience = Experience(*(array.reshape(-1, *array.shape[2:]) for array in arrays))
    a2c.gradient(experience.take(np.flatnonzero(same.valid)))
    steps = np.count_nonzero(same.valid)
    torch.testing.assert_close(algorithm.online.flat.gradients, steps * a2c.online.flat.gradients, rtol=1e-4, atol=1e-5)


def test_off_the_policy_they_differ():
    gradients = []
    for kind in (Impala, Ga3c):
        algorithm, trajectories = make(kind)
        move(algorithm)
        algorithm.gradient(trajectories)
        gradients.append(algorithm.online.flat.gradients.clone())
    assert (gradients[0] - gradients[1]).norm() > 0.05 * gradients[0].norm()


def test_a_step_that_only_resets_teaches_nothing():
    algorithm, trajectories = make()
    algorithm.gradient(trajectories)
    gradient = algorithm.online.flat.gradients.clone()
    trajectories.reward[5, 1], trajectories.action[5, 1] = 100.0, 2
    algorithm.gradient(trajectories)
    torch.testing.assert_close(algorithm.online.flat.gradients, gradient)


def test_trajectories_learned_from_together_add_up():
    algorithm, one = make()
    _, two = make(seed=1)
    total = torch.zeros_like(algorithm.online.flat.gradients)
    for trajectories in (one, two):
        algorithm.gradient(trajectories)
        total += algorithm.online.flat.gradients
    algorithm.gradient(Trajectories.join([one, two]))
    torch.testing.assert_close(algorithm.online.flat.gradients, total, rtol=1e-4, atol=1e-5)


def test_the_whole_gradient_is_clipped_to_its_norm():
    algorithm, trajectories = make(max_gradient_norm=0.05)
    assert algorithm.gradient(trajectories).gradient_norm > 0.05
    assert algorithm.online.flat.gradients.norm().item() == pytest.approx(0.05, rel=1e-4)
