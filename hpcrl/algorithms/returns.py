"""Returns and advantages of rollouts: ``T`` steps of ``E`` simulators, from the last step backwards.

Step ``t`` leads from ``x_t`` to ``x_{t+1}``; ``value`` has a row for each of ``x_0`` to ``x_T``. How a step ends is in
two arrays. ``discount`` is gamma, or 0 where the episode terminated: the next state is worth nothing. ``goes_on`` is 0
where the episode ended in any way, so that no return reaches into the next one. A truncated step has a discount and
does not go on: its next state is worth its value, once, and nothing else.

All arrays are floating ``[T, E]`` and of one dtype, which is also the result's.
"""

from typing import NamedTuple

import numpy as np


def generalized_advantages(
    reward: np.ndarray, discount: np.ndarray, goes_on: np.ndarray, value: np.ndarray, trace_decay: float
) -> np.ndarray:
    """``A_t = delta_t + discount_t lambda A_{t+1}``, ``delta_t = r_t + discount_t V(x_{t+1}) - V(x_t)``.

    Generalized advantage estimation (Schulman et al. 2016, equation 16). ``A + V`` is the lambda-return; with
    ``lambda = 1`` that is the n-step return of A3C and A2C, up to the end of the rollout.

    Parameters
    ----------
    value : floating [T + 1, E]
    trace_decay : float
        ``lambda``.
    """
    return _accumulate(reward + discount * value[1:] - value[:-1], trace_decay * discount * goes_on)


class VTrace(NamedTuple):
    """What an off-policy learner trains on."""

    target: np.ndarray
    """``v_t``, what the value is drawn to"""
    advantage: np.ndarray
    """of the actions taken, for the policy gradient"""


def vtrace(
    log_ratio: np.ndarray,
    reward: np.ndarray,
    discount: np.ndarray,
    goes_on: np.ndarray,
    value: np.ndarray,
    *,
    trace_decay: float = 1.0,
    rho_bound: float = 1.0,
    c_bound: float = 1.0,
    advantage_rho_bound: float = 1.0,
) -> VTrace:
    """V-trace (Espeholt et al. 2018, section 4.1).

    ``v_t - V(x_t) = delta_t + discount_t c_t (v_{t+1} - V(x_{t+1}))`` with
    ``delta_t = rho_t (r_t + discount_t V(x_{t+1}) - V(x_t))``, ``rho_t = min(rho_bound, pi/mu)`` and
    ``c_t = lambda min(c_bound, pi/mu)``. The advantage is ``rho_t (r_t + discount_t v_{t+1} - V(x_t))``, with
    ``V(x_{t+1})`` for ``v_{t+1}`` behind the end of an episode and of the rollout.

    Parameters
    ----------
    log_ratio : floating [T, E]
        ``log pi(a_t|x_t) - log mu(a_t|x_t)``: of the learner's policy over the one that acted.
    value : floating [T + 1, E]
        Of the learner.
    trace_decay : float
        ``lambda``.
    """
    ratio = np.exp(log_ratio)
    rho, c = np.minimum(ratio, rho_bound), trace_decay * np.minimum(ratio, c_bound)
    delta = reward + discount * value[1:] - value[:-1]
    correction = _accumulate(rho * delta, discount * goes_on * c)
    ahead = np.concatenate([correction[1:], np.zeros_like(correction[:1])])
    advantage = np.minimum(ratio, advantage_rho_bound) * (delta + discount * goes_on * ahead)
    return VTrace(value[:-1] + correction, advantage)


def _accumulate(delta: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """``y_t = delta_t + decay_t y_{t+1}``, with 0 behind the last row."""
    out = np.empty_like(delta)
    following = np.zeros_like(delta[0])
    for t in reversed(range(len(delta))):
        following = delta[t] + decay[t] * following
        out[t] = following
    return out
