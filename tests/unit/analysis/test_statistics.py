"""Aggregates over runs and games, by hand and against what rliable makes of the same scores."""

import numpy as np
import pytest

from hpcrl.analysis.statistics import (
    AGGREGATES,
    bootstrap,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    probability_of_improvement,
)

SCORES = np.array([[0.0, 1.0, 4.0], [0.2, 3.0, 8.0]])
OTHERS = np.array([[0.1, 1.0, 9.0], [0.1, 2.0, 9.0], [0.3, 3.0, 9.0]])
RNG = np.random.default_rng(3)
MANY = RNG.gamma(2.0, 0.5, (5, 11)), RNG.gamma(2.5, 0.5, (4, 11))


def test_aggregates_by_hand():
    assert mean(SCORES) == pytest.approx(16.2 / 6)
    assert median(SCORES) == pytest.approx(2.0)  # of 0.1, 2, 6
    assert interquartile_mean(SCORES) == pytest.approx((0.2 + 1 + 3 + 4) / 4)  # 6 // 4 = 1 cut off each end
    assert optimality_gap(SCORES) == pytest.approx((1.0 + 0.8) / 6)
    assert optimality_gap(SCORES, optimum=4.0) == pytest.approx((4 + 3.8 + 3 + 1) / 6)


def test_probability_of_improvement_by_hand():
    # 0 beats none and 0.2 two of three; 1 ties once and 3 beats two and ties one; none beats 9.
    assert probability_of_improvement(SCORES, OTHERS) == pytest.approx((2 / 6 + (0.5 + 2.5) / 6 + 0) / 3)
    assert probability_of_improvement(OTHERS, SCORES) == pytest.approx(1 - (2 / 6 + 3 / 6) / 3)
    assert probability_of_improvement(SCORES, SCORES) == 0.5


def test_interval_holds_the_value_and_narrows_with_runs():
    few = bootstrap(mean, MANY[0][:2], resamples=500)
    many = bootstrap(mean, np.tile(MANY[0], (8, 1)), resamples=500)
    assert few.low < few.value < few.high
    assert many.high - many.low < few.high - few.low
    assert bootstrap(mean, MANY[0][:1], resamples=10)[1:] == pytest.approx([MANY[0][0].mean()] * 2)


def test_runs_are_drawn_within_their_game_and_games_apart_from_each_other():
    """Games of one value each have no spread, however far apart they lie; games with spread do not move together."""
    apart = np.tile([0.0, 100.0], (5, 1))
    assert bootstrap(mean, apart, resamples=50) == (50, 50, 50)
    opposite = np.array([[0.0, 1.0], [1.0, 0.0]])  # drawn by whole runs, the mean would always be 0.5
    assert bootstrap(mean, opposite, resamples=200).high == 1.0


def test_interval_covers_the_truth_as_often_as_it_says():
    """200 data sets of 40 normal runs; the seeds are fixed, so that the count is."""
    rng = np.random.default_rng(11)
    missed = 0
    for trial in range(200):
        low, high = bootstrap(mean, rng.normal(size=(40, 1)), seed=trial, resamples=100)[1:]
        missed += not low <= 0 <= high
    assert 0.02 <= missed / 200 <= 0.10


def test_same_seed_same_interval():
    pair = [bootstrap(probability_of_improvement, *MANY, seed=5, resamples=200) for _ in range(2)]
    assert pair[0] == pair[1]


RLIABLE = {
    "mean": (1.0255523398029753, 1.611870025095623),
    "median": (1.083526935614637, 1.658449701200049),
    "IQM": (0.9007996214688232, 1.4276666425207205),
    "optimality gap": (0.24554931113317513, 0.09907424934779785),
}
"""What rliable 1.2.0 makes of both of ``MANY``. It is not installed for the tests: half of it cannot be imported beside
pandas 3, and it brings five times the packages that hpcrl needs."""


def test_rliable_gives_the_same():
    for name, ours in AGGREGATES.items():
        assert [ours(scores) for scores in MANY] == pytest.approx(RLIABLE[name])
    assert probability_of_improvement(*MANY) == pytest.approx(0.34545454545454546)
