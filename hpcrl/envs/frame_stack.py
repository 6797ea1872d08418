"""The observation to act upon: the newest frames of each simulator, stacked."""

import numpy as np


class FrameStack:
    """Stacked observation of ``E`` simulators whose backend gives single frames.

    Attributes
    ----------
    observation
        obs_dtype ``[E, stack, *obs_shape]``, oldest frame first; zeros before an episode's first frame. Every push
        makes a new array, so one kept from an earlier step stays as it was.
    """

    def __init__(self, num_envs: int, stack: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype):
        self.observation = np.zeros((num_envs, stack, *obs_shape), obs_dtype)

    def push(self, frame: np.ndarray, first: np.ndarray) -> None:
        """Append ``frame`` (obs_dtype ``[E, *obs_shape]``), alone where it is the first of its episode (bool
        ``[E]``)."""
        newer = np.empty_like(self.observation)
        newer[:, :-1] = self.observation[:, 1:]
        newer[first] = 0
        newer[:, -1] = frame
        self.observation = newer
