"""An environment that breaks after 200 steps."""

import gymnasium
import numpy as np


class Breaking(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self):
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps > 200:
            raise RuntimeError("the simulator broke")
        return np.zeros(3, np.float32), 0.0, False, False, {}


def make():
    return Breaking()
