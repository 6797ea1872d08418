"""n-step returns of runs of consecutive steps."""

import numpy as np


class NStepReturns:
    """``r_t = sum over k < m of gamma^k clip(r_{t+k})`` and what the value after those ``m <= n`` steps counts.

    Parameters
    ----------
    n_step
        n. [steps]
    discount
        gamma, per step.
    reward_clip
        Rewards are clipped to ``[-reward_clip, reward_clip]``, each by itself; ``None``: not at all.
    """

    def __init__(self, n_step: int, discount: float, reward_clip: float | None):
        self._reward_clip = reward_clip
        self._powers = (discount ** np.arange(n_step + 1, dtype=np.float64)).astype(np.float32)

    def __call__(
        self, reward: np.ndarray, terminated: np.ndarray, truncated: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns of runs that may be cut short by the end of an episode, or of a life that counts as one.

        Parameters
        ----------
        reward : float32 [B, n]
            Raw.
        terminated, truncated : uint8 [B, n]

        Returns
        -------
        tuple of np.ndarray
            ``r_t`` (float32 ``[B]``), ``discount_t`` (float32 ``[B]``: 0 where step ``m`` terminated, else
            ``gamma^m``), and ``m`` (int64 ``[B]``).
        """
        if self._reward_clip is not None:
            reward = np.minimum(np.maximum(reward, -self._reward_clip), self._reward_clip)  # as np.clip, but faster
        if reward.shape[1] == 1:  # nothing can be cut short
            discount_t = np.where(terminated[:, 0], np.float32(0), self._powers[1])
            return reward[:, 0].copy(), discount_t, np.ones(len(reward), np.int64)
        taken = np.ones(reward.shape, bool)
        np.logical_not(terminated[:, :-1] | truncated[:, :-1], out=taken[:, 1:])
        np.logical_and.accumulate(taken, axis=1, out=taken)
        m = taken.sum(axis=1)
        ended = terminated[np.arange(len(m)), m - 1]
        r_t = (reward * taken) @ self._powers[:-1]
        return r_t, np.where(ended, np.float32(0), self._powers[m]), m
