"""Distributions, losses and acting: by hand, against torch's own distributions, and by their frequencies."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributions import Categorical as TorchCategorical
from torch.distributions import Independent, Normal

from hpcrl.algorithms.policy_gradient import (
    Categorical,
    DiagonalGaussian,
    EvaluationPolicy,
    SampledPolicy,
    clipped_surrogate,
)

RNG = np.random.default_rng


def outputs_and_twin(kind, batch=64, size=3):
    """A distribution of ours, random outputs, torch's own, and actions."""
    torch.manual_seed(0)
    if kind == "categorical":
        outputs = torch.randn(batch, size, dtype=torch.float64)
        twin = TorchCategorical(logits=outputs)
        return Categorical(size), outputs, twin, twin.sample()
    outputs = torch.randn(batch, 2 * size, dtype=torch.float64)
    mean, log_deviation = outputs.chunk(2, dim=1)
    twin = Independent(Normal(mean, log_deviation.exp()), 1)
    return DiagonalGaussian(size), outputs, twin, twin.sample()


@pytest.mark.parametrize("kind", ["categorical", "gaussian"])
def test_probability_and_entropy_are_those_of_torch(kind):
    ours, outputs, twin, action = outputs_and_twin(kind)
    assert outputs.shape[1] == ours.outputs
    torch.testing.assert_close(ours.log_probability(outputs, action), twin.log_prob(action))
    torch.testing.assert_close(ours.entropy(outputs), twin.entropy())


def test_categorical_by_hand():
    ours, outputs = Categorical(2), torch.tensor([[math.log(3.0), 0.0]])
    assert ours.log_probability(outputs, torch.tensor([0])).item() == pytest.approx(math.log(0.75))
    assert ours.entropy(outputs).item() == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))
    assert ours.mode(outputs).tolist() == [0]


def test_the_gradient_of_a_log_probability_is_one_hot_less_probabilities():
    logits = torch.tensor([[1.0, 0.0, -1.0]], requires_grad=True)
    Categorical(3).log_probability(logits, torch.tensor([1])).sum().backward()
    expected = torch.tensor([[0.0, 1.0, 0.0]]) - logits.detach().softmax(dim=1)
    torch.testing.assert_close(logits.grad, expected)


def test_the_gradient_of_a_gaussian_log_probability():
    """d/d mu = (a - mu) / sigma^2 and d/d log sigma = z^2 - 1."""
    outputs = torch.tensor([[1.0, math.log(2.0)]], requires_grad=True)
    DiagonalGaussian(1).log_probability(outputs, torch.tensor([[4.0]])).sum().backward()
    torch.testing.assert_close(outputs.grad, torch.tensor([[3.0 / 4.0, 1.5**2 - 1]]))


def test_categorical_actions_are_as_frequent_as_they_are_probable():
    logits = torch.tensor([[2.0, 0.0, -1.0, 0.5]])
    draws = 40_000
    actions = Categorical(4).sample(logits.expand(draws, 4), RNG(0))
    expected = draws * logits.softmax(dim=1)[0].numpy()
    chi_square = ((np.bincount(actions, minlength=4) - expected) ** 2 / expected).sum()
    assert chi_square < 30.7  # p = 1e-6 with 3 degrees of freedom


def test_gaussian_actions_have_mean_and_deviation():
    outputs, draws = torch.tensor([[1.0, -2.0, math.log(0.5), math.log(3.0)]]), 40_000
    actions = DiagonalGaussian(2).sample(outputs.expand(draws, 4), RNG(0)).numpy()
    error = np.array([0.5, 3.0]) / math.sqrt(draws)
    assert (abs(actions.mean(axis=0) - [1, -2]) < 5 * error).all()
    assert (abs(actions.std(axis=0) - [0.5, 3.0]) < 5 * error).all()


