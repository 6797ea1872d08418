"""Priorities of new data, from the action values that the actor acted with (Ape-X, Horgan et al. 2018, Algorithm 1)."""

from collections.abc import Mapping

import numpy as np

from hpcrl.replay.priorities import SetPriorities
from hpcrl.replay.returns import NStepReturns

_STEP = np.dtype(
    [
        ("value", np.float32),
        ("best", np.float32),
        ("reward", np.float32),
        ("terminated", np.uint8),
        ("truncated", np.uint8),
        ("final", np.uint8),
    ]
)
"""What is remembered of a record: value of the action taken, greatest value of any, and what came of it."""


class Newcomers:
    """Follows an actor's records and gives each its first priority once its n steps are over.

    ``delta = r_t + discount_t * max_a q(s_t, a) - q(s_tm1, a_tm1)`` with the actor's own values. A transition that
    bootstraps from the last frame of a truncated episode, which the actor did not evaluate, gets the highest priority.

    Parameters
    ----------
    lanes
        int64 ``[E]``: the lane of each of the actor's simulators.
    begin
        int64 ``[E]``: records that these lanes hold already.
    n_step, discount, reward_clip
        Of the transitions that will be sampled.
    set_priorities
        Where they go.
    """

    def __init__(
        self,
        lanes: np.ndarray,
        begin: np.ndarray,
        *,
        n_step: int,
        discount: float,
        reward_clip: float | None,
        set_priorities: SetPriorities,
    ):
        self._lanes, self._set, self._n_step = lanes, set_priorities, n_step
        self._returns = NStepReturns(n_step, discount, reward_clip)
        self.written = begin.copy()
        self.recent = np.zeros((len(lanes), n_step + 1), _STEP)
        """the last records of each lane, in the order of their indices modulo n + 1"""
        self.recent["value"] = np.nan

    def append(
        self,
        rows: np.ndarray,
        q: np.ndarray | None,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> None:
        """Take note of one step in each of ``K`` distinct simulators.

        Parameters
        ----------
        rows
            int64 ``[K]``: the simulators.
        q
            float32 ``[K, A]``: action values of the observation acted upon; None where priorities are not made of
            TD errors: the records get the highest priority.
        action, reward, terminated, truncated
            ``[K]``: as they are written to replay.
        """
        step = np.zeros(len(rows), _STEP)
        step["value"], step["best"] = (
            (np.nan, np.nan) if q is None else (q[np.arange(len(rows)), action], q.max(axis=1))
        )
        step["reward"], step["terminated"], step["truncated"] = reward, terminated, truncated
        self._write(rows, step)

    def append_final(self, rows: np.ndarray) -> None:
        """Take note of the last frame of an episode in each of ``K`` distinct simulators."""
        step = np.zeros(len(rows), _STEP)
        step["final"] = 1
        step["best"] = np.nan
        self._write(rows, step)

    def _write(self, rows: np.ndarray, step: np.ndarray) -> None:
        length = self._n_step + 1
        self.recent[rows, self.written[rows] % length] = step
        self.written[rows] += 1
        rows = rows[self.written[rows] >= length]
        index = self.written[rows] - length
        run = self.recent[rows[:, None], (index[:, None] + np.arange(length)) % length]
        drawable = run["final"][:, 0] == 0
        rows, index, run = rows[drawable], index[drawable], run[drawable]
        if len(rows):
            self._set(self._lanes[rows], index, self._errors(run))

    def _errors(self, run: np.ndarray) -> np.ndarray:
        steps = run[:, :-1]
        r_t, discount_t, m = self._returns(steps["reward"], steps["terminated"], steps["truncated"])
        best = run["best"][np.arange(len(run)), m]
        return r_t + np.where(discount_t > 0, discount_t * best, 0) - run["value"][:, 0]

    def state(self) -> dict[str, np.ndarray]:
        """What is known of records that have no priority yet; copies."""
        return {"written": self.written.copy(), "recent": self.recent.copy()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, where the lanes hold the same records again."""
        self.written[:], self.recent[:] = state["written"], state["recent"]
