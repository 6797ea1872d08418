"""An environment of one's own: a corridor with the way out at its right end. See docs/custom.md."""

import gymnasium
import numpy as np


class Corridor(gymnasium.Env):
    """Steps left (0) or right (1) from the middle; 1 point at the right end, -1 at the left one.

    Parameters
    ----------
    length
        Places, an odd number of them. It comes from ``[env] kwargs``.
    """

    def __init__(self, length: int = 9):
        self.length = length
        self.observation_space = gymnasium.spaces.Box(0.0, 1.0, (length,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # self.np_random: every simulator has a seed of its own
        self.place = self.length // 2 + int(self.np_random.integers(-1, 2))
        return self._observation(), {}

    def step(self, action):
        self.place += 1 if action == 1 else -1
        at_end = self.place in (0, self.length - 1)
        reward = float(np.sign(self.place)) if at_end and self.place else -float(at_end)
        return self._observation(), reward, at_end, False, {}

    def _observation(self):
        return np.eye(self.length, dtype=np.float32)[self.place]
