"""Deep Q-learning: the gradient of one minibatch (Mnih et al. 2015; Gorila, section 4), and acting on the values."""

from collections.abc import Callable

import numpy as np
import torch

from hpcrl.algorithms.gradients import clip_norm
from hpcrl.algorithms.rules import Rule
from hpcrl.networks import Forward, Recorded, Replica, Upload, autocast
from hpcrl.types import Batch


class Dqn:
    """Computes gradients of Q-learning into the online replica's flat gradient vector.

    Parameters
    ----------
    online, target : Replica
        The learner's network, and the copy whose values are bootstrapped from.
    rule : Rule
        What the outputs of both mean, and their loss.
    double : bool
        The online network chooses the next action and the target network values it (Double DQN).
    max_gradient_norm : float
        The whole gradient is scaled down to this norm; 0 leaves it alone.
    dtype : torch.dtype
        Arithmetic of the network; losses are float32.
    recorded : bool
        On a GPU, record the step as a CUDA graph: all minibatches have one shape.
    compiler : str
        Networks and losses are those that this backend of ``torch.compile`` makes of them, at the first minibatch.
    """

    def __init__(
        self,
        online: Replica,
        target: Replica,
        *,
        rule: Rule,
        double: bool,
        max_gradient_norm: float,
        dtype: torch.dtype,
        recorded: bool = False,
        compiler: str = "",
    ):
        self.online, self.target, self.rule, self.double = online, target, rule, double
        self.max_gradient_norm, self.dtype = max_gradient_norm, dtype
        self._upload = Upload(online.device)
        self._losses = self._plain_losses
        if compiler:
            online.flat.accumulate()
            self._losses = torch.compile(self._plain_losses, backend=compiler, dynamic=False)
        self._step = Recorded(self._backward) if recorded and online.device != "cpu" else self._backward

    def gradient(self, batch: Batch) -> tuple[float, float, np.ndarray]:
        """Gradient of the mean (weighted) loss over a batch, into ``online.flat.gradients``.

        Returns
        -------
        loss, mean_q : float
            Mean loss, and mean of the values of the actions' states (mean over batch of max over actions).
        errors : float32 [B]
            What priorities are made of: TD errors, or what the rule has in their place.
        """
        arrays = batch[:5] if batch.weight is None else (*batch[:5], batch.weight)
        loss, mean_q, errors = self._step(*self._upload(arrays))
        return loss.item(), mean_q.item(), errors.cpu().numpy()

    def _backward(
        self,
        s_tm1: torch.Tensor,
        a_tm1: torch.Tensor,
        r_t: torch.Tensor,
        discount_t: torch.Tensor,
        s_t: torch.Tensor,
        weight: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What :meth:`gradient` returns, on the device, which is not waited for."""
        self.online.flat.zero_gradients()
        loss, mean_q, errors = self._losses(s_tm1, a_tm1, r_t, discount_t, s_t, weight)
        loss.backward()
        if self.max_gradient_norm:
            clip_norm(self.online.flat.gradients, self.max_gradient_norm)
        return loss.detach(), mean_q, errors

    def _plain_losses(self, s_tm1, a_tm1, r_t, discount_t, s_t, weight) -> tuple[torch.Tensor, ...]:
        """The mean loss, whose gradient is to be computed, and the rest of what :meth:`gradient` returns."""
        with autocast(self.online.device, self.dtype):
            with torch.no_grad():
                outputs_t = self.target.network(s_t).float()
                choosing_t = self.online.network(s_t).float() if self.double else outputs_t
            outputs_tm1 = self.online.network(s_tm1).float()
        a_t = self.rule.q(choosing_t).argmax(dim=1)
        losses, errors = self.rule.losses(outputs_tm1, a_tm1, r_t, discount_t, outputs_t, a_t)
        if weight is not None:
            losses = losses * weight
        mean_q = self.rule.q(outputs_tm1.detach()).max(dim=1).values.mean()
        return losses.mean(), mean_q, errors


class EpsilonGreedy:
    """Greedy in the replica's action values, or uniform with probability epsilon.

    Parameters
    ----------
    replica : Replica
    q : callable
        ``q(outputs)``: action values ``[E, A]`` of the network's outputs, as of :class:`hpcrl.algorithms.rules.Rule`.
    num_actions : int
    rng : numpy.random.Generator
    dtype : torch.dtype
        Arithmetic of the network.
    threads : int
        Of a forward pass, see `hpcrl.networks.Forward`.

    Attributes
    ----------
    keeps_values : bool
        Whether ``values``, float32 ``[E, A]``, holds the action values of the observations last acted upon.
    """

    def __init__(
        self,
        replica: Replica,
        q: Callable[[torch.Tensor], torch.Tensor],
        num_actions: int,
        rng: np.random.Generator,
        dtype: torch.dtype,
        threads: int = 0,
    ):
        self.replica, self.q, self.num_actions, self.rng = replica, q, num_actions, rng
        self.forward = Forward(replica, dtype, threads)
        self.keeps_values, self.values = False, None

    @torch.inference_mode()
    def act(self, observation, epsilon):
        """int64 ``[E]`` actions for observations ``[E, stack, ...]``; ``epsilon`` is a number or float64 ``[E]``.

        Draws one uniform and one action for every simulator whatever epsilon is, so that the random stream does not
        depend on it; the network is not run where no simulator is greedy, unless its values are kept.
        """
        explore = self.rng.random(len(observation)) < epsilon
        actions = self.rng.integers(self.num_actions, size=len(observation))
        if self.keeps_values or not explore.all():
            q = self.action_values(observation)
            greedy = q.argmax(dim=1).cpu().numpy()
            if self.keeps_values:
                self.values = q.cpu().numpy()
            actions[~explore] = greedy[~explore]
        return actions

    def action_values(self, observation: np.ndarray) -> torch.Tensor:
        """float32 ``[E, A]``, on the network's device."""
        return self.q(self.forward(observation).float())
