"""Proximal policy optimization."""

from collections.abc import Callable

import torch

from hpcrl.algorithms.a2c import A2c
from hpcrl.algorithms.policy_gradient import clipped_surrogate


class Ppo(A2c):
    """The clipped surrogate in place of the policy gradient (Schulman et al. 2017, equation 9).

    Parameters
    ----------
    clip : callable
        ``clip()``: epsilon now.
    further
        Those of `hpcrl.algorithms.a2c.A2c`.
    """

    def __init__(self, *arguments, clip: Callable[[], float], **further):
        super().__init__(*arguments, **further)
        self.clip = clip

    def policy_loss(self, log_ratio: torch.Tensor, advantage: torch.Tensor) -> torch.Tensor:
        """Equation 7, negated; float32 ``[B]``."""
        return clipped_surrogate(log_ratio, advantage, self.clip())

    def clipped(self, off_policy: torch.Tensor) -> torch.Tensor:
        """Share of the steps whose ratio is beyond the clip."""
        return (off_policy.abs() > self.clip()).float().mean()
