"""The learner of IMPALA and GA3C: takes rollouts as they come, from whatever policies made them."""

from typing import Protocol

import numpy as np

from hpcrl.algorithms.impala import Impala, Trajectories
from hpcrl.roles.policy_learner import PolicyLearner
from hpcrl.sampling.rollout import Rollout
from hpcrl.transport.relay import Relay


class Source(Protocol):
    """Where rollouts come from."""

    def take(self, count: int) -> list[Rollout] | None:
        """The oldest ``count`` rollouts, held until :meth:`give_back`; None where there are fewer."""

    def give_back(self) -> None:
        """Rollouts that were taken may be overwritten."""


class RelayedRollouts:
    """Rollouts of actors on other ranks, copied as they are taken.

    Parameters
    ----------
    relay : Relay
    rollouts : list of Rollout
        As many as are taken together.
    """

    def __init__(self, relay: Relay, rollouts: list[Rollout]):
        self.relay, self.rollouts = relay, rollouts

    def take(self, count: int) -> list[Rollout] | None:
        """See :class:`Source`."""
        if not self.relay.holds(count):
            return None
        for rollout in self.rollouts:
            self.relay.pop(rollout.memory)
        return self.rollouts

    def give_back(self) -> None:
        """Nothing: they are copies."""


class TrajectoryLearner(PolicyLearner):
    """Computes one gradient of a few whole rollouts at the newest parameters, and gives them back.

    Parameters
    ----------
    algorithm : Impala
    source : Source
    rollouts : int
        Taken together.
    further
        Those of :class:`~hpcrl.roles.policy_learner.PolicyLearner`.
    """

    algorithm: Impala

    def __init__(self, index: int, *, source: Source, rollouts: int, **further):
        super().__init__(index, sampler=None, epochs=1, minibatches=1, **further)
        self.source, self.rollouts = source, rollouts
        self._taken: list[Rollout] | None = None

    def _has_experience(self) -> bool:
        """Whether there are rollouts to learn from; they are then held."""
        self._taken = self._taken or self.source.take(self.rollouts)
        return self._taken is not None

    def _learn(self) -> int:
        """Their gradient, and their number of steps."""
        trajectories = Trajectories.join([self._trajectories(rollout) for rollout in self._taken])
        steps = int(np.count_nonzero(trajectories.valid))
        if steps:
            losses = self.algorithm.gradient(trajectories)
            self._note(losses, float(np.mean([rollout.version for rollout in self._taken])))
        return steps

    def _trajectories(self, rollout: Rollout) -> Trajectories:
        steps = rollout.steps(self.discount, self.reward_clip)
        return Trajectories(rollout.observation, rollout.action, rollout.log_probability, *steps, rollout.valid)

    def _give_back(self) -> None:
        """The gradient is done with."""
        if self._taken is not None:
            self.source.give_back()
            self._taken = None
