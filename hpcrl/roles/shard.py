"""A piece of the parameters, or all of them, with its optimizer, its clock and its target: what every way of updating
keeps, whoever holds it."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from hpcrl.algorithms.optimizers import Optimizer
from hpcrl.roles.checkpointing import part


class Shard:
    """Parameters that gradients are applied to.

    Parameters
    ----------
    optimizer : Optimizer
        Of the master copy, float32 ``[n]``.
    learning_rate : callable
        ``learning_rate(version)``: the rate at which the gradient that makes a version the next is applied.
    target_period : int
        The target is the shard as it was at version ``k * target_period``. [updates]

    Attributes
    ----------
    version : int
        Gradients applied so far. [updates]
    """

    def __init__(self, *, optimizer: Optimizer, learning_rate: Callable[[int], float], target_period: int):
        self.optimizer, self.learning_rate, self.target_period = optimizer, learning_rate, target_period
        self.version = 0
        self.target, self.target_version = self.shard.copy(), 0
        self.accepted = self.dropped = self.staleness_sum = 0

    @property
    def shard(self) -> np.ndarray:
        """float32 ``[n]``: the parameters in host memory; a view where they lie there."""
        return self.optimizer.values.cpu().numpy()

    def apply(self, gradient: torch.Tensor, staleness: int = 0) -> None:
        """Make the next version of a gradient, float32 ``[n]``, that is ``staleness`` updates old."""
        self.optimizer.learning_rate = self.learning_rate(self.version)
        self.optimizer.step(gradient)
        self.version += 1
        self.accepted += 1
        self.staleness_sum += staleness
        if self.version % self.target_period == 0:
            self.target, self.target_version = self.shard.copy(), self.version

    def state(self) -> dict[str, np.ndarray]:
        """Everything that a checkpoint must hold of this shard; copies."""
        return {
            "params": self.shard.copy(),
            "target": self.target.copy(),
            "version": np.int64(self.version),
            "target_version": np.int64(self.target_version),
            "accepted": np.int64(self.accepted),
            "dropped": np.int64(self.dropped),
            "staleness_sum": np.int64(self.staleness_sum),
            **{f"optimizer/{name}": value.copy() for name, value in self.optimizer.arrays().items()},
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened; without moments in it, they begin anew."""
        self.optimizer.values.copy_(torch.from_numpy(np.asarray(state["params"])))
        self.target = np.array(state["target"], np.float32)
        self.version, self.target_version = int(state["version"]), int(state["target_version"])
        self.accepted, self.dropped = int(state["accepted"]), int(state["dropped"])
        self.staleness_sum = int(state["staleness_sum"])
        if moments := part(state, "optimizer"):
            self.optimizer.restore(moments)
