"""Networks of the policy-gradient family: a policy and a state value from one observation."""

import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from hpcrl.errors import ConfigError
from hpcrl.networks.layers import PixelConv2d, ToFloat
from hpcrl.networks.making import make_network


class ExactLinear(nn.Linear):
    """A last layer that computes in float32 whatever its body does.

    Probabilities, and differences of values, are finer than bfloat16. It also keeps float32 parameters in a network
    whose others are converted.
    """

    def _apply(self, fn: Callable, recurse: bool = True) -> nn.Module:
        return super()._apply(lambda tensor: fn(tensor).float(), recurse)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[B, in]`` of any dtype to float32 ``[B, out]``."""
        with torch.autocast(features.device.type, enabled=False):
            return super().forward(features.float())


class Gaussian(nn.Module):
    """Means of a layer, and deviations that are parameters, the same in every state (as in Schulman et al. 2017)."""

    def __init__(self, mean: nn.Module, num_actions: int):
        super().__init__()
        self.mean, self.log_deviation = mean, nn.Parameter(torch.zeros(num_actions))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """``[B, features]`` to float32 ``[B, 2 D]``: means, and logarithms of deviations."""
        mean = self.mean(features)
        return torch.cat([mean, self.log_deviation.float().expand_as(mean)], dim=1)


class PolicyValue(nn.Module):
    """A policy and a value on one body, or each on its own.

    Parameters
    ----------
    policy, value : torch.nn.Module
        From what the body gives to the outputs of a distribution, and to ``[B, 1]``.
    body : torch.nn.Module
        From observations to what both start from.
    """

    def __init__(self, body: nn.Module, policy: nn.Module, value: nn.Module):
        super().__init__()
        self.body, self.policy, self.value = body, policy, value

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """``[B, stack, ...]`` to the policy's outputs, float32 ``[B, outputs]``, and values, float32 ``[B]``."""
        features = self.body(observation)
        return self.policy(features), self.value(features).squeeze(1)

    def prepare(self, observation: torch.Tensor) -> torch.Tensor:
        """What may be passed in place of these observations, again and again, with less work for each pass."""
        first = self.body[0] if isinstance(self.body, nn.Sequential) else self.body
        return first.prepare(observation) if isinstance(first, PixelConv2d) else observation


def make_policy_network(
    kind: str,
    hidden: Sequence[int],
    input_shape: Sequence[int],
    num_actions: int,
    obs_dtype: np.dtype | type = np.float32,
    continuous: bool = False,
) -> nn.Module:
    """Policy and value network of a kind, which is one of `hpcrl.networks.make_network` or ``"module:attribute"``.

    A network for frames gives all but its last layer to both; ``"mlp"`` is two networks, of tanh units. Layers start
    orthogonal, scaled so that the first policy is nearly uniform.

    A custom network is made by ``attribute(input_shape, outputs)``, with one output for each discrete action, or two
    (mean, logarithm of the deviation) for each number of a continuous one. It maps observations ``[B, *input_shape]``
    of ``obs_dtype`` to outputs ``[B, outputs]`` and values ``[B]``, both float32; it is tried once here.

    Raises
    ------
    ConfigError
        The network cannot be made, or does not keep that contract.
    """
    if ":" in kind:
        return _custom(kind, tuple(input_shape), 2 * num_actions if continuous else num_actions, obs_dtype)
    if kind == "mlp":
        widths = [int(np.prod(input_shape)), *hidden]
        return PolicyValue(
            ToFloat(),
            nn.Sequential(*_tanh_layers(widths), _policy_head(widths[-1], num_actions, continuous)),
            nn.Sequential(*_tanh_layers(widths), _value_head(widths[-1])),
        )
    *body, last = make_network(kind, hidden, input_shape, 1, obs_dtype)
    for layer in nn.Sequential(*body).modules():
        if hasattr(layer, "weight"):
            _orthogonal(layer)
    features = last.in_features
    return PolicyValue(nn.Sequential(*body), _policy_head(features, num_actions, continuous), _value_head(features))


def count_policy_parameters(kind: str, *arguments) -> int:
    """Number of parameters of `make_policy_network`, without making their memory where the kind is a built-in one."""
    with torch.device("meta") if ":" not in kind else nullcontext():
        network = make_policy_network(kind, *arguments)
    return sum(p.numel() for p in network.parameters())


def _tanh_layers(widths: Sequence[int]) -> list[nn.Module]:
    return [layer for shape in pairwise(widths) for layer in (_orthogonal(nn.Linear(*shape)), nn.Tanh())]


def _policy_head(features: int, num_actions: int, continuous: bool) -> nn.Module:
    layer = _orthogonal(ExactLinear(features, num_actions), gain=0.01)
    return Gaussian(layer, num_actions) if continuous else layer


def _value_head(features: int) -> nn.Module:
    return _orthogonal(ExactLinear(features, 1), gain=1.0)


def _orthogonal(layer: nn.Module, gain: float = 2**0.5) -> nn.Module:
    """``layer`` with orthogonal weights and no bias."""
    if not layer.weight.is_meta:
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return layer


def _custom(kind: str, input_shape: tuple[int, ...], outputs: int, obs_dtype) -> nn.Module:
    module_name, _, attribute = kind.partition(":")
    observations = torch.from_numpy(np.zeros((2, *input_shape), obs_dtype))
    try:
        network = getattr(importlib.import_module(module_name), attribute)(input_shape, outputs)
        with torch.no_grad():
            policy, value = network(observations)
        shapes = [tuple(policy.shape), tuple(value.shape)]
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f'network.kind = "{kind}" cannot be made with input_shape = {list(input_shape)} and outputs = {outputs}, '
            f"or fails on observations {list(observations.shape)}: {type(error).__name__}: {error}"
        ) from error
    if shapes != [(2, outputs), (2,)]:
        raise ConfigError(
            f'network.kind = "{kind}" must return outputs [2, {outputs}] and values [2] for a batch of 2, got '
            f"{list(map(list, shapes))}"
        )
    if list(network.buffers()) or {p.dtype for p in network.parameters()} != {torch.float32}:
        raise ConfigError(f'network.kind = "{kind}" must have float32 parameters and no buffers')
    return network
