"""Exploration schedules."""

import pytest

from hpcrl.algorithms.exploration import linear


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
