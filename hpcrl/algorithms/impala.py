"""IMPALA and GA3C: actor-critic on rollouts of policies that are no longer the learner's."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from hpcrl.algorithms.a2c import A2c, Losses
from hpcrl.algorithms.returns import vtrace
from hpcrl.networks import autocast


class Trajectories(NamedTuple):
    """``T`` steps of ``E`` simulators, in order: what :mod:`hpcrl.algorithms.returns` has, and what was acted upon.

    Some of the steps may only have reset a simulator: they are not ``valid``, and an episode has ended before them.
    """

    observation: np.ndarray
    """obs_dtype ``[T + 1, E, stack, *obs_shape]``: also of what the last step led to"""
    action: np.ndarray
    log_probability: np.ndarray
    """float32 ``[T, E]``: of the action, under the policy that took it"""
    reward: np.ndarray
    discount: np.ndarray
    goes_on: np.ndarray
    valid: np.ndarray

    @classmethod
    def join(cls, parts: Sequence["Trajectories"]) -> "Trajectories":
        """Those of several lots of simulators."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate(arrays, axis=1) for arrays in zip(*parts, strict=True)))


class Impala(A2c):
    """A2C's gradient with V-trace in place of returns (Espeholt et al. 2018, section 4).

    Values and probabilities are those of the parameters that the gradient is of; the loss is summed over the steps, as
    it is there. The parameters are those of `hpcrl.algorithms.a2c.A2c`, but halves are not compared.

    Parameters
    ----------
    trace_decay : float
        ``lambda``.
    """

    def __init__(self, *arguments, trace_decay: float, **further):
        super().__init__(*arguments, **further)
        self.trace_decay = trace_decay

    def correction(self, log_ratio: np.ndarray) -> np.ndarray:
        """Logarithm of the importance ratios, float32 ``[T, E]``."""
        return log_ratio

    def gradient(self, trajectories: Trajectories) -> Losses:
        """Gradient of the summed loss, into ``online.flat.gradients``; the losses told are means."""
        device, shape = self.online.device, trajectories.reward.shape
        observation, action, log_mu, valid = (
            torch.from_numpy(array.reshape(-1, *array.shape[2:])).to(device, non_blocking=True)
            for array in (
                trajectories.observation,
                trajectories.action,
                trajectories.log_probability,
                trajectories.valid,
            )
        )
        self.online.flat.zero_gradients()
        with autocast(device, self.dtype):
            outputs, value = self.online.network(observation)
        outputs = outputs[: len(action)]  # without those of the states that the last steps led to
        log_ratio = self.distribution.log_probability(outputs, action) - log_mu
        estimates = vtrace(
            self.correction(log_ratio.detach().cpu().numpy().reshape(shape)),
            trajectories.reward,
            trajectories.discount,
            trajectories.goes_on,
            value.detach().cpu().numpy().reshape(shape[0] + 1, shape[1]),
            trace_decay=self.trace_decay,
        )
        target, advantage = (torch.from_numpy(array.reshape(-1)).to(device)[valid] for array in estimates)
        if self.normalizes:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        rows = outputs[valid], value[: len(action)][valid], log_ratio[valid]
        means = self._descend(*rows, advantage, target, weight=len(target))
        return self._clip(means, diversity=float("nan"))


class Ga3c(Impala):
    """The same as if the learner's policy had acted: lag is not corrected (Babaeizadeh et al. 2017, section 3)."""

    def correction(self, log_ratio: np.ndarray) -> np.ndarray:
        """None: n-step returns and their advantages."""
        return np.zeros_like(log_ratio)
