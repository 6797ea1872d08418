"""A network by its name in the configuration, and the contract that one of the user's own must keep."""

import importlib
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn

from hpcrl.errors import ConfigError
from hpcrl.networks.architectures import CONVOLUTIONAL, convolutional, impala, mlp

FRAME_KINDS = (*CONVOLUTIONAL, "impala")
"""Kinds of networks that take stacked frames."""


def make_network(
    kind: str,
    hidden: Sequence[int],
    input_shape: Sequence[int],
    num_actions: int,
    obs_dtype: np.dtype | type = np.float32,
    dueling: bool = False,
    atoms: int = 0,
    layer_norm: bool = False,
) -> nn.Module:
    """Network of a kind: one of :data:`FRAME_KINDS`, ``"mlp"``, or ``"module:attribute"``.

    A custom network is made by ``attribute(input_shape, num_actions)`` and maps observations ``[B, *input_shape]`` of
    ``obs_dtype`` to action values float ``[B, num_actions]``; where values are distributions, by
    ``attribute(input_shape, num_actions, atoms)``, to float ``[B, num_actions, atoms]``. It is tried once here.

    Raises
    ------
    ConfigError
        Where the network cannot be made, has buffers (which no parameter server would carry) or parameters of
        another dtype than float32, or returns another shape.
    """
    if kind in FRAME_KINDS:
        if len(input_shape) != 3 or np.dtype(obs_dtype) != np.uint8:
            raise ConfigError(
                f'network.kind = "{kind}" needs stacked frames [stack, height, width] of uint8, but this environment '
                f'gives {np.dtype(obs_dtype)} {list(input_shape)}; set network.kind = "mlp"'
            )
        if kind == "impala":
            return impala(input_shape, num_actions, dueling, atoms)
        return convolutional(kind, input_shape, num_actions, dueling, atoms, layer_norm)
    if kind == "mlp":
        return mlp(input_shape, num_actions, hidden, dueling, atoms, layer_norm)
    module_name, _, attribute = kind.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        known = ", ".join(f'"{name}"' for name in (*FRAME_KINDS, "mlp"))
        raise ConfigError(f'network.kind: expected {known} or "module:attribute", got "{kind}": {error}') from error
    outputs = (num_actions, atoms) if atoms else (num_actions,)
    return _custom_network(kind, make, tuple(input_shape), outputs, obs_dtype)


def _custom_network(
    kind: str, make: Callable, input_shape: tuple[int, ...], outputs: tuple[int, ...], obs_dtype
) -> nn.Module:
    """``make(input_shape, *outputs)``, where it keeps the contract."""
    observations = torch.from_numpy(np.zeros((2, *input_shape), obs_dtype))
    try:
        network = make(input_shape, *outputs)
        with torch.no_grad():
            values = network(observations)
    except (TypeError, ValueError, RuntimeError) as error:
        arguments = ", ".join(map(str, (list(input_shape), *outputs)))
        names = ", ".join(("input_shape", "num_actions", "atoms")[: 1 + len(outputs)])
        raise ConfigError(
            f'network.kind = "{kind}" cannot be made with ({names}) = ({arguments}), or fails on observations '
            f"{list(observations.shape)}: {type(error).__name__}: {error}"
        ) from error
    if fault := _contract_fault(network, values, outputs):
        raise ConfigError(f'network.kind = "{kind}" {fault}')
    return network


def _contract_fault(network: nn.Module, values: torch.Tensor, outputs: tuple[int, ...]) -> str:
    """What a custom network, and its values of two observations, break of the contract; empty if nothing."""
    if not isinstance(network, nn.Module):
        return f"must make a torch.nn.Module, got {type(network).__name__}"
    if names := [name for name, _ in network.named_buffers()]:
        return f"has buffers ({', '.join(names)}); only parameters are shared"
    dtypes = {p.dtype for p in network.parameters()}
    if dtypes != {torch.float32}:
        return f"must have float32 parameters, got {', '.join(map(str, dtypes)) or 'none'}"
    if not isinstance(values, torch.Tensor):
        return f"must return a tensor, got {type(values).__name__}"
    if tuple(values.shape) != (2, *outputs):
        return f"must return {[2, *outputs]} for a batch of 2, got {list(values.shape)}"
    return ""


def count_parameters(
    kind: str,
    hidden: Sequence[int],
    input_shape: Sequence[int],
    num_actions: int,
    obs_dtype: np.dtype | type = np.float32,
    dueling: bool = False,
    atoms: int = 0,
    layer_norm: bool = False,
) -> int:
    """Number of parameters of a network, without making their memory where the kind is a built-in one."""
    with torch.device("meta") if ":" not in kind else nullcontext():
        network = make_network(kind, hidden, input_shape, num_actions, obs_dtype, dueling, atoms, layer_norm)
    return sum(p.numel() for p in network.parameters())
