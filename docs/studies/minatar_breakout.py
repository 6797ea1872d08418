"""Breakout of MinAtar (Young and Tian 2019) as a gymnasium environment: `pip install minatar`."""

import gymnasium
import numpy as np
from minatar import Environment


class MinAtarBreakout(gymnasium.Env):
    """10x10 pixels in 4 channels, 3 actions, sticky with probability 0.1; an episode ends with the first ball lost."""

    def __init__(self, longest_episode_steps: int = 1000):
        self._game = Environment("breakout", sticky_action_prob=0.1)
        self._actions = self._game.minimal_action_set()
        self._longest = longest_episode_steps
        self.observation_space = gymnasium.spaces.Box(0, 255, (4, 10, 10), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(len(self._actions))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(seed)
        self._game.reset()
        self._steps = 0
        return self._observe(), {}

    def step(self, action):
        reward, terminated = self._game.act(self._actions[action])
        self._steps += 1
        return self._observe(), float(reward), bool(terminated), self._steps >= self._longest, {}

    def _observe(self) -> np.ndarray:
        return np.ascontiguousarray(self._game.state().transpose(2, 0, 1)).astype(np.uint8) * np.uint8(255)


def make() -> gymnasium.Env:
    """One simulator."""
    return MinAtarBreakout()
