"""Schedules, and how actors share out exploration."""

import numpy as np


def linear(step: int, start: float, end: float, length: int) -> float:
    """Linear from ``start`` at 0 to ``end`` at ``length``, then constant (Nature DQN; Gorila: in global updates)."""
    return end if step >= length else start + (end - start) * step / length


def scale(rule: str, size: int, reference: int) -> float:
    """Factor of a learning rate for a minibatch, or a number of simulators, ``size``, where it is right for another.

    Parameters
    ----------
    rule : {"none", "linear", "sqrt"}
        ``"linear"`` keeps the mean of the steps taken for a number of samples (Goyal et al. 2017), ``"sqrt"`` their
        variance (Krizhevsky 2014).
    """
    return (size / reference) ** {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[rule]


def ladder(members: np.ndarray, count: int, alpha: float) -> np.ndarray:
    """Exponents ``1 + alpha * i / (N - 1)``: member ``i`` of ``N`` explores with ``epsilon`` to this power (Ape-X).

    Parameters
    ----------
    members : int [E]
        Each ``i``, from 0 to ``N - 1``.
    count : int
        ``N``.
    alpha : float
        0: all explore alike. Ape-X has 7, with epsilon 0.4 throughout.

    Returns
    -------
    float64 [E]
        1 for a member that is alone.
    """
    return 1 + alpha * np.asarray(members) / max(count - 1, 1)
