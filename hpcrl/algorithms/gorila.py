"""Gorila's guards against what asynchrony does to learning (Nair et al. 2015, section 4)."""

import math
from collections.abc import Mapping

import numpy as np


class LossGuard:
    """Refuses gradients of minibatches whose loss is an outlier.

    A loss is one where it exceeds the running mean by more than ``deviations`` running standard deviations. The paper
    leaves both numbers open, and what "running" is: here the plain mean and deviation of the first ``window`` losses,
    during which nothing is refused, and exponential averages from there on.

    Outliers count in the statistics like all others. So after a lasting change of scale the guard opens again, after
    about ``window / (1 + deviations^2)`` losses, and in the long run it refuses at most ``1 / (1 + deviations^2)`` of
    them whatever their distribution (Cantelli's inequality). Losses that are not finite are refused and not counted.

    Parameters
    ----------
    deviations : float
    window : int
        Length of the running averages. [updates]
    """

    def __init__(self, deviations: float, window: int):
        self.deviations, self.window = deviations, window
        self.count = 0
        self.mean = self.variance = 0.0

    def accepts(self, loss: float) -> bool:
        """Judge a loss by the statistics so far, then add it to them."""
        if not math.isfinite(loss):
            return False
        limit = self.mean + self.deviations * math.sqrt(self.variance)
        accepted = self.count < self.window or loss <= limit
        self.count += 1
        weight = 1 / min(self.count, self.window)
        difference = loss - self.mean
        self.mean += weight * difference
        self.variance = (1 - weight) * (self.variance + weight * difference**2)
        return accepted

    def state(self) -> dict[str, np.ndarray]:
        """The statistics so far."""
        return {"count": np.int64(self.count), "mean": np.float64(self.mean), "variance": np.float64(self.variance)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave."""
        self.count, self.mean, self.variance = int(state["count"]), float(state["mean"]), float(state["variance"])