def test_the_clipped_surrogate_by_hand():
    """Ratios 1.5 and 0.5 with either sign of the advantage; what goes further in its direction is cut at 1 +- 0.2."""
    log_ratio = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0]).log()
    advantage = torch.tensor([2.0, -2.0, 2.0, -2.0, 3.0])
    loss = clipped_surrogate(log_ratio, advantage, 0.2)
    torch.testing.assert_close(loss, torch.tensor([-1.2 * 2, 1.5 * 2, -0.5 * 2, 0.8 * 2, -3.0]))


def test_at_ratio_one_the_gradient_of_the_surrogate_is_the_policy_gradient():
    log_ratio, advantage = torch.zeros(4, requires_grad=True), torch.tensor([1.0, -2.0, 0.5, 0.0])
    clipped_surrogate(log_ratio, advantage, 0.1).sum().backward()
    torch.testing.assert_close(log_ratio.grad, -advantage)


def test_beyond_the_clip_there_is_no_gradient():
    log_ratio = torch.tensor([0.5, -0.5, 0.5, -0.5], requires_grad=True)
    clipped_surrogate(log_ratio, torch.tensor([1.0, -1.0, -1.0, 1.0]), 0.1).sum().backward()
    assert (log_ratio.grad != 0).tolist() == [False, False, True, True]


class Fixed(torch.nn.Module):
    """Outputs that do not depend on the observation, and the sum of the observation as value."""

    def __init__(self, outputs):
        super().__init__()
        self.outputs = torch.tensor(outputs)

    def forward(self, observation):
        return self.outputs.expand(len(observation), -1), observation.flatten(1).sum(dim=1)


def replica(outputs):
    return SimpleNamespace(network=Fixed(outputs), device="cpu")


def test_decisions_carry_their_probability_and_value():
    policy = SampledPolicy(replica([1.0, 0.0, -1.0]), Categorical(3), RNG(0), torch.float32)
    observation = np.arange(8, dtype=np.float32).reshape(4, 1, 2)
    decision = policy.decide(observation)
    logits = torch.tensor([1.0, 0.0, -1.0]).log_softmax(dim=0).numpy()
    np.testing.assert_allclose(decision.log_probability, logits[decision.action], rtol=1e-6)
    np.testing.assert_array_equal(decision.value, [1, 5, 9, 13])
    np.testing.assert_array_equal(policy.value(observation), [1, 5, 9, 13])
    assert (decision.action.dtype, decision.log_probability.dtype) == (np.int64, np.float32)


def test_all_of_a_decision_is_computed_by_the_threads_of_its_passes():
    seen, before = [], torch.get_num_threads()

    class Counting(Categorical):
        def sample(self, outputs, rng):
            seen.append(torch.get_num_threads())
            return super().sample(outputs, rng)

    for threads in (0, 1, 2):
        policy = SampledPolicy(replica([1.0, 0.0, -1.0]), Counting(3), RNG(0), torch.float32, threads)
        policy.decide(np.zeros((2, 1), np.float32))
    assert seen == [before, 1, 1]
    assert torch.get_num_threads() == before


def test_evaluation_takes_the_mode_or_draws_or_is_random():
    def actions(draws, epsilon):
        policy = EvaluationPolicy(replica([3.0, 0.0]), Categorical(2), RNG(0), torch.float32, draws=draws)
        return policy.act(np.zeros((4000, 1, 1), np.float32), epsilon).mean()

    assert actions(draws=False, epsilon=0.0) == 0
    assert actions(draws=True, epsilon=0.0) == pytest.approx(1 / (1 + math.exp(3)), abs=0.02)
    assert actions(draws=False, epsilon=1.0) == pytest.approx(0.5, abs=0.04)


def test_a_continuous_evaluation_plays_its_means():
    policy = EvaluationPolicy(replica([0.25, -0.5]), DiagonalGaussian(1), RNG(0), torch.float32, draws=False)
    assert policy.act(np.zeros((3, 1, 1), np.float32), 0.0).tolist() == [[0.25]] * 3
