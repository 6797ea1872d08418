"""The networks that hpcrl brings: convolutional ones of the papers, and a fully connected one.

Each maps observations ``[B, *input_shape]`` to one output for each action, ``[B, actions]``, or to ``atoms`` outputs
for each where the value of an action is a distribution, ``[B, actions, atoms]``.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from torch import nn

from hpcrl.errors import ConfigError
from hpcrl.networks.layers import Dueling, Flatten, PixelConv2d, ResidualSection, ToFloat, WideLinear


class Convolution(NamedTuple):
    """One convolution of a network for frames."""

    channels: int
    kernel: int
    stride: int
    padding: int = 0

    def output(self, size: int) -> int:
        """Height or width of what it makes of frames of that height or width."""
        return (size + 2 * self.padding - self.kernel) // self.stride + 1

    def least_input(self, size: int) -> int:
        """Least height or width of frames that it makes that height or width of."""
        return (size - 1) * self.stride + self.kernel - 2 * self.padding


class Convolutional(NamedTuple):
    """Convolutions and the units of one hidden layer behind them."""

    convolutions: tuple[Convolution, ...]
    units: int


CONVOLUTIONAL = {
    "nature": Convolutional((Convolution(32, 8, 4), Convolution(64, 4, 2), Convolution(64, 3, 1)), 512),
    "dqn_net": Convolutional((Convolution(32, 8, 4), Convolution(64, 4, 2, 1), Convolution(64, 3, 1, 1)), 512),
    "a3c_net": Convolutional((Convolution(16, 8, 4), Convolution(32, 4, 2, 1)), 256),
}
"""Nature DQN (Mnih et al. 2015, Methods; also Gorila's): 1.69M parameters at 84x84x4. DQN-Net and A3C-Net of
Accelerated Methods (section A.1), whose padding keeps more of their frames of 104x80: 3.6M and 0.9M parameters."""

IMPALA_CHANNELS = (16, 32, 32)
IMPALA_UNITS = 256
"""The deep network of Espeholt et al. 2018 (figure 3, right), without its LSTM."""


def convolutional(
    kind: str,
    input_shape: Sequence[int],
    num_actions: int,
    dueling: bool = False,
    atoms: int = 0,
    layer_norm: bool = False,
) -> nn.Module:
    """A network of :data:`CONVOLUTIONAL`.

    Parameters
    ----------
    kind : str
    input_shape : (stack, height, width)
    num_actions : int
    dueling : bool
        Two streams, each with the hidden layer, follow the convolutions.
    atoms : int
        Outputs for each action; 0: its value alone.
    layer_norm : bool
        Each layer but the last is normalised before its ReLU, over all its units (PQN, Gallici et al. 2024).

    Raises
    ------
    ConfigError
        Nothing is left of frames so small.
    """
    (channels, *size), (convolutions, units) = input_shape, CONVOLUTIONAL[kind]
    layers: list[nn.Module] = []
    for convolution in convolutions:
        make = nn.Conv2d if layers else PixelConv2d
        norm = [nn.GroupNorm(1, convolution.channels)] if layer_norm else []
        layers += [make(channels, *convolution), *norm, nn.ReLU()]
        channels, size = convolution.channels, [convolution.output(pixels) for pixels in size]
    if min(size) < 1:
        least = 1
        for convolution in reversed(convolutions):
            least = convolution.least_input(least)
        raise ConfigError(
            f'network.kind = "{kind}" needs frames of at least {least}x{least} pixels, got '
            f'{input_shape[1]}x{input_shape[2]}; set network.kind = "mlp"'
        )
    stream = partial(_wide_stream, channels * size[0] * size[1], units, layer_norm)
    return nn.Sequential(*layers, Flatten(), *_head(stream, num_actions, dueling, atoms))


def impala(input_shape: Sequence[int], num_actions: int, dueling: bool = False, atoms: int = 0) -> nn.Module:
    """The residual network of IMPALA on frames of any size; the arguments are those of :func:`convolutional`."""
    (channels, *size), sections = input_shape, []
    for index, width in enumerate(IMPALA_CHANNELS):
        sections.append(ResidualSection(channels, width, pixels=index == 0))
        channels, size = width, [-(-pixels // 2) for pixels in size]
    stream = partial(_wide_stream, channels * size[0] * size[1], IMPALA_UNITS, False)
    return nn.Sequential(*sections, nn.ReLU(), Flatten(), *_head(stream, num_actions, dueling, atoms))


def mlp(
    input_shape: Sequence[int],
    num_actions: int,
    hidden: Sequence[int],
    dueling: bool = False,
    atoms: int = 0,
    layer_norm: bool = False,
) -> nn.Module:
    """Fully connected ReLU network with layers of ``hidden`` units; each stream of a dueling one has the last.

    The other arguments are those of :func:`convolutional`.
    """
    widths = [int(np.prod(input_shape)), *hidden]
    last = max(len(hidden) - 1, 0)

    def layers(widths: Sequence[int]) -> list[nn.Module]:
        made = []
        for shape in pairwise(widths):
            norm = [nn.LayerNorm(shape[1])] if layer_norm else []
            made += [nn.Linear(*shape), *norm, nn.ReLU()]
        return made

    def stream(outputs: int) -> list[nn.Module]:
        return [*layers(widths[last:]), nn.Linear(widths[-1], outputs)]

    return nn.Sequential(ToFloat(), *layers(widths[: last + 1]), *_head(stream, num_actions, dueling, atoms))


def _wide_stream(features: int, units: int, layer_norm: bool, outputs: int) -> list[nn.Module]:
    norm = [nn.LayerNorm(units)] if layer_norm else []
    return [WideLinear(features, units), *norm, nn.ReLU(), nn.Linear(units, outputs)]


def _head(stream: Callable[[int], list[nn.Module]], num_actions: int, dueling: bool, atoms: int) -> list[nn.Module]:
    """``stream(outputs)`` once, or twice for the dueling streams of state value and advantages."""

    def outputs_of(actions: int) -> list[nn.Module]:
        if not atoms:
            return stream(actions)
        return [*stream(actions * atoms), nn.Unflatten(1, (actions, atoms))]

    if not dueling:
        return outputs_of(num_actions)
    return [Dueling(nn.Sequential(*outputs_of(1)), nn.Sequential(*outputs_of(num_actions)))]
