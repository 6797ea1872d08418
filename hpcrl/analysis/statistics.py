"""Aggregates of scores over runs and games, with intervals (Agarwal et al. 2021; the definitions of rliable).

Scores are float64 ``[runs, games]``, normalised, each run of a game an independent seed.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


def mean(scores: np.ndarray) -> float:
    """Mean over games of the mean over runs."""
    return float(np.mean(scores))


def median(scores: np.ndarray) -> float:
    """Median over games of the mean over runs."""
    return float(np.median(np.mean(scores, axis=0)))


def interquartile_mean(scores: np.ndarray) -> float:
    """IQM: mean of the middle half of all runs of all games together; a quarter, rounded down, is cut off each end."""
    ordered = np.sort(scores, axis=None)
    cut = ordered.size // 4
    return float(np.mean(ordered[cut : ordered.size - cut]))


def optimality_gap(scores: np.ndarray, optimum: float = 1.0) -> float:
    """Mean of what each run lacks to ``optimum``; more than it counts nothing."""
    return float(optimum - np.mean(np.minimum(scores, optimum)))


def probability_of_improvement(scores: np.ndarray, others: np.ndarray) -> float:
    """Probability that a run of the first is better than one of the second, ties halved, mean over games.

    For each game the Mann-Whitney U statistic divided by the number of pairs. The numbers of runs may differ.
    """
    above = scores[:, None] > others[None]
    tied = scores[:, None] == others[None]
    return float(np.mean(above + 0.5 * tied))


AGGREGATES: dict[str, Callable[[np.ndarray], float]] = {
    "mean": mean,
    "median": median,
    "IQM": interquartile_mean,
    "optimality gap": optimality_gap,
}


class Interval(NamedTuple):
    """A statistic of the data, and its bootstrap interval."""

    value: float
    low: float
    high: float


def bootstrap(
    statistic: Callable[..., float],
    *scores: np.ndarray,
    seed: int = 0,
    resamples: int = 5000,
    confidence: float = 0.95,
) -> Interval:
    """Stratified percentile bootstrap: the runs of each game are drawn anew, with replacement, game by game.

    Parameters
    ----------
    statistic
        Takes as many arrays as there are ``scores``.
    scores
        float64 ``[runs, games]`` each. A single run has an interval without width: it says nothing of the spread.
    seed
        Of the draws.
    resamples
    confidence
        Share of the resampled statistics within the interval.
    """
    rng = np.random.default_rng(seed)
    drawn = [statistic(*(_resample(one, rng) for one in scores)) for _ in range(resamples)]
    tail = 50 * (1 - confidence)
    low, high = np.percentile(drawn, [tail, 100 - tail])
    return Interval(statistic(*scores), float(low), float(high))


def _resample(scores: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.take_along_axis(scores, rng.integers(len(scores), size=scores.shape), axis=0)
