"""What a Q-network's outputs mean, and how they are learned: expected values, or distributions of returns.

A rule says how action values are read from the outputs, and what the loss of a transition is. All else (which action is
bootstrapped from, n-step returns, dueling streams, how minibatches are drawn) is the same for all rules.
"""

from typing import Protocol

import torch

from hpcrl.algorithms.distributional import (
    categorical_projection,
    kl_divergence,
    quantile_huber_loss,
    quantile_midpoints,
    taken,
)
from hpcrl.algorithms.td import LOSSES, q_learning_target, td_error


class Rule(Protocol):
    """How outputs of a Q-network are read and learned."""

    gives_td_errors: bool
    """Whether the errors of transitions are TD errors, as an actor can tell them from its action values alone."""

    def q(self, outputs: torch.Tensor) -> torch.Tensor:
        """Action values, float32 ``[B, A]``, of outputs float32 ``[B, A]`` or ``[B, A, N]``."""

    def losses(
        self,
        outputs_tm1: torch.Tensor,
        a_tm1: torch.Tensor,
        r_t: torch.Tensor,
        discount_t: torch.Tensor,
        outputs_t: torch.Tensor,
        a_t: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Losses, and errors that priorities are made of, of ``B`` transitions.

        Parameters
        ----------
        outputs_tm1, outputs_t : float32 [B, A] or [B, A, N]
            Online network's outputs for ``s_tm1``, and the target network's for ``s_t``.
        a_tm1, a_t : int64 [B]
            Action taken, and action bootstrapped from.
        r_t, discount_t : float32 [B]

        Returns
        -------
        losses, errors : float32 [B]
            Only the losses have a gradient, and only to ``outputs_tm1``.
        """


class ScalarRule:
    """The outputs are the action values; the loss is that of the TD error (DQN).

    Parameters
    ----------
    loss : {"huber", "mse"}
    """

    gives_td_errors = True

    def __init__(self, loss: str):
        self.loss = LOSSES[loss]

    def q(self, outputs: torch.Tensor) -> torch.Tensor:
        """See :class:`Rule`."""
        return outputs

    def losses(self, outputs_tm1, a_tm1, r_t, discount_t, outputs_t, a_t) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`Rule`."""
        delta = td_error(outputs_tm1, a_tm1, q_learning_target(r_t, discount_t, outputs_t, a_t))
        return self.loss(delta), delta.detach()


class CategoricalRule:
    """The outputs are logits of a distribution over fixed returns, the atoms (C51, Bellemare et al. 2017).

    The loss is the divergence of the prediction from the projected target, whose gradient is that of the paper's
    cross-entropy; it is also the error that priorities are made of, as in Rainbow (Hessel et al. 2018).

    Parameters
    ----------
    atoms : int
        N.
    low, high : float
        The first and the last atom.
    """

    gives_td_errors = False

    def __init__(self, atoms: int, low: float, high: float, device: str = "cpu"):
        self.atoms = torch.linspace(low, high, atoms, device=device)

    def q(self, outputs: torch.Tensor) -> torch.Tensor:
        """See :class:`Rule`."""
        return (outputs.softmax(dim=2) * self.atoms).sum(dim=2)

    def losses(self, outputs_tm1, a_tm1, r_t, discount_t, outputs_t, a_t) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`Rule`."""
        returns = r_t[:, None] + discount_t[:, None] * self.atoms
        target = categorical_projection(returns, taken(outputs_t, a_t).softmax(dim=1), self.atoms).detach()
        losses = kl_divergence(target, taken(outputs_tm1, a_tm1).log_softmax(dim=1))
        return losses, losses.detach()


class QuantileRule:
    """The outputs are quantiles of the return at equal steps of probability (QR-DQN, Dabney et al. 2018).

    Parameters
    ----------
    quantiles : int
        N.
    """

    gives_td_errors = True

    def __init__(self, quantiles: int, device: str = "cpu"):
        self.midpoints = quantile_midpoints(quantiles).to(device)

    def q(self, outputs: torch.Tensor) -> torch.Tensor:
        """See :class:`Rule`."""
        return outputs.mean(dim=2)

    def losses(self, outputs_tm1, a_tm1, r_t, discount_t, outputs_t, a_t) -> tuple[torch.Tensor, torch.Tensor]:
        """See :class:`Rule`; the errors are those of the means."""
        target = (r_t[:, None] + discount_t[:, None] * taken(outputs_t, a_t)).detach()
        quantiles_tm1 = taken(outputs_tm1, a_tm1)
        losses = quantile_huber_loss(quantiles_tm1, self.midpoints, target)
        return losses, (target.mean(dim=1) - quantiles_tm1.mean(dim=1)).detach()


def make_rule(distribution: str, *, loss: str, atoms: int, support: tuple[float, float], device: str) -> Rule:
    """Rule of a distribution: ``"none"``, ``"categorical"`` or ``"quantile"``.

    Parameters
    ----------
    loss
        See :class:`ScalarRule`.
    atoms
        N.
    support
        First and last atom of a categorical distribution.
    device
        Where the outputs are.
    """
    if distribution == "categorical":
        return CategoricalRule(atoms, *support, device)
    if distribution == "quantile":
        return QuantileRule(atoms, device)
    return ScalarRule(loss)
