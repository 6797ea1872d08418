"""The networks that hpcrl brings: convolutional ones of the papers, and the fully connected one."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from torch import nn

from hpcrl.errors import ConfigError
from hpcrl.networks.layers import Dueling, PixelConv2d, ToFloat, WideLinear


def nature_dqn(input_shape: Sequence[int], num_actions: int, dueling: bool = False) -> nn.Module:
    """The network of Mnih et al. 2015 (Nature DQN, Methods; also Gorila's): 1.69M parameters at 84x84x4.

    Parameters
    ----------
    input_shape : (stack, height, width)
    num_actions : int
        Outputs, one action value each.
    dueling : bool
        Two streams of 512 units follow the convolutions: 3.29M parameters.
    """
    channels, height, width = input_shape
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    if min(height, width) < 1:
        raise ConfigError(
            f'network.kind = "nature" needs frames of at least 36x36 pixels, got {input_shape[1]}x{input_shape[2]}; '
            f'set network.kind = "mlp"'
        )

    def stream(outputs: int) -> list[nn.Module]:
        return [WideLinear(64 * height * width, 512), nn.ReLU(), nn.Linear(512, outputs)]

    convolutions = [
        PixelConv2d(channels, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*convolutions, *_head(stream, num_actions, dueling))


def _head(stream: Callable[[int], list[nn.Module]], num_actions: int, dueling: bool) -> list[nn.Module]:
    if not dueling:
        return stream(num_actions)
    return [Dueling(nn.Sequential(*stream(1)), nn.Sequential(*stream(num_actions)))]


def mlp(input_shape: Sequence[int], num_actions: int, hidden: Sequence[int], dueling: bool = False) -> nn.Module:
    """Fully connected ReLU network with layers of ``hidden`` units; each stream of a dueling one has the last."""
    widths = [int(np.prod(input_shape)), *hidden]
    last = max(len(hidden) - 1, 0)

    def layers(widths: Sequence[int]) -> list[nn.Module]:
        return [layer for shape in pairwise(widths) for layer in (nn.Linear(*shape), nn.ReLU())]

    def stream(outputs: int) -> list[nn.Module]:
        return [*layers(widths[last:]), nn.Linear(widths[-1], outputs)]

    return nn.Sequential(ToFloat(), *layers(widths[: last + 1]), *_head(stream, num_actions, dueling))
