"""The learner: samples experience, computes a gradient, sends it to the parameter servers (Gorila, section 4)."""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from hpcrl.algorithms.dqn import Dqn
from hpcrl.algorithms.gorila import LossGuard
from hpcrl.networks import Replica
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.checkpointing import part
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.parameter_server import HEADER_WORDS, decode_verdict
from hpcrl.roles.ratio import TrainingRatio
from hpcrl.seeding import generator_state, restore_generator
from hpcrl.transport.ring import Rings

APPLIED, PARTLY_APPLIED, DROPPED, OUTLIER = range(4)
"""What became of a gradient: all shards applied it, some, or none (too old), or it was not sent (its loss)."""
NO_DELAY = -1


class Learner:
    """Computes gradients of minibatches at the newest parameters and pushes them, sliced, to the servers.

    Parameters
    ----------
    online, target : Replica
        Follow the servers' parameters and targets.
    algorithm : Dqn
        Writes gradients into ``online``.
    guard : LossGuard, optional
        Refuses gradients whose loss is an outlier.
    replay : UniformReplay
    ratio : TrainingRatio
        Says when an update is due.
    gradients : Rings
        A ring to each server.
    servers : list of (int, int, int)
        Rank, begin and end of each shard.
    pipeline : int
        Pushes that may be on their way while the next gradient is computed: 0 or 1.
    pull_period : int
        Own updates between two pulls. [updates]
    target_period : int
        The servers keep a new target at every multiple of this. [updates]
    batch_size : int
    rng : numpy.random.Generator
        Draws minibatches.
    keeps_parameters : bool
        The parameters as last pulled belong to the state, so that a serial run goes on as if it had not been stopped.
    """

    kind = "learner"

    def __init__(
        self,
        index: int,
        *,
        online: Replica,
        target: Replica,
        algorithm: Dqn,
        guard: LossGuard | None,
        replay: UniformReplay,
        ratio: TrainingRatio,
        gradients: Rings,
        servers: list[tuple[int, int, int]],
        pipeline: int,
        pull_period: int,
        target_period: int,
        batch_size: int,
        rng: np.random.Generator,
        reporter: Reporter,
        keeps_parameters: bool = False,
    ):
        self.index = index
        self.online, self.target, self.algorithm, self.guard = online, target, algorithm, guard
        self.replay, self.ratio, self.batch_size, self.rng = replay, ratio, batch_size, rng
        self.gradients, self.servers, self.pipeline = gradients, servers, pipeline
        self.pull_period, self.target_period = pull_period, target_period
        self.keeps_parameters, self.reporter = keeps_parameters, reporter
        self.updates = 0
        self.in_flight = False
        self.fates: Counter[tuple[int, int]] = Counter()
        """Gradients that were not yet reported, by fate and delay at shard 0. [updates]"""
        self._sums = np.zeros(3)  # of loss, of mean action value, and how many of each
        self._headers = np.zeros((len(servers), HEADER_WORDS), np.int64)

    def step(self) -> bool:
        """One update, if the servers are ready for it and one is due."""
        self.reporter.learner(self)
        if self.in_flight and not self._arrived():
            return False
        if not self.ratio.learner_due():
            return False
        if self.updates % self.pull_period == 0 or self.online.empty:
            self.online.pull()  # (1)
        if self._target_is_old():
            self.target.pull()  # (6)
            self.online.flat.check()
        batch = self.replay.sample(self.batch_size, self.rng)  # (2)
        if batch is None:
            return False
        loss, mean_q, delta = self.algorithm.gradient(batch)  # (3)
        if self.guard is None or self.guard.accepts(loss):
            self.replay.update(batch, delta)
            self._push()  # (5)
        else:  # (4)
            self.fates[OUTLIER, NO_DELAY] += 1
            self.ratio.add_update()
        self.reporter.learned(self)
        self.updates += 1  # (7)
        self._sums += loss, mean_q, 1
        return True

    def take_means(self) -> dict[str, float]:
        """Mean loss and action value of the updates since this was last called."""
        loss, mean_q, count = self._sums
        self._sums = np.zeros(3)
        return {"loss": loss / count, "mean_q": mean_q / count} if count else {"loss": np.nan, "mean_q": np.nan}

    def _arrived(self) -> bool:
        """Whether the last push is consumed (pipeline 0), or there is room for another (pipeline 1)."""
        arrived = self.gradients.room() if self.pipeline else self.gradients.drained()
        if arrived:
            self.ratio.add_update()
            self.in_flight = False
            for answers in self.gradients.answers():
                self._count_fate([decode_verdict(answer) for answer in answers])
        return arrived

    def _count_fate(self, verdicts: list[tuple[bool, int] | None]) -> None:
        """Count a gradient that every shard has judged."""
        if None not in verdicts:
            applied = sum(accepted for accepted, _ in verdicts)
            fate = APPLIED if applied == len(verdicts) else PARTLY_APPLIED if applied else DROPPED
            self.fates[fate, verdicts[0][1]] += 1

    def _push(self) -> None:
        gradient = self.online.host_gradients()
        self._headers[:, 0], self._headers[:, 1] = self.online.versions, self.updates
        self.gradients.push(
            {rank: (self._headers[k], gradient[begin:end]) for k, (rank, begin, end) in enumerate(self.servers)}
        )
        self.in_flight = True

    def _target_is_old(self) -> bool:
        newest = self.online.versions // self.target_period * self.target_period
        return bool((self.target.versions < newest).any())

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
