"""A learner and its simulator ranks in one process: memory whose words remember when they were moved."""

import numpy as np

from hpcrl.roles.simulator import Simulator
from hpcrl.sampling.exchange import Exchange


class TimedMemory:
    """Atomic words that are seen by whoever looks at them not before the time at which they were moved."""

    def __init__(self, nbytes, words):
        self.array = np.zeros(nbytes, np.uint8)
        self.moved = [[] for _ in range(words)]
        self.now = 0.0

    def get(self, words):
        return np.array([sum(when <= self.now for when in self.moved[word]) for word in words], np.int64)

    def add_to_each(self, words, value):
        for word in words:
            self.moved[word] += [self.now] * value

    def show(self):
        pass


def make_exchange(spec, *, simulators, ranks, groups):
    of_actions = {"action_shape": (), "action_dtype": np.int64}
    memory = TimedMemory(Exchange.nbytes(spec, simulators, **of_actions), Exchange.words(ranks, groups))
    return Exchange(memory, spec, simulators=simulators, ranks=ranks, groups=groups, **of_actions)


def make_crew(make_env, *, simulators, ranks, groups):
    """An exchange and its simulator roles; ``make_env(num_envs, first)`` makes the simulators of a share."""
    exchange = make_exchange(make_env(1, 0).spec, simulators=simulators, ranks=ranks, groups=groups)

    def envs_of(rank):
        shares = [exchange.share(rank, group) for group in range(groups)]
        return [make_env(share.stop - share.start, share.start) for share in shares]

    return exchange, [Simulator(rank, exchange=exchange, rank=rank, envs=envs_of(rank)) for rank in range(ranks)]
