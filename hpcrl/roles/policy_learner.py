"""The learner of the policy-gradient family: learns from each rollout of its rank's actor, which it then gives back."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from hpcrl.algorithms.a2c import A2c, Experience, Losses
from hpcrl.algorithms.pqn import Pqn
from hpcrl.algorithms.returns import generalized_advantages
from hpcrl.networks import Replica
from hpcrl.roles.checkpointing import part
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.norms import LayerNorms
from hpcrl.roles.updates import Fate, Update
from hpcrl.sampling.sampler import Sampler
from hpcrl.seeding import generator_state, restore_generator

STATISTICS = (*Losses._fields[2:], "explained_variance", "lag")


class PolicyLearner:
    """Computes gradients of a rollout's minibatches at the newest parameters, a few times over.

    A2C takes a rollout once, as one minibatch; PPO ``epochs`` times, each in ``minibatches`` of another division.

    Parameters
    ----------
    online : Replica
        What the gradients are of.
    update : Update
        What becomes of them.
    algorithm : A2c, Ppo or Pqn
        Writes gradients into ``online``.
    sampler : Sampler
        Its rollout is learned from when it is full; then the next may begin.
    epochs, minibatches : int
    discount, trace_decay : float
        ``gamma`` per step, and ``lambda`` of the advantages.
    reward_clip : float or None
        Rewards are clipped to [-c, c].
    rng : numpy.random.Generator
        Divides rollouts into minibatches.
    norms : LayerNorms, optional
        Looks at every gradient.
    keeps_parameters : bool
        The learning under way belongs to the state, so that a serial run goes on as if it had not been stopped.
    """

    kind = "learner"

    def __init__(
        self,
        index: int,
        *,
        online: Replica,
        update: Update,
        algorithm: A2c | Pqn,
        sampler: Sampler | None,
        epochs: int,
        minibatches: int,
        discount: float,
        trace_decay: float,
        reward_clip: float | None,
        rng: np.random.Generator,
        reporter: Reporter,
        norms: LayerNorms | None = None,
        keeps_parameters: bool = False,
    ):
        self.index, self.online, self.update, self.algorithm = index, online, update, algorithm
        self.sampler, self.rollout = sampler, sampler and sampler.rollout
        self.epochs, self.minibatches, self.discount = epochs, minibatches, discount
        self.trace_decay, self.reward_clip, self.rng = trace_decay, reward_clip, rng
        self.reporter, self.norms, self.keeps_parameters = reporter, norms, keeps_parameters
        self.updates = self.trained = 0
        self.in_flight = False
        self.fates: Counter[Fate] = Counter()
        """Gradients that were not yet reported, by fate and delay at shard 0. [updates]"""
        self.experience: Experience | None = None
        self.to_come: list[np.ndarray] = []
        """Rows of the minibatches of this rollout that are to be trained on yet, the next one last."""
        self._explained_variance = np.nan
        self._sums, self._count = np.zeros(2 + len(STATISTICS)), 0

    def step(self) -> bool:
        """One gradient, if the last one is done with and there is a rollout to learn from."""
        self.reporter.learner(self)
        if self.in_flight and not self._arrived():
            return False
        if not self._has_experience():  # (1), (2)
            return False
        self.update.pull(self.updates)  # (3)
        steps = self._learn()  # (4)
        self.update.give(self.updates, accepted=steps > 0)  # (5)
        self.in_flight = True
        self.updates += 1
        self.trained += steps
        return True

    def _has_experience(self) -> bool:
        """Whether there is a minibatch to learn from."""
        if not self.rollout.full:
            return False
        if not self.to_come:
            self._begin()
        return True

    def _learn(self) -> int:
        """The gradient of the next minibatch, and its number of steps."""
        rows = self.to_come.pop()
        if len(rows):
            self._note(self.algorithm.gradient(self.experience.take(rows)), self.rollout.version)
        return len(rows)

    def _note(self, losses: Losses, version: float) -> None:
        """Remember for the log what a gradient was made of; ``version`` is that of the policy that acted. [updates]"""
        self._sums += (*losses, self._explained_variance, self.online.global_update - version)
        self._count += 1
        if self.norms:
            self.norms.take(self.updates)

    def _give_back(self) -> None:
        """The gradient is done with: if it was the rollout's last, the next rollout may begin."""
        if not self.to_come:
            self.sampler.begin()

    def _begin(self) -> None:
        """Advantages of the new rollout, and its division into minibatches."""
        self._estimate()
        steps = np.flatnonzero(self.rollout.valid)
        for _ in range(self.epochs):
            self.to_come += np.array_split(self.rng.permutation(steps), self.minibatches)
        self.to_come.reverse()

    def _estimate(self) -> None:
        rollout = self.rollout
        reward, discount, goes_on = rollout.steps(self.discount, self.reward_clip)
        advantage = generalized_advantages(reward, discount, goes_on, rollout.value, self.trace_decay)
        target = advantage + rollout.value[:-1]
        of_all = rollout.observation[:-1], rollout.action, rollout.log_probability, advantage, target
        experience = Experience(*(array.reshape(-1, *array.shape[2:]) for array in of_all))
        self.experience = experience._replace(observation=self.online.prepare(experience.observation))
        spread = target[rollout.valid].var()
        self._explained_variance = 1 - advantage[rollout.valid].var() / spread if spread > 0 else np.nan

    def _arrived(self) -> bool:
        """Whether the last gradient is done with."""
        fates = self.update.fates()
        if fates is None:
            return False
        self.fates.update(fates)
        self.in_flight = False
        self._give_back()
        return True

    def reports(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Counts, and means since this was last called."""
        means = self._sums / self._count if self._count else np.full_like(self._sums, np.nan)
        self._sums, self._count = np.zeros_like(self._sums), 0
        loss, value, *statistics = means.tolist()
        version = self.online.global_update
        yield (
            "learner",
            {
                "updates": self.updates,
                "trained": self.trained,
                "loss": loss,
                "mean_q": value,
                "replay_fill": np.nan,
                "overwritten": 0,
                "sampling_hidden": np.nan,
                "replay_age": np.nan,
                "mean_priority": np.nan,
                "global_update": version,
            },
        )
        yield "policy", {**dict(zip(STATISTICS, statistics, strict=True)), "global_update": version}

    def state(self) -> dict:
        """Everything that a checkpoint must hold of this learner; copies. The experience is the actor's."""
        state = {
            "updates": np.int64(self.updates),
            "trained": np.int64(self.trained),
            "in_flight": np.bool_(self.in_flight),
            "rng": generator_state(self.rng),
            "fates": np.array([[*kind, count] for kind, count in self.fates.items()], np.int64).reshape(-1, 3),
        }
        if self.keeps_parameters:
            state["online"] = self.online.state()
            state["to_come"] = {
                "rows": np.concatenate([np.zeros(0, np.int64), *self.to_come]),
                "lengths": np.array([len(rows) for rows in self.to_come], np.int64),
            }
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened; after the actor, whose rollout is the experience."""
        self.updates, self.trained = int(state["updates"]), int(state["trained"])
        restore_generator(self.rng, state["rng"])
        self.fates = Counter({(fate, delay): count for fate, delay, count in state["fates"].tolist()})
        if self.keeps_parameters and (online := part(state, "online")):
            self.online.restore(online)
        if self.rollout and self.rollout.full and (to_come := part(state, "to_come")):
            self.in_flight = bool(state["in_flight"])
            self.to_come = np.split(to_come["rows"], np.cumsum(to_come["lengths"]))[:-1]
            self._estimate()
