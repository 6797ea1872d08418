"""Each guard rescues learning that diverges without it: real learners and a real server, without MPI.

The learners minimise ``|theta - 1|^2 / 2``, whose gradient is ``theta - 1``; nothing else is made up.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fakes import MemoryRings, MemoryVector, Reports
from torch import nn

from hpcrl.algorithms.gorila import LossGuard
from hpcrl.algorithms.optimizers import Optimizer, make_rule
from hpcrl.networks import Replica
from hpcrl.roles.learner import Learner
from hpcrl.roles.parameter_server import ParameterServer
from hpcrl.roles.ratio import LocalTally, TrainingRatio
from hpcrl.roles.updates import ServerUpdate
from hpcrl.roles.virtual_delay import DelayedVector

SIZE = 5
ROUNDS = 350
QUIET_UPDATES = 150
"""of each learner before the first explosion"""


class Bowl:
    """Gradient and loss of the bowl; after a while both are now and then of another order of magnitude."""

    def __init__(self, online, explosions, seed):
        self.online, self.explosions, self.rng = online, explosions, np.random.default_rng(seed)
        self.updates = 0

    def gradient(self, batch):
        error = self.online.flat.values - 1
        self.updates += 1
        explodes = self.updates > QUIET_UPDATES and self.rng.random() < self.explosions
        scale = 1e6 if explodes else 1 + 0.1 * self.rng.random()
        self.online.flat.gradients.copy_(scale * error + 1e-3 * torch.from_numpy(self.rng.normal(size=SIZE)).float())
        return scale * float(error.square().mean() + 1), 0.0, None


def make_server(rings, *, staleness_bound):
    server = ParameterServer(
        0,
        optimizer=Optimizer(torch.zeros(SIZE), make_rule("sgd", epsilon=0.0), 0.2),
        learning_rate=lambda version: 0.2,
        params=MemoryVector(),
        targets=MemoryVector(),
        gradients=rings,
        staleness_bound=staleness_bound,
        target_period=100,
        last_update=0,
        at_end=lambda: None,
        announce=lambda version: None,
        reporter=Reports(60.0).reporter,
    )
    server.publish()
    return server


def make_learner(index, server, rings, *, delay, explosions, guard):
    vector = server.params
    if delay:
        vector = DelayedVector(vector, delays=[delay], weights=[1], rng=np.random.default_rng(index))
    online, target = (Replica(nn.Linear(SIZE, 1, bias=False), v, 1) for v in (vector, server.targets))
    ratio = TrainingRatio(LocalTally(), intensity=1, batch_size=1, learning_starts=0, slack_updates=0, block=False)
    return Learner(
        index,
        online=online,
        target=target,
        update=ServerUpdate(
            online,
            target,
            gradients=rings.of(index),
            servers=[(0, 0, SIZE)],
            pipeline=0,
            pull_period=1,
            target_period=100,
        ),
        algorithm=Bowl(online, explosions, index),
        guard=guard,
        replay=SimpleNamespace(
            sample=lambda batch_size, rng: "a batch",
            update=lambda batch, delta: None,
            fill=0.0,
            overwritten=0,
            hidden=0.0,
            age=0.0,
            mean_priority=0.0,
        ),
        ratio=ratio,
        batch_size=1,
        rng=np.random.default_rng(index),
        reporter=Reports(60.0).reporter,
    )


def distance_after_training(*, staleness_bound=10**9, delays=(0, 0), explosions=0.0, guard=None):
    """How far from the minimum the server's parameters are after some rounds of all learners."""
    rings = MemoryRings(len(delays))
    server = make_server(rings, staleness_bound=staleness_bound)
    learners = [
        make_learner(i, server, rings, delay=delay, explosions=explosions, guard=guard and guard(3.0, QUIET_UPDATES))
        for i, delay in enumerate(delays)
    ]
    for _ in range(ROUNDS):
        for learner in learners:
            learner.step()
        server.step()
    return float(np.abs(server.shard - 1).max()), server


def test_without_mishaps_it_learns():
    distance, _ = distance_after_training()
    assert distance < 0.01


@pytest.mark.filterwarnings("ignore")
def test_the_staleness_bound_rescues_learning_from_stale_gradients():
    delays = (0, 0, 60, 60, 60)
    diverged, _ = distance_after_training(delays=delays)
    assert not diverged < 100
    rescued, server = distance_after_training(delays=delays, staleness_bound=4 * len(delays))
    assert rescued < 0.01
    assert server.dropped > 3 * ROUNDS - 100  # nearly all of the three, and none of the two
    assert server.accepted >= 2 * ROUNDS


@pytest.mark.filterwarnings("ignore")
def test_the_loss_guard_rescues_learning_from_exploding_gradients():
    diverged, _ = distance_after_training(explosions=0.03)
    assert not diverged < 100
    rescued, server = distance_after_training(explosions=0.03, guard=LossGuard)
    assert rescued < 0.01
    assert 5 < 2 * ROUNDS - server.accepted < 40  # the explosions, and few besides
