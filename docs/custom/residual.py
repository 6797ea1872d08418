"""A network of one's own: layers with a way around them. See docs/custom.md."""

import torch
from torch import nn


class Residual(nn.Module):
    """``x + layer(x)``."""

    def __init__(self, units: int):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(units, units), nn.ReLU(), nn.Linear(units, units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(x)


def residual(input_shape: tuple[int, ...], num_actions: int) -> nn.Module:
    """Action values ``[B, num_actions]`` of observations ``[B, *input_shape]``; no buffers, parameters in float32."""
    units = 32
    size = torch.Size(input_shape).numel()
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size, units), Residual(units), nn.ReLU(), nn.Linear(units, num_actions)
    )
