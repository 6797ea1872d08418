"""IMPALA's learner: which rollouts it takes, when they may be overwritten, and what it says about their age."""

import numpy as np
import pytest
import torch
from fakes import FakeCounters, MemoryVector, Reports

from hpcrl.algorithms.a2c import Losses
from hpcrl.algorithms.policy_gradient import Categorical, SampledPolicy
from hpcrl.envs import make_env
from hpcrl.networks import Replica, make_policy_network
from hpcrl.roles.rollout_actor import RolloutActor
from hpcrl.roles.trajectory_learner import RelayedRollouts, TrajectoryLearner
from hpcrl.roles.updates import APPLIED
from hpcrl.sampling.asynchronous import AsynchronousSampler
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler
from hpcrl.storage.statefile import flatten

HORIZON, SIMULATORS = 6, 4


class Queue:
    """A relay in this process, with room for two."""

    def __init__(self):
        self.records = []

    def push(self, record):
        if len(self.records) == 2:
            return False
        self.records.append(record.copy())
        return True

    def holds(self, count):
        return len(self.records) >= count

    def pop(self, out):
        out[:] = self.records.pop(0)


class Recorder:
    """An algorithm that keeps what it is to learn from."""

    def __init__(self):
        self.batches = []

    def gradient(self, trajectories):
        self.batches.append(type(trajectories)(*(array.copy() for array in trajectories)))
        return Losses(*np.zeros(9))


class ByHand:
    """An update whose gradients are done with when the test says so."""

    def __init__(self, replica):
        self.replica, self.done = replica, True

    def pull(self, number):
        self.replica.pull()

    def give(self, number, *, accepted):
        pass

    def fates(self):
        return [(APPLIED, 0)] if self.done else None


def make_rollout(num_envs):
    return Rollout(
        HORIZON,
        num_envs,
        observation_shape=(1, 10, 5),
        observation_dtype=np.uint8,
        action_shape=(),
        action_dtype=np.int64,
    )


def make(*, relay=None, groups=2, rollouts=1):
    """Actor and learner on catch, around one published vector."""
    vector = MemoryVector()
    torch.manual_seed(0)
    replicas = [Replica(make_policy_network("mlp", (8,), (1, 10, 5), 3, np.uint8), vector, 1) for _ in range(2)]
    vector.publish(replicas[0].flat.values.numpy(), 0)
    envs = [make_env(SIMULATORS // groups, s, id="catch", stack=1) for s in np.random.SeedSequence(0).spawn(groups)]
    for env in envs:
        env.reset()
    policy = SampledPolicy(replicas[0], Categorical(3), np.random.default_rng(0), torch.float32)
    if relay:
        sampler = Sampler(envs, policy, make_rollout(SIMULATORS), restarts_at_once=False)
        source = RelayedRollouts(relay, [make_rollout(SIMULATORS) for _ in range(rollouts)])
    else:
        source = sampler = AsynchronousSampler(envs, policy, make_rollout, taken=rollouts, restarts_at_once=False)
    counters, reports = FakeCounters(), Reports()
    actor = RolloutActor(
        0,
        replica=replicas[0],
        sampler=sampler,
        count=lambda steps: counters.add("total_frames", steps),
        reporter=reports.reporter,
        deliver=(lambda rollout: relay.push(rollout.memory)) if relay else None,
    )
    learner = TrajectoryLearner(
        0,
        source=source,
        rollouts=rollouts,
        online=replicas[1],
        update=ByHand(replicas[1]),
        algorithm=Recorder(),
        discount=0.9,
        trace_decay=1.0,
        reward_clip=None,
        rng=np.random.default_rng(1),
        reporter=reports.reporter,
    )
    return actor, learner, vector, reports


def test_an_actor_goes_on_until_its_rollouts_find_no_room():
    relay = Queue()
    actor, learner, _, _ = make(relay=relay)
    steps = 0
    while actor.step():
        steps += 1
    assert len(relay.records) == 2
    assert actor.sampler.rollout.full
    assert learner.step()
    assert actor.step()


@pytest.mark.parametrize("relayed", [False, True])
@pytest.mark.parametrize("rollouts", [1, 2])
def test_rollouts_are_learned_from_whole_and_once(relayed, rollouts):
    actor, learner, _, _ = make(relay=Queue() if relayed else None, rollouts=rollouts)
    for _ in range(200):
        actor.step()
        learner.step()
    batches = learner.algorithm.batches
    assert len(batches) > 4
    each = SIMULATORS if relayed else SIMULATORS // 2
    assert {batch.observation.shape for batch in batches} == {(HORIZON + 1, each * rollouts, 1, 10, 5)}
    assert learner.trained == sum(np.count_nonzero(batch.valid) for batch in batches)
    if relayed:  # what one rollout ends in, the next of the same simulators begins with
        rows = [batch.observation[:, e : e + each] for batch in batches for e in range(0, each * rollouts, each)]
        for one, two in zip(rows, rows[1:], strict=False):
            np.testing.assert_array_equal(one[-1], two[0])


def test_rollouts_that_are_learned_from_are_not_written_to():
    actor, learner, _, _ = make()
    learner.update.done = False
    while not learner.step():
        actor.step()
    held = learner._taken[0].memory.copy()
    while actor.step():
        pass
    learner.step()
    np.testing.assert_array_equal(learner._taken[0].memory, held)
    learner.update.done = True
    learner.step()
    assert actor.step()


def test_the_lag_is_that_of_the_policies_that_acted():
    actor, learner, vector, reports = make(relay=Queue())
    for version in (5, 10):
        while not actor.sampler.rollout.full:
            actor.step()
        vector.publish(vector.values, version)
        actor.step()  # delivers it, and begins the next with the new policy
    for _ in range(3):
        learner.step()
    assert [values["lag"] for values in reports.of("policy") if not np.isnan(values["lag"])] == [10.0, 5.0]


def test_a_learner_goes_on_with_its_counts():
    actor, learner, _, _ = make()
    for _ in range(50):
        actor.step()
        learner.step()
    again_actor, again_learner, _, _ = make()
    again_actor.restore(flatten(actor.state()))
    again_learner.restore(flatten(learner.state()))
    assert (again_learner.updates, again_learner.trained) == (learner.updates, learner.trained)
    assert again_actor.acted_steps == actor.acted_steps > 0
    while not again_learner.step():
        again_actor.step()
