"""A second learner on the same replay, which never acts (Accelerated Methods, section 5.5).

It begins with the parameters of the first and trains as intensely, but with minibatches and an optimizer of its own. So
it shows what a minibatch does to learning from given data: the data are the first learner's doing alone.
"""

from collections.abc import Callable, Mapping

import numpy as np

from hpcrl.algorithms.dqn import Dqn
from hpcrl.networks import Replica
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.checkpointing import part
from hpcrl.roles.evaluator import Episodes
from hpcrl.roles.shard import Shard
from hpcrl.seeding import generator_state, restore_generator


class SecondaryLearner:
    """Trains whenever the agent's steps allow it, and plays greedy episodes whenever the first learner is evaluated.

    Parameters
    ----------
    online, target, acting : Replica
        The network that learns, the one that is bootstrapped from, and the one that plays.
    shard : Shard
        The parameters of ``online``, with their optimizer.
    algorithm : Dqn
        Writes gradients into ``online``.
    replay : UniformReplay
        The first learner's memory.
    steps : callable
        Steps written to it. [steps]
    intensity : float
        Transitions trained per step acted.
    learning_starts : int
        Steps before the first update. [steps]
    batch_size : int
    episodes : Episodes
        What it plays with ``acting``.
    evaluation_period : int
        The first learner's updates between two evaluations. [updates]
    first : callable
        ``first()``: the first learner's parameters, float32 ``[P]``, and their version.
    report : callable
        ``report(**values)``: a row of the log's table ``secondary``.
    rng : numpy.random.Generator
        Draws minibatches.
    """

    kind, index = "secondary", 0

    def __init__(
        self,
        *,
        online: Replica,
        target: Replica,
        acting: Replica,
        shard: Shard,
        algorithm: Dqn,
        replay: UniformReplay,
        steps: Callable[[], int],
        intensity: float,
        learning_starts: int,
        batch_size: int,
        episodes: Episodes,
        evaluation_period: int,
        first: Callable[[], tuple[np.ndarray, int]],
        report: Callable[..., None],
        rng: np.random.Generator,
    ):
        self.online, self.target, self.acting, self.shard, self.algorithm = online, target, acting, shard, algorithm
        self.replay, self.steps, self.intensity, self.learning_starts = replay, steps, intensity, learning_starts
        self.batch_size, self.rng = batch_size, rng
        self.episodes, self.evaluation_period, self.next_update = episodes, evaluation_period, evaluation_period
        self.first, self.report = first, report
        self.start = online.flat.values.cpu().numpy().copy()
        self._loss, self._count = 0.0, 0

    def step(self) -> bool:
        """All updates that are due, and the evaluation if that is."""
        worked = False
        while self._is_due() and (batch := self.replay.sample(self.batch_size, self.rng)) is not None:
            loss, _, _ = self.algorithm.gradient(batch)
            self.shard.apply(self.online.flat.gradients)
            self.target.pull()
            self._loss, self._count, worked = self._loss + loss, self._count + 1, True
        params, version = self.first()
        if version >= self.next_update:
            self.next_update = (version // self.evaluation_period + 1) * self.evaluation_period
            self._evaluate(params, version)
        return worked

    def _is_due(self) -> bool:
        owed = (self.steps() - self.learning_starts) * self.intensity
        return owed >= (self.shard.version + 1) * self.batch_size

    def _evaluate(self, first: np.ndarray, version: int) -> None:
        self.acting.pull()
        self.episodes.begin()
        while not self.episodes.step():
            pass
        own = self.shard.shard
        self.report(
            global_update=version,
            updates=self.shard.version,
            loss=self._loss / self._count if self._count else np.nan,
            mean_return=self.episodes.result().mean(),
            episodes=len(self.episodes.result()),
            parameters=np.linalg.norm(own),
            distance=np.linalg.norm(own - self.start),
            first_parameters=np.linalg.norm(first),
            first_distance=np.linalg.norm(first - self.start),
        )
        self._loss, self._count = 0.0, 0

    def state(self) -> dict:
        """Everything that a checkpoint must hold of this learner; copies."""
        return {
            "shard": self.shard.state(),
            "rng": generator_state(self.rng),
            "acting_rng": generator_state(self.episodes.policy.rng),
            "next_update": np.int64(self.next_update),
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened."""
        self.shard.restore(part(state, "shard"))
        restore_generator(self.rng, state["rng"])
        restore_generator(self.episodes.policy.rng, state["acting_rng"])
        self.next_update = int(state["next_update"])
        self.target.pull()
