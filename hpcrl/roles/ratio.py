"""Holding learning and acting at the configured training intensity."""

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Tally(Protocol):
    """Where a memory's two counts live: in this rank (bundles), or with the ranks that share the memory."""

    def steps(self, add: int = 0) -> int:
        """Agent steps written to the memory, after adding."""

    def trained(self, add: int = 0) -> int:
        """Transitions that learners have trained on, after adding."""


class LocalTally:
    """Counts of a memory that one rank alone uses."""

    def __init__(self):
        self._steps = self._trained = 0

    def steps(self, add: int = 0) -> int:
        """Agent steps written to the memory, after adding."""
        self._steps += add
        return self._steps

    def trained(self, add: int = 0) -> int:
        """Transitions that learners have trained on, after adding."""
        self._trained += add
        return self._trained


class CountedTally:
    """Counts of a memory that many ranks use, in two of the job's counters.

    Parameters
    ----------
    counters
        Holds ``replay_steps`` and ``replay_trained``.
    """

    def __init__(self, counters):
        self._counters = counters

    def steps(self, add: int = 0) -> int:
        """Agent steps written to the memory, after adding."""
        return self._counters.add("replay_steps", add)

    def trained(self, add: int = 0) -> int:
        """Transitions that learners have trained on, after adding."""
        return self._counters.add("replay_trained", add)


class TrainingRatio:
    """Transitions trained per step acted (Accelerated Methods, section 5.2: 8 for DQN, 32 every 4 steps).

    Parameters
    ----------
    tally : Tally
    intensity : float
        Transitions trained per agent step.
    batch_size : int
        Transitions of one update.
    learning_starts : int
        Steps written before the first update. [steps]
    slack_updates : int
        Further updates that may be due before acting waits: 0 alternates strictly, 1 per learner lets actors go on
        while gradients are on their way.
    block : bool
        Whether the side that is ahead waits. If not, both go on as fast as they can (learning once it has started),
        and what the ratio came to is in the run log.
    """

    def __init__(
        self,
        tally: Tally,
        *,
        intensity: float,
        batch_size: int,
        learning_starts: int,
        slack_updates: int,
        block: bool = True,
    ):
        self.tally, self.intensity, self.batch_size = tally, intensity, batch_size
        self.learning_starts, self.slack_updates, self.block = learning_starts, slack_updates, block

    def _updates_due(self) -> float:
        owed = (self.tally.steps() - self.learning_starts) * self.intensity - self.tally.trained()
        return owed / self.batch_size

    def learner_due(self) -> bool:
        """Whether enough new experience is there for another minibatch."""
        if not self.block:
            return self.tally.steps() >= self.learning_starts
        return self._updates_due() >= 1

    def actor_may_step(self) -> bool:
        """Whether learning is not further behind than the slack allows."""
        return not self.block or self._updates_due() < 1 + self.slack_updates

    def add_steps(self, steps: int) -> None:
        """Count agent steps."""
        self.tally.steps(steps)

    def add_update(self) -> None:
        """Count a finished update."""
        self.tally.trained(self.batch_size)

    def state(self) -> dict[str, np.ndarray]:
        """Both counts, and how far learning was behind."""
        return {
            "steps": np.int64(self.tally.steps()),
            "trained": np.int64(self.tally.trained()),
            "updates_due": np.float64(self._updates_due()),
        }

    def restore(self, state: Mapping[str, np.ndarray], held: int) -> None:
        """Go on where :meth:`state` was taken, of this memory or of another one of the same run.

        The counts are put back. Where they would mean something else, because the intensity, the batch or the start of
        learning was changed, neither side is made to catch up: only what was due then is due now.

        Parameters
        ----------
        state
        held : int
            Steps that the memory holds after it was restored; with too few to learn from, both counts begin anew.
        """
        steps, trained, due = int(state["steps"]), int(state["trained"]), float(state["updates_due"])
        if held < min(steps, self.learning_starts):
            steps, trained = held, 0
        self._set(steps, trained)
        if steps >= self.learning_starts and self._updates_due() != due:
            due = min(max(due, 0.0), 1.0 + self.slack_updates)
            self._set(self.learning_starts, -round(due * self.batch_size))

    def _set(self, steps: int, trained: int) -> None:
        self.tally.steps(steps - self.tally.steps())
        self.tally.trained(trained - self.tally.trained())
