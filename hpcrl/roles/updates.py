"""How a learner's gradient becomes an update of the parameters: one class for each value of ``learning.update``.

A learner of any algorithm writes a flat gradient into its online replica and then knows nothing further. Its
:class:`Update` does the rest; the learner's step is::

    if self.in_flight:
        fates = self.update.fates()             # None: the last gradient is still under way
        ...
    self.update.pull(self.updates)              # newest parameters (and target), as often as configured
    loss = self.algorithm.gradient(batch)       # into online.flat.gradients
    self.update.give(self.updates, accepted=guard.accepts(loss))
    self.in_flight = True

``self.updates`` is the learner's own count of minibatches. A learner that refuses its own gradient must say so with
``accepted=False`` and not stay silent: synchronous learners wait for each other. After ``give`` the gradient must be
left alone until ``fates`` has returned a list.

=============  ==========================================  ======================================================
``update``     class                                       the rule is applied by
=============  ==========================================  ======================================================
``server``     :class:`ServerUpdate`                       each parameter server, on its shard (Gorila, section 4);
               :class:`CombinedUpdate`                     the gradients of a node together
``store``      :class:`~hpcrl.roles.store.StoreUpdate`     the learner, chunk by chunk, to what servers store
``allreduce``  :class:`~hpcrl.roles.replicated.            every learner, to the average of all gradients
               AllreduceUpdate`
=============  ==========================================  ======================================================

:func:`hpcrl.launch.learners.make_update` makes the one that is configured.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from hpcrl.errors import StalledError
from hpcrl.roles.gradient_record import HEADER_WORDS, decode_verdict
from hpcrl.transport.node_sum import NodeSum
from hpcrl.transport.ring import Rings

if TYPE_CHECKING:
    from hpcrl.networks import Replica  # a module that needs torch

APPLIED, PARTLY_APPLIED, DROPPED, OUTLIER = range(4)
"""What became of a gradient: all shards applied it, some, or none (too old), or it was not sent (its loss)."""
NO_DELAY = -1

Fate = tuple[int, int]
"""What became of a gradient, and the updates that were made between its parameters and its application."""


class Update(Protocol):
    """What a learner's gradient goes through."""

    def pull(self, number: int) -> None:
        """Bring the replicas up to date, as far as that is due before the learner's minibatch ``number``."""

    def give(self, number: int, *, accepted: bool) -> None:
        """Take over the gradient of minibatch ``number``; where it is not ``accepted``, it must change nothing."""

    def fates(self) -> list[Fate] | None:
        """None while the last gradient is under way; else what has become known of gradients since the last call."""


class ServerUpdate:
    """Pushes the gradient, sliced, to the parameter servers, and pulls what they publish.

    Parameters
    ----------
    online : Replica
    target : Replica or None
        Follow the servers' parameters and targets.
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
    """

    def __init__(
        self,
        online: "Replica",
        target: "Replica | None",
        *,
        gradients: Rings,
        servers: Sequence[tuple[int, int, int]],
        pipeline: int,
        pull_period: int,
        target_period: int,
    ):
        self.online, self.target, self.gradients, self.servers = online, target, gradients, list(servers)
        self.pipeline, self.pull_period, self.target_period = pipeline, pull_period, target_period
        self._headers = np.zeros((len(self.servers), HEADER_WORDS), np.int64)

    def pull(self, number: int) -> None:
        """Pull the parameters if that is due, and the target if there must be a newer one."""
        if number % self.pull_period == 0 or self.online.empty:
            self.online.pull()
        follow_target(self.online, self.target, self.target_period)

    def give(self, number: int, *, accepted: bool) -> None:
        """Push the gradient, if it is accepted."""
        if accepted:
            self._push(number, self.online.host_gradients(), self.online.versions)

    def _push(self, number: int, gradient: np.ndarray, versions: np.ndarray) -> None:
        self._headers[:, 0], self._headers[:, 1] = versions, number
        self.gradients.push(
            {rank: (self._headers[k], gradient[begin:end]) for k, (rank, begin, end) in enumerate(self.servers)}
        )

    def fates(self) -> list[Fate] | None:
        """Known when the last push is consumed (pipeline 0), or there is room for another (pipeline 1)."""
        if not (self.gradients.room() if self.pipeline else self.gradients.drained()):
            return None
        return [_fate([decode_verdict(answer) for answer in answers]) for answers in self.gradients.answers()]


