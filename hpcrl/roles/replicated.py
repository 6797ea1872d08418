"""All parameters on every learner, kept identical by identical updates (Accelerated Methods, section 4.2).

Each learner holds the master copy, the moments and the target of all parameters; gradients are averaged over the
learners, and everybody applies the average. So there are no servers, and nothing but gradients crosses the wire.
"""

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from hpcrl.algorithms.gradients import clip_norm
from hpcrl.algorithms.optimizers import Optimizer
from hpcrl.errors import TransportError
from hpcrl.networks import Replica
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.overlap import Overlap
from hpcrl.roles.reduction import MpiReduction
from hpcrl.roles.shard import Shard
from hpcrl.roles.updates import APPLIED, DROPPED, NO_DELAY, Fate, follow_target
from hpcrl.transport.agreement import Agreement
from hpcrl.transport.collectives import Collectives
from hpcrl.transport.own import OwnVector

log = logging.getLogger(__name__)


class OwnReplica(Replica):
    """The network of a learner whose parameters are the master copy themselves: a pull moves nothing.

    The parameters are those of :class:`~hpcrl.networks.Replica`.
    """

    def __init__(self, module: torch.nn.Module, device: str, **others):
        super().__init__(module, None, 1, device, **others)
        self.clock = None
        """what updates the parameters: its ``version`` is the replica's"""

    def pull(self) -> bool:
        """Look at the clock; whether there was an update since."""
        self.pulls += 1
        new = bool(self.versions[0] != self.clock.version)
        if new:
            self.versions[0] = self.clock.version
            self.refresh_low()
        return new

    def state(self) -> dict[str, np.ndarray]:
        """As of any replica; copies."""
        return {"params": self.flat.values.numpy(force=True).copy(), "versions": self.versions.copy()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back the version alone: the parameters are restored already, and what was pulled may be older."""
        self.versions[:] = state["versions"].min()
        self.refresh_low()


class ReplicatedParameters(Shard):
    """The whole vector of parameters on one of the learners; as a role, on learner 0, it stands for them all.

    Parameters
    ----------
    optimizer, learning_rate, target_period
        See :class:`~hpcrl.roles.shard.Shard`.
    last_update : int
        The run ends at this version; 0 for no end. [updates]
    at_end : callable
        Called then.
    announce : callable
        Called with each new version.
    """

    kind, index = "parameter_server", 0

    def __init__(
        self,
        *,
        optimizer: Optimizer,
        learning_rate: Callable[[int], float],
        target_period: int,
        last_update: int,
        at_end: Callable[[], None],
        announce: Callable[[int], None],
        reporter: Reporter,
    ):
        super().__init__(optimizer=optimizer, learning_rate=learning_rate, target_period=target_period)
        self.last_update, self.at_end, self.announce, self.reporter = last_update, at_end, announce, reporter

    def apply(self, gradient: torch.Tensor, staleness: int = 0) -> None:
        """Make the next version of the averaged gradient, float32 ``[P]``."""
        super().apply(gradient, staleness)
        self.announce(self.version)
        if self.last_update and self.version >= self.last_update:
            self.at_end()

    def step(self) -> bool:
        """Report; the updates are the learner's doing."""
        self.reporter.server(self)
        return False

    def vectors(self) -> tuple[OwnVector, OwnVector]:
        """Sources for replicas of the parameters and of the target."""
        return (
            OwnVector(lambda: (self.shard, self.version)),
            OwnVector(lambda: (self.target, self.target_version)),
        )

    def digest(self) -> int:
        """int64 that is the same for the same parameters, moments and version, and most likely for no others."""
        digest = hashlib.blake2b(self.shard, digest_size=8)
        for value in self.optimizer.arrays().values():
            digest.update(np.ascontiguousarray(value))
        digest.update(np.int64([self.version, self.target_version]))
        return int.from_bytes(digest.digest(), "little", signed=True)


class AllreduceUpdate:
    """Averages the gradient over all learners and applies it, as all others do.

    A gradient that its learner refuses, or that is not finite, does not count in the average; without any that does
    there is no update. All learners know that from the same meeting. A learner that is alone waits for nobody: its
    gradient is applied as it is given, so that none is on its way when the state of a serial run is cut.

    Parameters
    ----------
    online : OwnReplica
    target : Replica or None
    parameters : ReplicatedParameters
    agreement : Agreement
        Where learners offer their gradients.
    everyone : Collectives
        Of all learners.
    reduction : MpiReduction
        How gradients are summed.
    max_gradient_norm : float
        The average is scaled down to this norm; 0 leaves it alone.
    verify_period : int
        Updates between two comparisons of all copies; 0 for none. [updates]
    labels : sequence of str
        What each learner is called.
    overlap : Overlap, optional
        Sums gradients while they are computed; then they are offered when their sum is there. Where not all count, it
        is made again of those that do.
    """

    def __init__(
        self,
        online: OwnReplica,
        target: Replica | None,
        *,
        parameters: ReplicatedParameters,
        agreement: Agreement,
        everyone: Collectives,
        reduction: MpiReduction,
        max_gradient_norm: float,
        verify_period: int,
        labels: Sequence[str],
        overlap: Overlap | None = None,
    ):
        self.online, self.target, self.parameters = online, target, parameters
        self.agreement, self.everyone, self.reduction = agreement, everyone, reduction
        self.max_gradient_norm, self.verify_period, self.labels = max_gradient_norm, verify_period, labels
        self.overlap = overlap
        self._given = self._offered = self._told = False
        self._known: list[Fate] = []

    def pull(self, number: int) -> None:
        """Take note of the clock, and take the target if there is a newer one."""
        self.online.pull()
        follow_target(self.online, self.target, self.parameters.target_period)

    def give(self, number: int, *, accepted: bool) -> None:
        """Offer the gradient to the others."""
        finite = not accepted or bool(self.online.flat.gradients.norm().isfinite())
        if not finite and not self._told:
            self._told = True
            log.warning("minibatch %d gave a gradient that is not finite; such gradients are left out", number)
        self._accepted, self._wasted = accepted and finite, accepted and not finite
        self._given, self._offered = True, False
        if self.overlap:
            self.overlap.begin_rest()
        self._settle()

    def fates(self) -> list[Fate] | None:
        """Known when all learners have offered a gradient: then the average is applied."""
        if self._given and not self._settle():
            return None
        known, self._known = self._known, []
        return known

    def _settle(self) -> bool:
        """Apply the average if all have offered a gradient; whether they have."""
        if not self._offered:
            if self.overlap and not self.overlap.done():
                return False
            self._offered = True
            self.agreement.offer(self._accepted)
        accepted = self.agreement.offers()
        if accepted is None:
            return False
        self._given = False
        total = self._sum(accepted)
        if total is not None:
            count = int(accepted.sum())
            self._apply(total.div_(count) if count > 1 else total)
        if self._wasted:
            self._known.append((DROPPED, NO_DELAY))
        elif self._accepted:
            self._known.append((APPLIED, 0))
        return True

    def _sum(self, accepted: np.ndarray) -> torch.Tensor | None:
        """float32 ``[P]``: of the gradients that are accepted, bool ``[ranks]``; None if there is none."""
        gradient, total = self.online.flat.gradients, self.overlap and self.overlap.finish()
        if not accepted.any():
            return None
        if total is not None and accepted.all():
            return total
        if not self._accepted:
            gradient.zero_()
        self.reduction.sum(gradient)
        return gradient

    def _apply(self, gradient: torch.Tensor) -> None:
        parameters = self.parameters
        if self.max_gradient_norm:
            clip_norm(gradient, self.max_gradient_norm)
        parameters.apply(gradient)
        if self.verify_period and parameters.version % self.verify_period == 0:
            self.verify()

    def start(self) -> None:
        """Begin with the parameters of learner 0, and see that all else is the same. Collective."""
        values = self.parameters.optimizer.values
        host = self.parameters.shard
        self.everyone.broadcast(host)
        values.copy_(torch.from_numpy(host))
        self.verify()

    def verify(self) -> None:
        """Compare all copies; collective.

        Raises
        ------
        TransportError
            They differ; on every rank, naming the first that differs from learner 0.
        """
        digests = self.everyone.gather(self.parameters.digest())
        different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if different:
            raise TransportError(
                f"after update {self.parameters.version} the parameters or moments of {self.labels[different[0]]} are "
                f"no longer those of {self.labels[0]} ({len(different)} of {len(digests)} ranks differ): synchronous "
                "learners must compute alike: use the same libraries on all nodes, or another learner.reduce"
            )
