"""The loss guard: its statistics against NumPy's, what it refuses, and that it opens again."""

import numpy as np
import pytest

from hpcrl.algorithms.gorila import LossGuard


def refused(guard, losses):
    return sum(not guard.accepts(float(loss)) for loss in losses)


def test_statistics_are_plain_ones_at_first_and_exponential_ones_from_there_on():
    losses = np.random.default_rng(0).gamma(2.0, size=60)
    guard = LossGuard(3.0, window=20)
    for n, loss in enumerate(losses, start=1):
        guard.accepts(float(loss))
        if n <= 20:
            expected = losses[:n].mean(), losses[:n].var()
        else:  # the old mean and variance, mixed with the new loss: E and Var of the mixture
            mean = 0.95 * expected[0] + 0.05 * loss
            square = 0.95 * (expected[1] + expected[0] ** 2) + 0.05 * loss**2
            expected = mean, square - mean**2
        assert (guard.mean, guard.variance) == pytest.approx(expected)


def test_nothing_is_refused_before_the_statistics_mean_something():
    assert refused(LossGuard(3.0, window=5), [1.0, 1.0, 1.0, 1.0, 1e9]) == 0
    assert refused(LossGuard(3.0, window=5), [1.0, 1.1, 1.0, 1.1, 1.0, 1e9]) == 1


def test_only_what_lies_far_above_the_mean_is_refused():
    guard = LossGuard(2.0, window=4)
    assert refused(guard, [0.0, 2.0, 0.0, 2.0]) == 0  # mean 1, deviation 1
    for loss, accepted in ((3.0, True), (3.01, False), (0.0, True)):
        twin = LossGuard(2.0, window=4)
        refused(twin, [0.0, 2.0, 0.0, 2.0])
        assert twin.accepts(loss) == accepted


@pytest.mark.parametrize("deviations", [2.0, 5.0])
@pytest.mark.parametrize("scale", [1e3, 1e12])
def test_it_opens_again_after_a_lasting_change_of_scale(deviations, scale):
    rng, guard, window = np.random.default_rng(1), LossGuard(deviations, window=500), 500
    refused(guard, rng.gamma(4.0, size=5000))
    assert refused(guard, scale * rng.gamma(4.0, size=5000)) < 3 * window / (1 + deviations**2) + 5000 * 0.05
    assert refused(guard, scale * rng.gamma(4.0, size=1000)) < 1000 / (1 + deviations**2) / 2
    assert refused(guard, rng.gamma(4.0, size=1000)) == 0  # and back


@pytest.mark.parametrize("deviations", [1.0, 3.0])
def test_no_distribution_has_many_outliers_for_long(deviations):
    """Cantelli: at most 1 in 1 + k^2, here for the worst of all, with two values of which one is rare."""
    rng, share = np.random.default_rng(2), 1 / (1 + deviations**2)
    for rarity in (0.5, 0.9, 1.0, 1.1):
        losses = rng.random(30_000) < share * rarity
        assert refused(LossGuard(deviations, window=1000), losses) <= 30_000 * share * 1.1


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_and_leaves_no_trace(broken):
    guard = LossGuard(3.0, window=3)
    for loss in (1.0, broken, 1.5, broken, 1.2, broken, 1.1):
        assert guard.accepts(loss) == np.isfinite(loss)
    assert np.isfinite(guard.mean)


def test_a_restored_guard_judges_as_if_it_had_not_been_stopped():
    guard, other = LossGuard(deviations=1.0, window=20), LossGuard(deviations=1.0, window=20)
    losses = np.random.default_rng(0).exponential(size=200)
    for loss in losses[:50]:
        guard.accepts(loss)
    other.restore(guard.state())
    assert [guard.accepts(loss) for loss in losses[50:]] == [other.accepts(loss) for loss in losses[50:]]
