"""Advantage actor-critic: the loss of A2C and A3C, and what all policy-gradient algorithms share."""

from typing import NamedTuple

import numpy as np
import torch

from hpcrl.algorithms.gradients import clip_norm
from hpcrl.algorithms.policy_gradient import Distribution
from hpcrl.networks import Replica, Upload, autocast


class Experience(NamedTuple):
    """``B`` steps to learn from."""

    observation: np.ndarray
    """obs_dtype ``[B, stack, *obs_shape]``, or what `hpcrl.networks.Replica.prepare` made of it"""
    action: np.ndarray
    log_probability: np.ndarray
    """float32 ``[B]``: of the action, under the policy that took it"""
    advantage: np.ndarray
    """float32 ``[B]``"""
    target: np.ndarray
    """float32 ``[B]``: the return that the value is drawn to"""

    def take(self, rows: np.ndarray) -> "Experience":
        """Some of the steps, copied."""
        return Experience(*(array[rows] for array in self))


class Losses(NamedTuple):
    """What a gradient was made of; means over its steps."""

    loss: float
    value: float
    """of the states"""
    policy_loss: float
    value_loss: float
    entropy: float
    """[nats]"""
    kl: float
    """``r - 1 - log r``: how far the policy has moved from the one that acted [nats]"""
    clipped: float
    """share of the steps with ``|r - 1| > clip``"""
    gradient_norm: float
    """before it is clipped"""
    diversity: float
    """of the gradients of its two halves, see `gradient_diversity`; NaN where they are not compared"""


def gradient_diversity(*gradients: torch.Tensor) -> torch.Tensor:
    """``sum of |g_i|^2 / |sum of g_i|^2`` (Yin et al. 2018, definition 1).

    Of two gradients, 1/2 where they are the same, so that one of them would have done; 1 where they are orthogonal, so
    that each has told something of its own; more where they contradict each other (Accelerated Methods, section 5.5).
    """
    return sum(g.square().sum() for g in gradients) / sum(gradients).square().sum()


class A2c:
    """Gradient of ``- log pi(a) A + value_weight (v - R)^2 / 2 - entropy_weight H`` (Mnih et al. 2016, section 4).

    Parameters
    ----------
    online : Replica
        The learner's policy and value network.
    distribution : Distribution
        Of its actions.
    value_weight, entropy_weight : float
    normalizes : bool
        Advantages are shifted and scaled to mean 0 and deviation 1 in each gradient.
    max_gradient_norm : float
        The whole gradient is scaled down to this norm; 0 leaves it alone.
    dtype : torch.dtype
        Arithmetic of the network's body; losses are float32.
    compares_halves : bool
        The gradient is made of those of two halves of the steps, whose diversity it tells.
    """

    def __init__(
        self,
        online: Replica,
        distribution: Distribution,
        *,
        value_weight: float,
        entropy_weight: float,
        normalizes: bool,
        max_gradient_norm: float,
        dtype: torch.dtype,
        compares_halves: bool = False,
    ):
        self.online, self.distribution = online, distribution
        self.value_weight, self.entropy_weight, self.normalizes = value_weight, entropy_weight, normalizes
        self.max_gradient_norm, self.dtype, self.compares_halves = max_gradient_norm, dtype, compares_halves
        self._upload = Upload(online.device)

    def gradient(self, experience: Experience) -> Losses:
        """Gradient of the mean loss, into ``online.flat.gradients``."""
        flat = self.online.flat
        observation, action, log_mu, advantage, target = self._upload(experience)
        if self.normalizes:
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
        tensors, diversity = (observation, action, log_mu, advantage, target), torch.tensor(torch.nan)
        if self.compares_halves and len(advantage) > 1:
            halves = zip(*(tensor.chunk(2) for tensor in tensors), strict=True)
            shares, statistics, gradients = [], [], []
            for half in halves:
                shares.append(len(half[0]) / len(advantage))
                statistics.append(shares[-1] * self._backward(*half))
                gradients.append(flat.gradients.clone())
            diversity = gradient_diversity(*gradients)
            torch.add(shares[0] * gradients[0], gradients[1], alpha=shares[1], out=flat.gradients)
            means = sum(statistics)
        else:
            means = self._backward(*tensors)
        return self._clip(means, diversity.item())

    def _clip(self, means: torch.Tensor, diversity: float) -> Losses:
        """Scale the gradient down to the greatest norm; what it was made of."""
        gradients = self.online.flat.gradients
        norm = gradients.norm()
        if self.max_gradient_norm:
            clip_norm(gradients, self.max_gradient_norm)
        return Losses(*means.tolist(), norm.item(), diversity)

    def _backward(self, observation, action, log_mu, advantage, target) -> torch.Tensor:
        """Gradient of the mean loss of these steps; float32 ``[7]``, the first members of `Losses`."""
        self.online.flat.zero_gradients()
        with autocast(self.online.device, self.dtype):
            outputs, value = self.online.network(observation)
        log_ratio = self.distribution.log_probability(outputs, action) - log_mu
        return self._descend(outputs, value, log_ratio, advantage, target)

    def _descend(self, outputs, value, log_ratio, advantage, target, weight: float = 1.0) -> torch.Tensor:
        """Gradient of ``weight`` times the mean loss, and what it was made of, float32 ``[7]``."""
        policy_loss = self.policy_loss(log_ratio, advantage).mean()
        value_loss = 0.5 * (value - target).square().mean()
        entropy = self.distribution.entropy(outputs).mean()
        loss = policy_loss + self.value_weight * value_loss - self.entropy_weight * entropy
        (weight * loss).backward()
        with torch.no_grad():
            off_policy = log_ratio.exp() - 1
            kl, clipped = (off_policy - log_ratio).mean(), self.clipped(off_policy)
            return torch.stack((loss, value.mean(), policy_loss, value_loss, entropy, kl, clipped))

    def policy_loss(self, log_ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        """``- log pi(a) A``, float32 ``[B]``; ``log_ratio`` is ``log pi(a)`` up to a constant."""
        return -log_ratio * advantage

    def clipped(self, off_policy: torch.Tensor) -> torch.Tensor:
        """Share of the steps whose ratio, less 1, the loss ignores."""
        return torch.zeros_like(off_policy).mean()
