"""Optimizers of a server's flat parameter shard: torch.optim, and its state as plain arrays."""

import numpy as np
import torch
from torch import nn

BLOCK_ELEMENTS = 2**18
"""for each thread, of a step of :class:`RMSprop`: few enough that what it reads and writes meanwhile stays in a cache,
many enough that starting its seven operations costs little"""


class RMSprop(torch.optim.RMSprop):
    """RMSProp, centred or not, with or without momentum, one cache-sized block after the other.

    The same operations on the same state as :class:`torch.optim.RMSprop`, to the bit; but that passes over the whole
    vectors with each of its six to eight operations, and torch has no fused kernel for it on the CPU.

    Parameters
    ----------
    epsilon_inside_root : bool
        Divide by ``sqrt(v + epsilon)``, as the DQN of Nature and Gorila do, and not by ``sqrt(v) + epsilon``.
    """

    def __init__(self, params, *, epsilon_inside_root: bool = False, **options):
        super().__init__(params, **options)
        self.epsilon_inside_root = epsilon_inside_root

    @torch.no_grad()
    def step(self) -> None:
        """Apply the gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                for name in ("square_avg", *self._further_moments(group)):
                    if name not in state:
                        state[name] = torch.zeros_like(parameter)
                state["step"] = state.get("step", torch.zeros(())) + 1
                self._step(group, parameter.detach().view(-1), parameter.grad.view(-1), state)

    def _further_moments(self, group) -> list[str]:
        return ["momentum_buffer"] * (group["momentum"] > 0) + ["grad_avg"] * group["centered"]

    def _step(self, group, values: torch.Tensor, gradient: torch.Tensor, state) -> None:
        length = BLOCK_ELEMENTS * torch.get_num_threads()
        names = ("square_avg", *self._further_moments(group))
        blocks = [vector.split(length) for vector in (values, gradient, *(state[name].view(-1) for name in names))]
        scratch = torch.empty(min(length, values.numel()))
        rate, decay, epsilon, momentum = (group[name] for name in ("lr", "alpha", "eps", "momentum"))
        for x, g, v, *further in zip(*blocks, strict=True):
            root = scratch[: x.numel()]
            v.mul_(decay).addcmul_(g, g, value=1 - decay)
            spread = v
            if group["centered"]:
                mean = further[-1].lerp_(g, 1 - decay)
                spread = torch.addcmul(v, mean, mean, value=-1, out=root)
            if self.epsilon_inside_root:
                torch.add(spread, epsilon, out=root).sqrt_()
            else:
                torch.sqrt(spread, out=root).add_(epsilon)
            if momentum > 0:
                x.add_(further[0].mul_(momentum).addcdiv_(g, root), alpha=-rate)
            else:
                x.addcdiv_(g, root, value=-rate)


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
    rmsprop_epsilon_inside_root: bool = False,
    adam_betas: tuple[float, float] = (0.9, 0.999),
) -> torch.optim.Optimizer:
    """``"sgd"``, ``"rmsprop"``, ``"adagrad"`` (Gorila's) or ``"adam"`` on one flat float32 parameter.

    ``epsilon`` stands outside the root, as in torch, unless RMSProp's is to stand inside. Fused kernels are used where
    torch has them for this device.
    """
    if name == "sgd":
        return torch.optim.SGD([shard], lr=learning_rate, momentum=momentum, fused=True)
    if name == "rmsprop":
        return RMSprop(
            [shard],
            lr=learning_rate,
            alpha=rmsprop_decay,
            eps=epsilon,
            centered=rmsprop_centered,
            epsilon_inside_root=rmsprop_epsilon_inside_root,
            momentum=momentum,
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
