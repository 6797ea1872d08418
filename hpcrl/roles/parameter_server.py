"""The parameter server: one shard of the parameters, its optimizer, and its target (Gorila, section 4)."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from hpcrl.algorithms.optimizers import Optimizer
from hpcrl.roles.gradient_record import HEADER_WORDS, encode_verdict
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.shard import Shard
from hpcrl.transport.parameters import ShardedVector
from hpcrl.transport.ring import Rings


class ParameterServer(Shard):
    """Applies the learners' gradients to one shard and publishes the result.

    Parameters
    ----------
    optimizer, learning_rate, target_period
        See :class:`~hpcrl.roles.shard.Shard`.
    params, targets : ShardedVector
        Where the shard and its target are published.
    gradients : Rings
        One ring from each learner; records are ``HEADER_WORDS`` int64 and then float32 ``[n]``.
    staleness_bound : int
        Gradients computed more than this many versions ago are dropped. [updates]
    last_update : int
        No gradient is judged at this version: what waits is left in its ring, so that learners, and with them the
        actors that they pay for, go no further either. 0 for no end. [updates]
    at_end : callable
        Called when ``last_update`` is reached.
    announce : callable
        Called with the new version after it was published.
    reporter : Reporter
    """

    kind = "parameter_server"

    def __init__(
        self,
        index: int,
        *,
        optimizer: Optimizer,
        learning_rate: Callable[[int], float],
        params: ShardedVector,
        targets: ShardedVector,
        gradients: Rings,
        staleness_bound: int,
        target_period: int,
        last_update: int,
        at_end: Callable[[], None],
        announce: Callable[[int], None],
        reporter: Reporter,
    ):
        super().__init__(optimizer=optimizer, learning_rate=learning_rate, target_period=target_period)
        self.index, self.params, self.targets = index, params, targets
        self.gradients, self.staleness_bound = gradients, staleness_bound
        self.last_update, self.at_end, self.announce, self.reporter = last_update, at_end, announce, reporter
        self._published = self._target_published = -1

    def step(self) -> bool:
        """Apply every gradient that waits, publish once, give the slots back; whether a learner was served."""
        waiting = [learner for learner, n in enumerate(self.gradients.waiting()) if n]  # (1)
        verdicts: dict[int, int] = {}
        for learner in waiting:
            if self.last_update and self.version >= self.last_update:
                break
            version, sequence, gradient = self._read(learner)
            staleness = self.version - version
            accepted = staleness <= self.staleness_bound
            verdicts[learner] = encode_verdict(accepted, staleness)
            if not accepted:  # (2)
                self.dropped += 1
                self.reporter.judged(self, learner=learner, version=version, sequence=sequence, accepted=False)
                continue
            self.apply(gradient, staleness)  # (3), (6)
            self.reporter.judged(self, learner=learner, version=version, sequence=sequence, accepted=True)
        self.publish()  # (4)
        # Only now: a learner whose push is consumed must find its own update in the next pull.
        self.gradients.pop(verdicts, verdicts)
        self.reporter.server(self)
        return bool(verdicts) or self.params.attend()  # (7)

    def publish(self) -> None:
        """Publish what is newer than the published; where slow readers hold every slot, a later call does it."""
        if self._published != self.version and self.params.publish(self.shard, self.version):
            self._published = self.version
            self.announce(self.version)
            if self.last_update and self.version >= self.last_update:
                self.at_end()
        if self._target_published != self.target_version and self.targets.publish(self.target, self.target_version):
            self._target_published = self.target_version

    def _read(self, learner: int) -> tuple[int, int, torch.Tensor]:
        """Version, number and gradient of a learner's oldest record, where it lies in the ring."""
        record = self.gradients.oldest(learner)
        header, gradient = record[: 8 * HEADER_WORDS].view(np.int64), record[8 * HEADER_WORDS :].view(np.float32)
        return int(header[0]), int(header[1]), torch.from_numpy(gradient)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened, and publish it; without moments in it, they begin anew."""
        super().restore(state)
        self.publish()
