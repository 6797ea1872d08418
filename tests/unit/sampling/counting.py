"""Simulators whose every frame says which simulator, episode and step it is of, and a policy that can be followed."""

import numpy as np

from hpcrl.algorithms.policy_gradient import Decision
from hpcrl.types import EnvSpec, EnvStep

EPISODES = ((3, "terminated"), (2, "truncated"), (4, "truncated"), (1, "terminated"))
"""Lengths and ends of the episodes of each simulator, over and over; the second begins one further, and so on."""


class Counting:
    """``E`` simulators; a frame is float32 ``[3]``: simulator, episode, step. Rewards are 1, 2, 3 ... in an episode."""

    def __init__(self, num_envs, *, first=0, same_step=False):
        self.num_envs, self.first, self.same_step = num_envs, first, same_step
        self.spec = EnvSpec((3,), np.dtype(np.float32), 2, 2, 1)
        self.episode, self.t = np.arange(num_envs) + first, np.zeros(num_envs, int)
        self.to_reset = np.zeros(num_envs, bool)
        self.stack = np.zeros((num_envs, 2, 3), np.float32)
        self.actions = []
        self._push(np.ones(num_envs, bool))

    @property
    def observation(self):
        return self.stack

    def reset(self):
        return self.frame()

    def frame(self):
        return np.stack([np.arange(self.num_envs) + self.first, self.episode, self.t], axis=1).astype(np.float32)

    def _push(self, first):
        older = np.where(first[:, None], 0, self.stack[:, 1])
        self.stack = np.stack([older, self.frame()], axis=1)

    def step(self, actions):
        self.actions.append(actions)
        reset = self.to_reset
        self.t[~reset] += 1
        self.episode[reset] += 1
        self.t[reset] = 0
        length, end = zip(*(EPISODES[episode % len(EPISODES)] for episode in self.episode), strict=True)
        over = ~reset & (self.t == np.array(length))
        terminated = over & (np.array(end) == "terminated")
        reward, final_frame = np.where(reset, 0, self.t).astype(np.float32), self.frame()
        started = reset
        if self.same_step:
            self.episode[over] += 1
            self.t[over] = 0
            started = over
        else:
            self.to_reset = over
        self._push(started)
        shown = np.zeros(self.num_envs, bool) if self.same_step else reset
        return EnvStep(self.frame(), reward, terminated, over & ~terminated, over, shown, final_frame)


class Background(Counting):
    """The same, in two halves."""

    def send(self, actions):
        self.pending = actions

    def receive(self):
        return self.step(self.pending)


def value_of(observation):
    """A value that tells frames apart: of the newest and the one before it."""
    return (100 * observation[:, 1, 1] + observation[:, 1, 2] + 0.01 * observation[:, 0, 2]).astype(np.float32)


class Scripted:
    """Acts by the parity of the step; counts its forward passes."""

    def __init__(self):
        self.passes = []

    def decide(self, observation):
        self.passes.append(len(observation))
        action = (observation[:, 1, 2] % 2).astype(np.int64)
        return Decision(action, -0.5 - action.astype(np.float32), value_of(observation))

    def value(self, observation):
        self.passes.append(len(observation))
        return value_of(observation)
