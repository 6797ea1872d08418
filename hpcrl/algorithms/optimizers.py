"""Optimizers of a server's flat parameter shard: torch.optim, and its state as plain arrays."""

import numpy as np
import torch
from torch import nn


def make_optimizer(
    name: str,
    shard: nn.Parameter,
    *,
    learning_rate: float,
    epsilon: float,
    momentum: float = 0.0,
    initial_accumulator: float = 0.0,
    rmsprop_decay: float = 0.95,
    rmsprop_centered: bool = True,
    adam_betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """``"sgd"``, ``"rmsprop"``, ``"adagrad"`` (Gorila's) or ``"adam"`` on one flat float32 parameter.

    ``epsilon`` stands outside the root, as in torch. Fused kernels are used where torch has them for this device.
    """
    if name == "sgd":
        return torch.optim.SGD([shard], lr=learning_rate, momentum=momentum, fused=True)
    if name == "rmsprop":
        return torch.optim.RMSprop(
            [shard], lr=learning_rate, alpha=rmsprop_decay, eps=epsilon, centered=rmsprop_centered, momentum=momentum
        )
    if name == "adagrad":
        return torch.optim.Adagrad(
            [shard], lr=learning_rate, eps=epsilon, initial_accumulator_value=initial_accumulator, fused=True
        )
    return torch.optim.Adam([shard], lr=learning_rate, betas=adam_betas, eps=epsilon, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the rate of the next steps."""
    optimizer.param_groups[0]["lr"] = rate


def learning_rates(optimizer: torch.optim.Optimizer) -> tuple[float, float]:
    """The learning rate, and what it comes to: AdaGrad's mean over the parameters of ``rate / (sqrt(G) + epsilon)``.

    ``G``, the sum of all squared gradients, only grows, so that AdaGrad learns ever less in a long run.
    """
    group = optimizer.param_groups[0]
    rate = effective = float(group["lr"])
    if isinstance(optimizer, torch.optim.Adagrad):
        (parameter,) = group["params"]
        effective = float((rate / (optimizer.state[parameter]["sum"].sqrt() + group["eps"])).mean())
    return rate, effective


def optimizer_arrays(optimizer: torch.optim.Optimizer) -> dict[str, np.ndarray]:
    """State of an optimizer of one parameter: name to array, moments ``[n]`` and the step count ``[]``."""
    (parameter,) = optimizer.param_groups[0]["params"]
    state = optimizer.state.get(parameter, {})
    return {name: torch.as_tensor(value).detach().cpu().numpy() for name, value in state.items() if value is not None}


def restore_optimizer(optimizer: torch.optim.Optimizer, arrays: dict[str, np.ndarray]) -> None:
    """Put back what :func:`optimizer_arrays` gave."""
    (parameter,) = optimizer.param_groups[0]["params"]
    optimizer.state[parameter] = {name: torch.from_numpy(np.array(value)) for name, value in arrays.items()}
