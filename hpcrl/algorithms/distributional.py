"""Distributions of returns: the formulas of C51 and QR-DQN."""

import torch

from hpcrl.algorithms.td import huber


def taken(outputs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Outputs ``[B, N]`` of one action each, int64 ``[B]``, of ``[B, A, N]``."""
    return outputs[torch.arange(len(action), device=outputs.device), action]


def categorical_projection(returns: torch.Tensor, p: torch.Tensor, atoms: torch.Tensor) -> torch.Tensor:
    """Distribution over the atoms that is nearest to one over other returns (Bellemare et al. 2017, Algorithm 1).

    The mass of each return, clipped to the span of the atoms, goes to its two neighbours, to the nearer one more. A
    return on an atom gives that atom all of its mass: the upper neighbour then has a share of zero.

    Parameters
    ----------
    returns, p : float32 [B, N]
        Returns and their probabilities.
    atoms : float32 [N]
        Equally spaced, the lowest first.

    Returns
    -------
    float32 [B, N]
        Sums to what ``p`` sums to.
    """
    last = len(atoms) - 1
    b = (returns.clamp(atoms[0], atoms[-1]) - atoms[0]) * (last / (atoms[-1] - atoms[0]))
    b = b.clamp(0, last)  # rounding
    lower = b.floor()
    share = b - lower
    lower = lower.long()
    upper = (lower + 1).clamp(max=last)
    return torch.zeros_like(p).scatter_add(1, lower, p * (1 - share)).scatter_add(1, upper, p * share)


def kl_divergence(target: torch.Tensor, log_p: torch.Tensor) -> torch.Tensor:
    """``sum_i target_i (ln target_i - ln p_i)``, float32 ``[B]``.

    Parameters
    ----------
    target : float32 [B, N]
        Probabilities, some of which may be zero.
    log_p : float32 [B, N]
        Logarithms of probabilities.
    """
    return (torch.xlogy(target, target) - target * log_p).sum(dim=1)


def quantile_midpoints(quantiles: int) -> torch.Tensor:
    """``tau_i = (2 i + 1) / 2 N``, float32 ``[N]`` (Dabney et al. 2018, Lemma 2)."""
    return (torch.arange(quantiles, dtype=torch.float32) + 0.5) / quantiles


def quantile_huber_loss(quantiles: torch.Tensor, tau: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """``sum_i mean_j |tau_i - 1{delta_ij < 0}| huber(delta_ij)`` with ``delta_ij = target_j - quantiles_i``.

    Dabney et al. 2018, equation 10 and Algorithm 1, with kappa = 1.

    Parameters
    ----------
    quantiles : float32 [B, N]
        Predicted.
    tau : float32 [N]
        Their probabilities.
    target : float32 [B, M]
        Returns, equally probable.

    Returns
    -------
    float32 [B]
    """
    delta = target[:, None, :] - quantiles[:, :, None]
    weight = (tau[:, None] - (delta < 0).to(delta.dtype)).abs()
    return (weight * huber(delta)).mean(dim=2).sum(dim=1)
