"""Optimizers of a flat parameter vector, as rules of plain tensors.

A rule holds no state: it is given the parameters, their gradient and its moments, and changes the first and the last in
place. So the same rule serves whoever owns the vector: a parameter server its shard, a learner all parameters.
The arithmetic is torch's, by the functions under its optimizer classes; those classes themselves would import torch's
compiler with the first optimizer made: more than a second of start-up and 70 MB on each rank.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.optim.adagrad import adagrad
from torch.optim.adam import adam
from torch.optim.sgd import sgd

BLOCK_ELEMENTS = 2**18
"""for each thread, of a step of :class:`RMSProp`: few enough that what it reads and writes meanwhile stays in a cache,
many enough that starting its seven operations costs little"""

State = dict[str, torch.Tensor]
"""Moments, float32 ``[n]``, and the number of steps taken, float32 ``[]``, by torch's names."""


@dataclass(frozen=True)
class SGD:
    """Gradient descent, with momentum or without."""

    momentum: float = 0.0

    def start(self, values: torch.Tensor) -> State:
        """The state before the first step."""
        return {"momentum_buffer": torch.zeros_like(values)} if self.momentum > 0 else {}

    def apply(self, values: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        """One step of ``values``, float32 ``[n]``, at learning rate ``rate``."""
        sgd(
            [values],
            [gradient],
            [state.get("momentum_buffer")],
            fused=True,
            lr=rate,
            momentum=self.momentum,
            weight_decay=0.0,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


@dataclass(frozen=True)
class RMSProp:
    """RMSProp, centred or not, with or without momentum, one cache-sized block after the other.

    The same operations on the same state as :class:`torch.optim.RMSprop`, to the bit; but that passes over the whole
    vectors with each of its six to eight operations, and torch has no fused kernel for it on the CPU.

    Parameters
    ----------
    epsilon_inside_root : bool
        Divide by ``sqrt(v + epsilon)``, as the DQN of Nature and Gorila do, and not by ``sqrt(v) + epsilon``.
    """

    decay: float
    epsilon: float
    centered: bool = False
    epsilon_inside_root: bool = False
    momentum: float = 0.0

    def start(self, values: torch.Tensor) -> State:
        """The state before the first step."""
        state = {name: torch.zeros_like(values) for name in self._moments()}
        return {**state, "step": torch.zeros((), device=values.device)}

    def _moments(self) -> tuple[str, ...]:
        return ("square_avg",) + ("momentum_buffer",) * (self.momentum > 0) + ("grad_avg",) * self.centered

    def apply(self, values: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        """One step of ``values``, float32 ``[n]``, at learning rate ``rate``."""
        state["step"] += 1
        length = BLOCK_ELEMENTS * torch.get_num_threads()
        blocks = [vector.split(length) for vector in (values, gradient, *(state[name] for name in self._moments()))]
        scratch = values.new_empty(min(length, values.numel()))
        for x, g, v, *further in zip(*blocks, strict=True):
            root = scratch[: x.numel()]
            v.mul_(self.decay).addcmul_(g, g, value=1 - self.decay)
            spread = v
            if self.centered:
                mean = further[-1].lerp_(g, 1 - self.decay)
                spread = torch.addcmul(v, mean, mean, value=-1, out=root)
            if self.epsilon_inside_root:
                torch.add(spread, self.epsilon, out=root).sqrt_()
            else:
                torch.sqrt(spread, out=root).add_(self.epsilon)
            if self.momentum > 0:
                x.add_(further[0].mul_(self.momentum).addcdiv_(g, root), alpha=-rate)
            else:
                x.addcdiv_(g, root, value=-rate)


@dataclass(frozen=True)
class AdaGrad:
    """AdaGrad, the rule of DistBelief and Gorila."""

    epsilon: float
    initial_accumulator: float = 0.0

    def start(self, values: torch.Tensor) -> State:
        """The state before the first step."""
        return {
            "step": torch.zeros((), device=values.device),
            "sum": torch.full_like(values, self.initial_accumulator),
        }

    def apply(self, values: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        """One step of ``values``, float32 ``[n]``, at learning rate ``rate``."""
        adagrad(
            [values],
            [gradient],
            [state["sum"]],
            [state["step"]],
            fused=True,
            lr=rate,
            eps=self.epsilon,
            weight_decay=0.0,
            lr_decay=0.0,
            maximize=False,
        )

    def effective_rate(self, state: State, rate: float) -> float:
        """Mean over the parameters of ``rate / (sqrt(G) + epsilon)``, ``G`` the sum of all squared gradients."""
        return float((rate / (state["sum"].sqrt() + self.epsilon)).mean())


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma & Ba 2015)."""

    epsilon: float
    betas: tuple[float, float] = (0.9, 0.999)

    def start(self, values: torch.Tensor) -> State:
        """The state before the first step."""
        moments = {name: torch.zeros_like(values) for name in ("exp_avg", "exp_avg_sq")}
        return {"step": torch.zeros((), device=values.device), **moments}

    def apply(self, values: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        """One step of ``values``, float32 ``[n]``, at learning rate ``rate``."""
        adam(
            [values],
            [gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
            fused=True,
            lr=rate,
            beta1=self.betas[0],
            beta2=self.betas[1],
            eps=self.epsilon,
            weight_decay=0.0,
            amsgrad=False,
            maximize=False,
        )


Rule = SGD | RMSProp | AdaGrad | Adam


def make_rule(
    name: str,
    *,
    epsilon: float,
    momentum: float = 0.0,
    initial_accumulator: float = 0.0,
    rmsprop_decay: float = 0.95,
    rmsprop_centered: bool = True,
    rmsprop_epsilon_inside_root: bool = False,
    adam_betas: tuple[float, float] = (0.9, 0.999),
) -> Rule:
    """``"sgd"``, ``"rmsprop"``, ``"adagrad"`` (Gorila's) or ``"adam"``.

    ``epsilon`` stands outside the root, as in torch, unless RMSProp's is to stand inside.
    """
    makers: dict[str, Callable[[], Rule]] = {
        "sgd": lambda: SGD(momentum),
        "rmsprop": lambda: RMSProp(rmsprop_decay, epsilon, rmsprop_centered, rmsprop_epsilon_inside_root, momentum),
        "adagrad": lambda: AdaGrad(epsilon, initial_accumulator),
        "adam": lambda: Adam(epsilon, adam_betas),
    }
    return makers[name]()


@dataclass
class Optimizer:
    """A vector, the rule that it moves by, and the state of that.

    Parameters
    ----------
    values : torch.Tensor
        float32 ``[n]``; changed in place.
    rule : Rule
    learning_rate : float
        Of the next steps; may be set at any time.
    """

    values: torch.Tensor
    rule: Rule
    learning_rate: float
    state: State = field(init=False)

    def __post_init__(self):
        self.state = self.rule.start(self.values)

    @torch.no_grad()
    def step(self, gradient: torch.Tensor) -> None:
        """Apply a gradient, float32 ``[n]``; it is neither changed nor kept."""
        self.rule.apply(self.values, gradient, self.state, self.learning_rate)

    def effective_rate(self) -> float:
        """What the learning rate comes to: less and less under AdaGrad, whose sum of squares only grows."""
        if isinstance(self.rule, AdaGrad):
            return self.rule.effective_rate(self.state, self.learning_rate)
        return self.learning_rate

    def arrays(self) -> dict[str, np.ndarray]:
        """The state by name: moments ``[n]`` and the step count ``[]``; views where it lies in host memory."""
        return {name: value.cpu().numpy() for name, value in self.state.items()}

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        """Put back what :meth:`arrays` gave; copies."""
        for name, value in self.state.items():
            value.copy_(torch.from_numpy(np.asarray(arrays[name])))
