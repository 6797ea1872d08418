"""The simulator: steps environments for the learner's rank of its node, which chooses the actions."""

from collections.abc import Sequence

import numpy as np

from hpcrl.sampling.exchange import Exchange


class Simulator:
    """Steps its shares of a crew's simulators, whenever it is asked to.

    With several groups it turns to the next while the actions of the first are chosen elsewhere. It has no parameters,
    no experience and nothing that a checkpoint must hold: episodes under way are lost with the job.

    Parameters
    ----------
    exchange : Exchange
        Where it is asked, and answers.
    rank : int
        Its number among the simulator ranks of the crew.
    envs : sequence
        Vector environment (:mod:`hpcrl.envs`) of its simulators of each group; they are reset here.
    """

    kind = "simulator"

    def __init__(self, index: int, *, exchange: Exchange, rank: int, envs: Sequence):
        self.index, self.exchange, self.rank, self.envs = index, exchange, rank, list(envs)
        self.done = np.zeros(len(self.envs), np.int64)
        """steps of each group"""
        self._turn = 0
        for group, env in enumerate(self.envs):
            env.reset()
            exchange.begin(rank, group, env.observation)

    def step(self) -> bool:
        """One step of the group whose turn it is, or of the next that was asked for; whether there was any."""
        waiting = self.exchange.asked(self.rank) > self.done
        if not waiting.any():
            return False
        count = len(self.envs)
        group = next(g % count for g in range(self._turn, self._turn + count) if waiting[g % count])
        self._turn = group + 1
        action = self.exchange.action[self.exchange.share(self.rank, group)].copy()
        step = self.envs[group].step(action)
        self.done[group] += 1
        self.exchange.answer(self.rank, group, int(self.done[group]), step, self.envs[group].observation)
        return True
