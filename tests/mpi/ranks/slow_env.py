"""An environment of short episodes whose steps take a given time, ten times as long on one rank of the job."""

import os
import time

import gymnasium
import numpy as np

EPISODE_STEPS = 10


class Slow(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seconds):
        self.seconds = seconds

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        time.sleep(self.seconds)
        self.steps += 1
        return np.full(3, self.steps / 10, np.float32), 1.0, self.steps == EPISODE_STEPS, False, {}


def make(seconds, slow_rank):
    rank = next(os.environ[name] for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK") if name in os.environ)
    return Slow(10 * seconds if int(rank) == slow_rank else seconds)