class CombinedUpdate(ServerUpdate):
    """Adds the gradient to those of the node, which go to the servers as one: fewer vectors leave the node.

    What is ready while an earlier sum is on its way goes together; the sum is applied as one gradient, whose version is
    the oldest of them, and all share its fate. A learner waits for its own as ever.

    Parameters
    ----------
    node : NodeSum
        Of the learners of this node.
    stall_seconds : float
        A rank that keeps the others from the sum for so long ends the job.
    labels : sequence of str
        What each rank of the node is called.
    others
        See :class:`ServerUpdate`; ``pipeline`` is 0.
    """

    def __init__(
        self, *replicas: "Replica | None", node: NodeSum, stall_seconds: float, labels: Sequence[str], **others
    ):
        super().__init__(*replicas, pipeline=0, **others)
        self.node, self.stall_seconds, self.labels = node, stall_seconds, labels
        self._sum = np.empty(len(self.online.flat), np.float32)
        self._versions = np.empty_like(self.online.versions)
        self._given = self._carries = False
        self._mine: int | None = None
        """number of the sum that has this learner's gradient"""
        self._verdicts: list[int] = []
        """of the sum that it carries, once they are known"""

    def give(self, number: int, *, accepted: bool) -> None:
        """Add the gradient to the node's, if it is accepted; later, where another rank is at it."""
        self._given = accepted
        if accepted:
            self._number, self._began, self._mine = number, time.monotonic(), None
            self._gradient = self.online.host_gradients()
            self._get_on()

    def fates(self) -> list[Fate] | None:
        """Known when the sum that has the gradient is consumed, whoever carried it."""
        if not self._given:
            return []
        answers = self._get_on()
        if answers is None:
            self._look_for_stall()
            return None
        self._given = False
        return [_fate([decode_verdict(answer) for answer in answers])] if answers else []

    def _get_on(self) -> list[int] | None:
        """Take the next step with the sum that has the gradient; its answers, once they are known."""
        if self._mine is None:
            self._mine = self.node.add(self._gradient, self.online.versions)
        if self._carries:
            if not self._verdicts and self.gradients.drained():
                self._verdicts = self.gradients.answers()[-1]
            if not self._verdicts or not self.node.answer(self._mine, self._verdicts):
                return None
            self._carries, self._verdicts = False, []
        if self._mine is None:
            return None
        answers = self.node.answers(self._mine)
        if answers is None and self.node.take(self._mine, self._sum, self._versions):
            self._push(self._number, self._sum, self._versions)
            self._carries = True
        return answers

    def _look_for_stall(self) -> None:
        holder = self.node.holder() if time.monotonic() - self._began > self.stall_seconds else None
        if holder is not None:
            raise StalledError(
                f"{self.labels[holder]} has kept the gradients of its node for {self.stall_seconds:.0f} s "
                "(run.stall_seconds); learning cannot go on without them"
            )


def _fate(verdicts: Sequence[tuple[bool, int]]) -> Fate:
    """Fate of a gradient that every shard has judged; its delay is that of shard 0."""
    applied = sum(accepted for accepted, _ in verdicts)
    fate = APPLIED if applied == len(verdicts) else PARTLY_APPLIED if applied else DROPPED
    return fate, verdicts[0][1]


def follow_target(online: "Replica", target: "Replica | None", target_period: int) -> None:
    """Pull the target if there is a newer one than the one held: one is made at every multiple of ``target_period``."""
    if target and (target.versions < online.versions // target_period * target_period).any():
        target.pull()
        online.flat.check()
