"""MinAtar's network (Young and Tian 2019) for small frames: one convolution of 3x3, and a hidden layer."""

import math

from torch import nn

from hpcrl.networks import PixelConv2d

CHANNELS, UNITS = 16, 128


def network(input_shape: tuple[int, ...], num_actions: int, atoms: int = 0) -> nn.Module:
    """Action values ``[B, num_actions]`` of frames uint8 ``[B, *input_shape]``, or ``atoms`` outputs for each."""
    *stack, height, width = input_shape
    outputs = (num_actions, atoms) if atoms else (num_actions,)
    return nn.Sequential(
        *(nn.Flatten(1, -3), PixelConv2d(math.prod(stack), CHANNELS, 3), nn.ReLU(), nn.Flatten()),
        *(nn.Linear(CHANNELS * (height - 2) * (width - 2), UNITS), nn.ReLU()),
        *(nn.Linear(UNITS, math.prod(outputs)), nn.Unflatten(1, outputs)),
    )
