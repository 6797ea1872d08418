"""PQN: Q-learning on rollouts, without replay and without target network (Gallici et al. 2024)."""

from collections.abc import Callable

import numpy as np
import torch

from hpcrl.algorithms.a2c import Experience, Losses
from hpcrl.algorithms.dqn import EpsilonGreedy
from hpcrl.algorithms.gradients import clip_norm
from hpcrl.algorithms.policy_gradient import Decision
from hpcrl.networks import Replica, Upload, autocast


class Pqn:
    """Gradient of ``(Q(s, a) - R)^2 / 2``, where ``R`` is the lambda-return of a rollout (section 4, Algorithm 1).

    ``R_t = r_t + discount_t (lambda R_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a))``, with the values of the network that
    acted. That is the lambda-return of a state value ``max_a Q``: :mod:`hpcrl.algorithms.returns` computes it.

    Parameters
    ----------
    online : Replica
        The learner's Q-network, whose hidden layers are normalised.
    max_gradient_norm : float
        The whole gradient is scaled down to this norm; 0 leaves it alone.
    dtype : torch.dtype
        Arithmetic of the network; losses are float32.
    """

    def __init__(self, online: Replica, *, max_gradient_norm: float, dtype: torch.dtype):
        self.online, self.max_gradient_norm, self.dtype = online, max_gradient_norm, dtype
        self._upload = Upload(online.device)

    def gradient(self, experience: Experience) -> Losses:
        """Gradient of the mean loss, into ``online.flat.gradients``; what only a policy has is NaN."""
        flat = self.online.flat
        observation, action, target = self._upload((experience.observation, experience.action, experience.target))
        flat.zero_gradients()
        with autocast(self.online.device, self.dtype):
            q = self.online.network(observation)
        q = q.float()
        loss = 0.5 * (q.gather(1, action.unsqueeze(1)).squeeze(1) - target).square().mean()
        loss.backward()
        norm = flat.gradients.norm()
        if self.max_gradient_norm:
            clip_norm(flat.gradients, self.max_gradient_norm)
        none = float("nan")
        return Losses(
            loss=loss.item(),
            value=q.detach().max(dim=1).values.mean().item(),
            policy_loss=none,
            value_loss=loss.item(),
            entropy=none,
            kl=none,
            clipped=none,
            gradient_norm=norm.item(),
            diversity=none,
        )


class EpsilonGreedyRollout(EpsilonGreedy):
    """Epsilon-greedy actions for a rollout; the value of a state is its greatest action value.

    Parameters
    ----------
    replica, q, num_actions, rng, dtype, threads
        As in :class:`~hpcrl.algorithms.dqn.EpsilonGreedy`.
    epsilon : callable
        ``epsilon()``: the probability of a random action now.

    Attributes
    ----------
    epsilon : float
        That of the actions last chosen.
    """

    def __init__(self, replica, q, num_actions, rng, dtype, threads=0, *, epsilon: Callable[[], float]):
        super().__init__(replica, q, num_actions, rng, dtype, threads)
        self.keeps_values, self.epsilon_now, self.epsilon = True, epsilon, epsilon()

    def decide(self, observation: np.ndarray) -> Decision:
        """Choose an action in each state, obs_dtype ``[E, stack, ...]``; its probability is of no use to Q-learning."""
        self.epsilon = self.epsilon_now()
        action = self.act(observation, self.epsilon)
        return Decision(action, np.zeros(len(action), np.float32), self.values.max(axis=1))

    @torch.inference_mode()
    def value(self, observation: np.ndarray) -> np.ndarray:
        """float32 ``[E]``: of the states."""
        return self.action_values(observation).max(dim=1).values.cpu().numpy()
