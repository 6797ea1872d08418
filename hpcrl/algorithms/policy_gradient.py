"""Policies as probability distributions, their losses, and acting by them.

A policy network gives ``outputs``, which a distribution turns into probabilities, and a state value. The distributions'
functions are for one action for each row of a batch of ``B``.
"""

import math
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch.nn.functional import log_softmax

from hpcrl.networks import Forward

LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)


class Distribution(Protocol):
    """A family of distributions over actions."""

    outputs: int
    """numbers that the network gives for each state"""
    action_shape: tuple[int, ...]
    action_dtype: type

    def log_probability(self, outputs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """float32 ``[B]``: logarithm of the probability (density) of the actions."""

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """float32 ``[B]`` [nats]"""

    def sample(self, outputs: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Actions drawn; each row takes the same number of random numbers."""

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        """The most probable actions."""


class Categorical:
    """One of ``A`` actions; ``outputs`` are their logits, float32 ``[B, A]``, and actions int64 ``[B]``."""

    action_shape: tuple[int, ...] = ()
    action_dtype = np.int64

    def __init__(self, num_actions: int):
        self.outputs = num_actions

    def log_probability(self, outputs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """``log softmax(outputs)(action)``, float32 ``[B]``."""
        return log_softmax(outputs, dim=1).gather(1, action.unsqueeze(1)).squeeze(1)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """``- sum over a of p(a) log p(a)``, float32 ``[B]`` [nats]."""
        log_p = log_softmax(outputs, dim=1)
        return -(log_p.exp() * log_p).sum(dim=1)

    def sample(self, outputs: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """Actions drawn by the Gumbel-max method: ``argmax of outputs - log(-log u)``, u uniform."""
        noise = torch.from_numpy(rng.gumbel(size=tuple(outputs.shape))).to(outputs)
        return (outputs + noise).argmax(dim=1)

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        """The most probable actions."""
        return outputs.argmax(dim=1)


class DiagonalGaussian:
    """``D`` independent normal numbers; ``outputs`` are means and logarithms of deviations, float32 ``[B, 2 D]``.

    Actions are float32 ``[B, D]``. The network's scale is that of the environment's (see `hpcrl.types.EnvSpec`), which
    also clips them to its bounds; the densities are those of the unclipped ones.
    """

    action_dtype = np.float32

    def __init__(self, num_actions: int):
        self.outputs, self.action_shape = 2 * num_actions, (num_actions,)

    def log_probability(self, outputs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """``sum over d of - z_d^2 / 2 - log sigma_d - log sqrt(2 pi)``, ``z = (a - mu) / sigma``, float32 ``[B]``."""
        mean, log_deviation = outputs.chunk(2, dim=1)
        z = (action - mean) * torch.exp(-log_deviation)
        return (-0.5 * z * z - log_deviation - LOG_SQRT_2_PI).sum(dim=1)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """``sum over d of 1/2 + log sqrt(2 pi) + log sigma_d``, float32 ``[B]`` [nats]."""
        return (outputs.chunk(2, dim=1)[1] + 0.5 + LOG_SQRT_2_PI).sum(dim=1)

    def sample(self, outputs: torch.Tensor, rng: np.random.Generator) -> torch.Tensor:
        """``mu + sigma z``, z standard normal."""
        mean, log_deviation = outputs.chunk(2, dim=1)
        noise = torch.from_numpy(rng.standard_normal(tuple(mean.shape))).to(outputs)
        return mean + log_deviation.exp() * noise

    def mode(self, outputs: torch.Tensor) -> torch.Tensor:
        """The means."""
        return outputs.chunk(2, dim=1)[0]


def clipped_surrogate(log_ratio: torch.Tensor, advantage: torch.Tensor, clip: float) -> torch.Tensor:
    """``- min(r A, clip(r, 1 - epsilon, 1 + epsilon) A)`` with ``r = pi/mu`` (Schulman et al. 2017, equation 7).

    Parameters
    ----------
    log_ratio, advantage : float32 [B]
        Of the learner's policy over the one that acted; of the actions.
    clip : float
        ``epsilon``.

    Returns
    -------
    float32 [B]
        A loss: what the paper maximises, negated.
    """
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


# Acting -------------------------------------------------------------------------------------------------------------


class Decision(NamedTuple):
    """What a policy does in ``E`` states."""

    action: np.ndarray
    """int64 ``[E]``, or float32 ``[E, D]``"""
    log_probability: np.ndarray
    """float32 ``[E]``"""
    value: np.ndarray
    """float32 ``[E]``: of the states"""


class SampledPolicy:
    """Acts as often as the network's probabilities say; no action is random apart from them (``epsilon``).

    Parameters
    ----------
    replica
        Holds the network (`hpcrl.networks.Replica`), of which none is differentiated here.
    distribution : Distribution
    rng : numpy.random.Generator
    dtype : torch.dtype
        Arithmetic of the network's body.
    threads : int
        Of a forward pass, see `hpcrl.networks.Forward`, and of what is computed of its outputs.
    """

    epsilon = float("nan")

    def __init__(
        self, replica, distribution: Distribution, rng: np.random.Generator, dtype: torch.dtype, threads: int = 0
    ):
        self.replica, self.distribution, self.rng = replica, distribution, rng
        self.forward = Forward(replica, dtype, threads)

    @torch.inference_mode()
    def decide(self, observation: np.ndarray) -> Decision:
        """Draw an action in each state, obs_dtype ``[E, stack, ...]``."""
        with self.forward.few_threads():
            outputs, value = self.forward(observation)
            action = self.distribution.sample(outputs, self.rng)
            log_probability = self.distribution.log_probability(outputs, action)
            return Decision(action.cpu().numpy(), log_probability.cpu().numpy(), value.cpu().numpy())

    @torch.inference_mode()
    def value(self, observation: np.ndarray) -> np.ndarray:
        """float32 ``[E]``: of the states."""
        return self.forward(observation)[1].cpu().numpy()


class EvaluationPolicy(SampledPolicy):
    """Plays as `hpcrl.roles.evaluator.Episodes` asks: drawn or most probable actions, some of them random.

    Parameters
    ----------
    replica, distribution, rng, dtype
        As in `SampledPolicy`.
    draws : bool
        Actions are drawn from the policy; else the most probable ones are taken.
    """

    def __init__(self, replica, distribution, rng, dtype, *, draws: bool):
        super().__init__(replica, distribution, rng, dtype)
        self.draws = draws

    @torch.inference_mode()
    def act(self, observation: np.ndarray, epsilon: float) -> np.ndarray:
        """Actions in states obs_dtype ``[E, stack, ...]``; with probability ``epsilon`` each is one of flat outputs."""
        outputs, _ = self.forward(observation)
        action = self.distribution.sample(outputs, self.rng) if self.draws else self.distribution.mode(outputs)
        if epsilon:
            flat = self.distribution.sample(torch.zeros_like(outputs), self.rng)
            random = torch.from_numpy(self.rng.random(len(outputs)) < epsilon).to(action.device)
            action[random] = flat[random]
        return action.cpu().numpy()
