"""Multi-step asynchronous Adam: the formulas of its page, by hand and for every number of steps."""

import numpy as np
import pytest
import torch

from hpcrl.algorithms.multi_step_adam import AsynchronousAdam, MultiStepAdam

BETAS, EPSILON, RATE = (0.8, 0.9), 1e-2, 0.1


def gradients(learner, count):
    return np.random.default_rng(learner).normal(size=(count, 4))


def plain_adam(theta, found):
    """Parameters and moments after each gradient, in float64, as on the page."""
    m, v = np.zeros_like(theta), np.zeros_like(theta)
    for t, g in enumerate(found, start=1):
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g**2
        theta = theta - RATE * np.sqrt(1 - BETAS[1] ** t) / (1 - BETAS[0] ** t) * m / (np.sqrt(v) + EPSILON)
    return theta, m, v


def merge(learner, central):
    learner.merge(0, 2, *(vector[:2] for vector in central))
    learner.merge(2, 4, *(vector[2:] for vector in central))
    learner.begin()


def test_its_rule_is_the_page_s():
    values, rule = torch.ones(4), AsynchronousAdam(EPSILON, BETAS)
    state = rule.start(values)
    for g in gradients(0, 5):
        rule.apply(values, torch.from_numpy(g).float(), state, RATE)
    theta, m, v = plain_adam(np.ones(4), gradients(0, 5))
    np.testing.assert_allclose(values, theta, rtol=1e-5)
    np.testing.assert_allclose(state["exp_avg"], m, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(state["exp_avg_sq"], v, rtol=1e-5)
    assert state["step"] == 5


@pytest.mark.parametrize("lengths", [[1] * 12, [3] * 4, [12], [5, 1, 4, 2]])
def test_alone_it_is_plain_adam_however_many_steps_are_merged(lengths):
    central = torch.ones(4), torch.zeros(4), torch.zeros(4)
    learner, number = MultiStepAdam(torch.ones(4), AsynchronousAdam(EPSILON, BETAS)), 0
    found = gradients(1, 12)
    for length in lengths:
        for g in found[number : number + length]:
            learner.step(torch.from_numpy(g).float(), RATE)
        number += length
        merge(learner, central)
        theta, m, v = plain_adam(np.ones(4), found[:number])
        for ours, exact in zip(central, (theta, m, v), strict=True):
            np.testing.assert_allclose(ours, exact, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(learner.values, central[0])
        torch.testing.assert_close(learner.state["exp_avg_sq"], central[2])


def test_central_moments_of_several_decay_with_every_gradient_of_each():
    central = torch.ones(4), torch.zeros(4), torch.zeros(4)
    learners = [MultiStepAdam(torch.ones(4), AsynchronousAdam(EPSILON, BETAS)) for _ in range(2)]
    found = [gradients(2, 6), gradients(3, 6)]
    m, v = np.zeros(4), np.zeros(4)
    for group in range(3):
        for learner, mine in zip(learners, found, strict=True):
            for g in mine[2 * group : 2 * group + 2]:
                learner.step(torch.from_numpy(g).float(), RATE)
                m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g**2
            merge(learner, central)
    np.testing.assert_allclose(central[1], m, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(central[2], v, rtol=1e-4, atol=1e-6)
