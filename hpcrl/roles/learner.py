"""The learner: samples experience, computes a gradient, has it applied (Gorila, section 4)."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from hpcrl.algorithms.gorila import LossGuard
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.checkpointing import part
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.ratio import TrainingRatio
from hpcrl.roles.updates import NO_DELAY, OUTLIER, Fate, Update
from hpcrl.seeding import generator_state, restore_generator

if TYPE_CHECKING:  # modules that need torch
    from hpcrl.algorithms.dqn import Dqn
    from hpcrl.networks import Replica
    from hpcrl.roles.norms import LayerNorms


class Learner:
    """Computes gradients of minibatches at the newest parameters and hands them over.

    Parameters
    ----------
    online, target : Replica
        The network that learns, and the one that is bootstrapped from.
    update : Update
        Keeps both up to date, and makes updates of gradients.
    algorithm : Dqn
        Writes gradients into ``online``.
    guard : LossGuard, optional
        Refuses gradients whose loss is an outlier.
    replay : UniformReplay
    ratio : TrainingRatio
        Says when an update is due.
    batch_size : int
    rng : numpy.random.Generator
        Draws minibatches.
    norms : LayerNorms, optional
        Looks at every gradient.
    keeps_parameters : bool
        The parameters as last pulled belong to the state, so that a serial run goes on as if it had not been stopped.
    """

    kind = "learner"

    def __init__(
        self,
        index: int,
        *,
        online: "Replica",
        target: "Replica",
        update: Update,
        algorithm: "Dqn",
        guard: LossGuard | None,
        replay: UniformReplay,
        ratio: TrainingRatio,
        batch_size: int,
        rng: np.random.Generator,
        reporter: Reporter,
        norms: "LayerNorms | None" = None,
        keeps_parameters: bool = False,
    ):
        self.index = index
        self.online, self.target, self.update = online, target, update
        self.algorithm, self.guard = algorithm, guard
        self.replay, self.ratio, self.batch_size, self.rng = replay, ratio, batch_size, rng
        self.keeps_parameters, self.reporter, self.norms = keeps_parameters, reporter, norms
        self.updates = 0
        self.in_flight = False
        self.fates: Counter[Fate] = Counter()
        """Gradients that were not yet reported, by fate and delay at shard 0. [updates]"""
        self._sums = np.zeros(3)  # of loss, of mean action value, and how many of each

    def step(self) -> bool:
        """One update, if the last one is over and one is due."""
        self.reporter.learner(self)
        if self.in_flight and not self._arrived():
            return False
        if not self.ratio.learner_due():
            return False
        self.update.pull(self.updates)  # (1), (6)
        batch = self.replay.sample(self.batch_size, self.rng)  # (2)
        if batch is None:
            return False
        loss, mean_q, delta = self.algorithm.gradient(batch)  # (3)
        if self.norms:
            self.norms.take(self.updates)
        accepted = self.guard is None or self.guard.accepts(loss)
        if accepted:
            self.replay.update(batch, delta)
        else:  # (4)
            self.fates[OUTLIER, NO_DELAY] += 1
        self.update.give(self.updates, accepted=accepted)  # (5)
        self.in_flight = True
        self.reporter.learned(self)
        self.updates += 1  # (7)
        self._sums += loss, mean_q, 1
        return True

    def reports(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Counts, and mean loss and action value of the updates since this was last called."""
        loss, mean_q, count = self._sums
        self._sums = np.zeros(3)
        yield (
            "learner",
            {
                "updates": self.updates,
                "trained": self.updates * self.batch_size,
                "loss": loss / count if count else np.nan,
                "mean_q": mean_q / count if count else np.nan,
                "replay_fill": self.replay.fill,
                "overwritten": self.replay.overwritten,
                "sampling_hidden": self.replay.hidden,
                "replay_age": self.replay.age,
                "mean_priority": self.replay.mean_priority,
                "global_update": self.online.global_update,
            },
        )

    def _arrived(self) -> bool:
        """Whether the last gradient is done with."""
        fates = self.update.fates()
        if fates is None:
            return False
        self.fates.update(fates)
        self.ratio.add_update()
        self.in_flight = False
        return True

    def state(self) -> dict:
        """Everything that a checkpoint must hold of this learner; copies.

        A gradient on its way is not part of it: in a serial run the server has consumed it at the end of the round, and
        elsewhere it is lost, but counted as trained.
        """
        return {
            "updates": np.int64(self.updates),
            "in_flight": np.bool_(self.in_flight),
            "rng": generator_state(self.rng),
            "ratio": self.ratio.state(),
            "guard": self.guard.state() if self.guard else {},
            "fates": np.array([[*kind, count] for kind, count in self.fates.items()], np.int64).reshape(-1, 3),
            "online": self.online.state() if self.keeps_parameters else {},
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened; the training ratio, which learners may share, apart."""
        self.updates, self.in_flight = int(state["updates"]), bool(state["in_flight"])
        restore_generator(self.rng, state["rng"])
        self.fates = Counter({(fate, delay): count for fate, delay, count in state["fates"].tolist()})
        if self.guard and (guard := part(state, "guard")):
            self.guard.restore(guard)
        if self.keeps_parameters and (online := part(state, "online")):
            self.online.restore(online)
