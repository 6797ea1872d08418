"""The actor of the policy-gradient family: plays one rollout after the other (Accelerated Methods, section 4.1)."""

from collections.abc import Callable, Mapping

import numpy as np

from hpcrl.networks import Replica
from hpcrl.roles.checkpointing import part
from hpcrl.roles.metrics import Reporter
from hpcrl.sampling.asynchronous import AsynchronousSampler
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler, Stepped
from hpcrl.seeding import generator_state, restore_generator


class RolloutActor:
    """Steps ``E`` simulators with a policy that changes when the sampler lets it, between rollouts or at any time.

    Parameters
    ----------
    replica : Replica
        Follows the newest parameters; the sampler's policy acts by it.
    sampler : Sampler or AsynchronousSampler
        Its rollouts are what the learner of this rank learns from.
    deliver : callable, optional
        ``deliver(rollout)`` sends a full one to a learner elsewhere; whether there was room for it.
    count : callable
        ``count(steps)`` adds to the job's total and returns it in frames.
    keeps_episodes : bool
        The rollout and the episodes under way belong to the state: the environment can be saved. Else they are lost.
    """

    kind = "actor"

    def __init__(
        self,
        index: int,
        *,
        replica: Replica,
        sampler: Sampler | AsynchronousSampler,
        count: Callable[[int], int],
        reporter: Reporter,
        keeps_episodes: bool = False,
        deliver: Callable[[Rollout], bool] | None = None,
    ):
        self.index, self.replica, self.sampler, self.deliver = index, replica, sampler, deliver
        self.count, self.reporter, self.keeps_episodes = count, reporter, keeps_episodes
        self.acted_steps = 0
        self.total_frames = count(0)
        self.episode_return = np.zeros(sampler.num_envs)
        self.episode_steps = np.zeros(sampler.num_envs, np.int64)

    @property
    def epsilon(self) -> float:
        """Probability of a random action; NaN where all are drawn from a policy."""
        return self.sampler.policy.epsilon

    def step(self) -> bool:
        """Let simulators act, unless they still simulate or rollouts have yet to be used."""
        self.reporter.actor(self)
        if self.deliver and self.sampler.rollout.full:
            if not self.deliver(self.sampler.rollout):
                return False
            self.sampler.begin()
        if not self.sampler.ready:
            return False
        if self.sampler.at_start:
            self.replica.pull()  # (1)
            self.sampler.version = self.replica.global_update
        for stepped in self.sampler.step():  # (2), (3), (4)
            self._count(stepped)  # (5), (6)
        return True

    def _count(self, stepped: Stepped) -> None:
        """Count what simulators did, and report the episodes that they finished."""
        of, step = stepped
        acted = int(np.count_nonzero(~step.reset))
        self.acted_steps += acted
        self.total_frames = self.count(acted)
        self.episode_return[of] += step.reward
        self.episode_steps[of] += ~step.reset
        for simulator in of.start + np.flatnonzero(step.episode_over):
            self.reporter.episode(self, int(simulator))
            self.episode_return[simulator] = 0
            self.episode_steps[simulator] = 0

    def state(self) -> dict:
        """Everything that a checkpoint must hold of this actor; copies."""
        for stepped in self.sampler.settle() if self.keeps_episodes else ():
            self._count(stepped)
        state = {"acted_steps": np.int64(self.acted_steps), "rng": generator_state(self.sampler.policy.rng)}
        if self.keeps_episodes:
            state["rollout"] = {
                "return": self.episode_return.copy(),
                "steps": self.episode_steps.copy(),
                "sampler": self.sampler.state(),
                "experience": self.sampler.rollout.state(),
                "env": {str(index): group.env.state() for index, group in enumerate(self.sampler.groups)},
                "replica": self.replica.state(),
            }
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened; without a rollout in it, a new one begins."""
        self.acted_steps = int(state["acted_steps"])
        restore_generator(self.sampler.policy.rng, state["rng"])
        if rollout := part(state, "rollout"):
            self.episode_return, self.episode_steps = np.array(rollout["return"]), np.array(rollout["steps"])
            self.sampler.restore(part(rollout, "sampler"))
            self.sampler.rollout.restore(part(rollout, "experience"))
            for index, group in enumerate(self.sampler.groups):
                group.env.restore(part(rollout, f"env/{index}"))
            self.replica.restore(part(rollout, "replica"))
