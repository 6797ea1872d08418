"""Temporal-difference errors and losses. Suffixes give the time step: ``a_tm1`` is taken in ``s_tm1``, then ``r_t``."""

import torch


def q_learning_target(
    r_t: torch.Tensor, discount_t: torch.Tensor, q_target_t: torch.Tensor, a_t: torch.Tensor
) -> torch.Tensor:
    """``y = r_t + discount_t * q_target_t(a_t)``.

    With ``a_t`` the best action by the target network's values, as in DQN (Mnih et al. 2015, Algorithm 1; Gorila,
    section 4), or by the online network's, as in Double DQN (van Hasselt et al. 2016, equation 4).

    Parameters
    ----------
    r_t, discount_t : float32 [B]
    q_target_t : float32 [B, A]
        Target network's values of the next state.
    a_t : int64 [B]

    Returns
    -------
    float32 [B]
        Without gradient.
    """
    return (r_t + discount_t * q_target_t.gather(1, a_t.unsqueeze(1)).squeeze(1)).detach()


def td_error(q_tm1: torch.Tensor, a_tm1: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """``delta = y - q_tm1(a_tm1)``, float32 ``[B]``.

    Parameters
    ----------
    q_tm1 : float32 [B, A]
    a_tm1 : int64 [B]
    target : float32 [B]
    """
    return target - q_tm1.gather(1, a_tm1.unsqueeze(1)).squeeze(1)


def huber(delta: torch.Tensor) -> torch.Tensor:
    """``0.5 delta^2`` where ``|delta| <= 1``, else ``|delta| - 0.5``: gradient clipped to [-1, 1] (Nature DQN)."""
    magnitude = delta.abs()
    return torch.where(magnitude <= 1, 0.5 * delta * delta, magnitude - 0.5)


def squared(delta: torch.Tensor) -> torch.Tensor:
    """``0.5 delta^2``."""
    return 0.5 * delta * delta


LOSSES = {"huber": huber, "mse": squared}
