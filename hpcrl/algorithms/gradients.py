"""What is done to a whole flat gradient before it is applied."""

import torch


def clip_norm(gradient: torch.Tensor, most: float) -> None:
    """Scale a flat gradient, float32 ``[P]``, down in place to the norm ``most`` if it is longer."""
    gradient.mul_((most / (gradient.norm() + 1e-6)).clamp(max=1.0))
