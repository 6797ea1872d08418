"""Exploration schedules."""

import numpy as np
import pytest

from hpcrl.algorithms.exploration import ladder, linear, scale


@pytest.mark.parametrize(
    ("step", "expected"),
    [(0, 1.0), (1, 0.991), (50, 0.55), (99, 0.109), (100, 0.1), (101, 0.1), (10**12, 0.1)],
)
def test_linear_by_hand(step, expected):
    assert linear(step, start=1.0, end=0.1, length=100) == pytest.approx(expected, abs=1e-12)


def test_the_end_is_exact_and_a_schedule_may_rise_or_stay():
    assert linear(7, 1.0, 0.1, 7) == 0.1
    assert linear(3, 0.0, 1.0, 4) == 0.75
    assert {linear(step, 0.3, 0.3, 5) for step in range(9)} == {0.3}
    assert linear(0, 1.0, 0.1, 1) == 1.0


def test_the_ladder_is_that_of_ape_x():
    """epsilon^(1 + alpha i / (N - 1)) with epsilon 0.4 and alpha 7: from 0.4 down to 0.4^8."""
    epsilon = 0.4 ** ladder(np.arange(8), 8, alpha=7.0)
    np.testing.assert_allclose(epsilon, [0.4 ** (1 + i) for i in range(8)])
    np.testing.assert_allclose(0.4 ** ladder(np.array([359]), 360, alpha=7.0), 0.4**8)


def test_who_is_alone_on_the_ladder_explores_with_epsilon_itself():
    assert ladder(np.arange(1), 1, alpha=7.0).tolist() == [1.0]
    assert ladder(np.arange(3), 3, alpha=0.0).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(("rule", "expected"), [("none", 1.0), ("linear", 64.0), ("sqrt", 8.0)])
def test_rates_scale_by_hand(rule, expected):
    assert scale(rule, 2048, 32) == expected
    assert scale(rule, 32, 2048) == 1 / expected
    assert scale(rule, 32, 32) == 1.0
