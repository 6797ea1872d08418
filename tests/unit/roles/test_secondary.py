"""The second learner: how often it trains, on what targets, and what it reports; its state."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcrl.algorithms.optimizers import SGD, Optimizer
from hpcrl.networks import Replica, mlp
from hpcrl.roles.replicated import OwnReplica
from hpcrl.roles.secondary import SecondaryLearner
from hpcrl.roles.shard import Shard
from hpcrl.storage.statefile import flatten
from hpcrl.transport.own import OwnVector


class Episodes:
    """An episode is one step; its return is the first parameter of the network that plays."""

    def __init__(self, acting):
        self.acting, self.policy, self.begun = acting, SimpleNamespace(rng=np.random.default_rng(1)), 0

    def begin(self):
        self.begun += 1

    def step(self):
        return True

    def result(self):
        return np.array([self.acting.flat.values[0].item()] * 3)


class World:
    """Steps that were acted, the first learner's version, and a second learner whose gradient is -1 throughout."""

    def __init__(self, batch_size=64, target_period=3):
        torch.manual_seed(0)
        self.steps, self.version, self.rows, self.sampled = 0, 0, [], []
        online = OwnReplica(mlp((1, 2), 1, ()), "cpu")
        self.start = online.flat.values.clone()
        optimizer = Optimizer(online.flat.values, SGD(), 1.0)
        shard = Shard(optimizer=optimizer, learning_rate=lambda version: 1.0, target_period=target_period)
        self.target, acting = (Replica(mlp((1, 2), 1, ()), vector, 1) for vector in self.vectors(shard))
        self.learner = SecondaryLearner(
            online=online,
            target=self.target,
            acting=acting,
            shard=shard,
            algorithm=SimpleNamespace(gradient=lambda batch: self.gradient(online)),
            replay=SimpleNamespace(sample=self.sample),
            steps=lambda: self.steps,
            intensity=8.0,
            learning_starts=100,
            batch_size=batch_size,
            episodes=Episodes(acting),
            evaluation_period=10,
            first=lambda: (self.start.numpy() * 2, self.version),
            report=lambda **row: self.rows.append(row),
            rng=np.random.default_rng(0),
        )

    @staticmethod
    def vectors(shard):
        yield OwnVector(lambda: (shard.target, shard.target_version))
        yield OwnVector(lambda: (shard.shard, shard.version))

    def sample(self, batch_size, rng):
        self.sampled.append((batch_size, int(rng.integers(1000))))
        return self.sampled[-1]

    def gradient(self, online):
        online.flat.gradients.fill_(-1)
        return float(len(self.sampled)), 0.0, None


@pytest.mark.parametrize("batch_size", [16, 64, 2048])
def test_it_trains_as_intensely_whatever_its_minibatch(batch_size):
    world = World(batch_size)
    for steps in range(0, 1000, 4):
        world.steps = steps
        world.learner.step()
        assert len(world.sampled) == max(0, steps - 100) * 8 // batch_size
    assert {size for size, _ in world.sampled} == {batch_size}
    assert world.learner.shard.version == len(world.sampled)
    expected = world.start + len(world.sampled)
    torch.testing.assert_close(world.learner.online.flat.values, expected)


def test_its_target_is_its_own_of_every_period():
    world = World()
    world.steps = 100 + 8 * 5  # 5 updates
    assert world.learner.step()
    torch.testing.assert_close(world.target.flat.values, world.start + 3)
    assert not world.learner.step()


def test_it_is_evaluated_with_the_first_learner():
    world = World()
    world.steps, world.version = 100 + 8 * 5, 9
    world.learner.step()
    assert world.rows == []
    world.version = 23  # two evaluations are due: one is made up for
    world.learner.step()
    world.learner.step()
    (row,) = world.rows
    norm = np.linalg.norm
    own, start = (world.start + 5).numpy(), world.start.numpy()
    assert (row["global_update"], row["updates"], row["episodes"]) == (23, 5, 3)
    assert row["mean_return"] == pytest.approx(own[0])
    assert row["loss"] == pytest.approx(np.mean([1, 2, 3, 4, 5]))
    found = [row[name] for name in ("parameters", "distance", "first_parameters", "first_distance")]
    np.testing.assert_allclose(found, [norm(own), norm(own - start), norm(2 * start), norm(start)], rtol=1e-5)
    world.version = 30
    world.learner.step()
    assert len(world.rows) == 2


def test_a_restored_one_goes_on_alike():
    first, second = World(), World()
    first.steps = second.steps = 140
    first.learner.step()
    second.learner.restore(flatten(first.learner.state()))
    for world in (first, second):
        world.sampled.clear()
        world.steps, world.version = 180, 12
        world.learner.step()
    assert first.sampled == second.sampled
    assert len(first.sampled) == 5
    torch.testing.assert_close(first.learner.online.flat.values, second.learner.online.flat.values)
    torch.testing.assert_close(first.target.flat.values, second.target.flat.values)
    assert [row["mean_return"] for row in first.rows] == [row["mean_return"] for row in second.rows]
