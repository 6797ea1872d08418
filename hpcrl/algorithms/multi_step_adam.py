"""Asynchronous Adam, and its multi-step form (Accelerated Methods, section 4.3 and appendix B).

Central moments and parameters are shared by learners that overwrite them in turn. In the multi-step form a learner
makes several steps with a copy of its own, and then adds what came of them. With ``a_t = alpha sqrt(1 - beta_2^t) /
(1 - beta_1^t)``, every local step with a gradient g is::

    m <- beta_1 m + (1 - beta_1) g            A_g  <- beta_1 A_g + g
    v <- beta_2 v + (1 - beta_2) g^2          A_g2 <- beta_2 A_g2 + g^2
    s = -a_t m / (sqrt(v) + epsilon)          A_s  <- A_s + s            theta <- theta + s

and after n of them, for each part of the central vectors in turn::

    theta' <- theta' + A_s
    m' <- beta_1^n m' + (1 - beta_1) A_g      v' <- beta_2^n v' + (1 - beta_2) A_g2
    theta, m, v <- theta', m', v';            A_s, A_g, A_g2 <- 0

where n is the number of steps that were really made. One learner alone does plain Adam whatever n is; of several, the
central moments decay with each gradient of each, as if all had come one after the other; t is a learner's own count.
"""

from dataclasses import dataclass

import torch

from hpcrl.algorithms.optimizers import Adam, State


@dataclass(frozen=True)
class AsynchronousAdam(Adam):
    """Adam in the form above: epsilon is added to the root of the uncorrected second moment."""

    def apply(self, values: torch.Tensor, gradient: torch.Tensor, state: State, rate: float) -> None:
        """One step of ``values``, float32 ``[n]``, at learning rate ``rate``; ``step`` is made one more."""
        values.add_(self.step(gradient, state, rate))

    def step(self, gradient: torch.Tensor, state: State, rate: float) -> torch.Tensor:
        """``s``, float32 ``[n]``: moves the moments, and returns what is to be added to the parameters."""
        (beta_1, beta_2), m, v = self.betas, state["exp_avg"], state["exp_avg_sq"]
        state["step"] += 1
        t = float(state["step"])
        a_t = rate * (1 - beta_2**t) ** 0.5 / (1 - beta_1**t)
        m.lerp_(gradient, 1 - beta_1)
        v.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
        return torch.div(m, v.sqrt().add_(self.epsilon)).mul_(-a_t)


class MultiStepAdam:
    """A learner's own copy, and what it has to add to the central one.

    Parameters
    ----------
    values : torch.Tensor
        float32 ``[P]``: the learner's parameters, theta; changed in place.
    rule : AsynchronousAdam
    steps : int
        Steps that this learner has made before.

    Attributes
    ----------
    since : int
        Steps since the last :meth:`begin`.
    """

    def __init__(self, values: torch.Tensor, rule: AsynchronousAdam, steps: int = 0):
        self.values, self.rule = values, rule
        self.state = rule.start(values)
        self.state["step"].fill_(steps)
        self._sum_s, self._sum_g, self._sum_g2 = (torch.zeros_like(values) for _ in range(3))
        self.since = 0

    @torch.no_grad()
    def step(self, gradient: torch.Tensor, rate: float) -> None:
        """One local step with a gradient, float32 ``[P]``."""
        beta_1, beta_2 = self.rule.betas
        s = self.rule.step(gradient, self.state, rate)
        self.values.add_(s)
        self._sum_s.add_(s)
        self._sum_g.mul_(beta_1).add_(gradient)
        self._sum_g2.mul_(beta_2).addcmul_(gradient, gradient)
        self.since += 1

    @torch.no_grad()
    def merge(self, begin: int, end: int, values: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
        """Add the steps made to the central parts ``begin:end``, float32 ``[end - begin]``, and take these over."""
        beta_1, beta_2 = self.rule.betas
        part = slice(begin, end)
        values.add_(self._sum_s[part])
        m.mul_(beta_1**self.since).add_(self._sum_g[part], alpha=1 - beta_1)
        v.mul_(beta_2**self.since).add_(self._sum_g2[part], alpha=1 - beta_2)
        self.take(begin, end, values, m, v)

    @torch.no_grad()
    def take(self, begin: int, end: int, values: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> None:
        """Take over central parts as they are."""
        part = slice(begin, end)
        self.values[part], self.state["exp_avg"][part], self.state["exp_avg_sq"][part] = values, m, v

    def begin(self) -> None:
        """All parts are merged: begin to add up anew."""
        for total in (self._sum_s, self._sum_g, self._sum_g2):
            total.zero_()
        self.since = 0
