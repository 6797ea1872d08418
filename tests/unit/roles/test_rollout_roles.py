"""The two roles of the policy-gradient family: who waits for whom, and what is learned from which rollout."""

import numpy as np
import pytest
import torch
from fakes import FakeCounters, MemoryVector, Reports

from hpcrl.algorithms.a2c import Losses
from hpcrl.algorithms.policy_gradient import Categorical, SampledPolicy
from hpcrl.envs import make_env
from hpcrl.networks import Replica, make_policy_network
from hpcrl.roles.policy_learner import PolicyLearner
from hpcrl.roles.rollout_actor import RolloutActor
from hpcrl.roles.updates import APPLIED
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler
from hpcrl.storage.statefile import flatten

HORIZON, SIMULATORS = 6, 4


class ByHand:
    """An update whose gradients are done with when the test says so."""

    def __init__(self, replica):
        self.replica, self.given, self.done = replica, [], True

    def pull(self, number):
        self.replica.pull()

    def give(self, number, *, accepted):
        self.given.append((number, accepted))

    def fates(self):
        return [(APPLIED, 0)] if self.done else None


class Recorder:
    """An algorithm that keeps what it is to learn from."""

    def __init__(self):
        self.batches = []

    def gradient(self, experience):
        self.batches.append(experience)
        return Losses(*np.arange(9.0) * len(self.batches))


def make(*, groups=2, epochs=2, minibatches=3, exact=True, seed=0):
    """Actor and learner on catch, around one published vector."""
    vector = MemoryVector()
    torch.manual_seed(0)
    replicas = [Replica(make_policy_network("mlp", (8,), (1, 10, 5), 3, np.uint8), vector, 1) for _ in range(2)]
    vector.publish(replicas[0].flat.values.numpy(), 0)
    envs = [make_env(SIMULATORS // groups, s, id="catch", stack=1) for s in np.random.SeedSequence(seed).spawn(groups)]
    for env in envs:
        env.reset()
    rollout = Rollout(
        HORIZON,
        SIMULATORS,
        observation_shape=(1, 10, 5),
        observation_dtype=np.uint8,
        action_shape=(),
        action_dtype=np.int64,
    )
    policy = SampledPolicy(replicas[0], Categorical(3), np.random.default_rng(seed), torch.float32)
    sampler = Sampler(envs, policy, rollout, restarts_at_once=False)
    counters, reports = FakeCounters(), Reports()
    actor = RolloutActor(
        2,
        replica=replicas[0],
        sampler=sampler,
        count=lambda steps: counters.add("total_frames", steps),
        reporter=reports.reporter,
        keeps_episodes=exact,
    )
    replicas[1].pull()
    learner = PolicyLearner(
        1,
        online=replicas[1],
        update=ByHand(replicas[1]),
        algorithm=Recorder(),
        sampler=sampler,
        epochs=epochs,
        minibatches=minibatches,
        discount=0.9,
        trace_decay=0.8,
        reward_clip=None,
        rng=np.random.default_rng(seed + 1),
        reporter=reports.reporter,
        keeps_parameters=exact,
    )
    return actor, learner, vector, reports


def fill(actor):
    while not actor.sampler.rollout.full:
        assert actor.step()


def test_actor_and_learner_take_turns():
    actor, learner, _, _ = make()
    assert not learner.step()
    fill(actor)
    assert not actor.step()
    for _ in range(6):
        assert learner.step()
        assert not actor.step()
    assert not learner.step()
    assert actor.step()


def test_the_next_rollout_waits_until_the_last_gradient_is_done_with():
    actor, learner, vector, _ = make(epochs=1, minibatches=1)
    fill(actor)
    learner.update.done = False
    assert learner.step()
    for _ in range(3):
        assert not learner.step()
        assert not actor.step()
    vector.publish(vector.values + 1, 5)
    learner.update.done = True
    learner.step()
    assert actor.step()
    assert actor.sampler.rollout.version == actor.replica.global_update == 5


def test_each_epoch_has_every_valid_step_once_and_no_other():
    actor, learner, _, _ = make()
    fill(actor)
    rollout = learner.rollout
    rollout.valid[2, 1] = rollout.valid[4, 3] = False
    rollout.log_probability[:] = np.arange(HORIZON * SIMULATORS).reshape(HORIZON, SIMULATORS)
    while learner.step():
        pass
    marks = rollout.log_probability[rollout.valid]
    batches = learner.algorithm.batches
    for epoch in (batches[:3], batches[3:]):
        assert sum(len(batch.action) for batch in epoch) == len(marks)
        assert max(len(batch.action) for batch in epoch) - min(len(batch.action) for batch in epoch) <= 1
        np.testing.assert_array_equal(np.sort(np.concatenate([batch.log_probability for batch in epoch])), marks)
        for batch in epoch:
            values = rollout.value[:-1].ravel()[batch.log_probability.astype(int)]
            np.testing.assert_allclose(batch.target - batch.advantage, values, atol=1e-5)
    assert not np.array_equal(batches[0].log_probability, batches[3].log_probability)


def test_a_minibatch_without_steps_changes_nothing_but_is_given():
    """A synchronous learner must not stay silent."""
    actor, learner, _, _ = make(epochs=1, minibatches=3)
    fill(actor)
    learner.rollout.valid[:] = False
    learner.rollout.valid[0, :2] = True
    for _ in range(3):
        assert learner.step()
    assert [accepted for _, accepted in learner.update.given] == [True, True, False]
    assert len(learner.algorithm.batches) == 2


def test_the_policy_is_pulled_once_for_each_rollout():
    actor, _, vector, _ = make()
    actor.step()
    vector.publish(vector.values + 1, 1)
    fill(actor)
    assert actor.replica.global_update == 0


def test_steps_and_episodes_are_counted_and_reported():
    actor, learner, _, reports = make(epochs=1, minibatches=1)
    for _ in range(5):
        fill(actor)
        learner.step()
        learner.step()
    assert actor.acted_steps == actor.total_frames == learner.trained
    assert actor.acted_steps < 5 * HORIZON * SIMULATORS  # some steps only reset
    episodes = reports.of("episode")
    assert {values["length_steps"] for values in episodes} == {9.0}
    assert {values["episode_return"] for values in episodes} <= {-1.0, 1.0}
    assert sorted({values["simulator"] for values in episodes}) == [0, 1, 2, 3]
    policies = [values for values in reports.of("policy") if not np.isnan(values["entropy"])]
    assert policies[0]["lag"] == 0
    assert policies[0]["entropy"] == 4.0


def test_statistics_are_means_since_the_last_report():
    actor, learner, _, _ = make(epochs=1, minibatches=2)
    fill(actor)
    learner.reporter = Reports(period_seconds=1e9).reporter
    learner.step()
    learner.step()
    reports = dict(learner.reports())
    assert reports["learner"]["loss"] == 0.0
    assert reports["learner"]["mean_q"] == 1.5
    assert reports["policy"]["policy_loss"] == 3.0
    assert np.isnan(dict(learner.reports())["policy"]["policy_loss"])


def drive(actor, learner, rounds, vector):
    """Rounds of a serial loop in which every gradient moves the parameters a little."""
    for _ in range(rounds):
        actor.step()
        if learner.step():
            rows = learner.algorithm.batches[-1]
            vector.publish(vector.values + np.float32(1e-3) * rows.advantage.sum(), vector.version + 1)


@pytest.mark.parametrize("rounds", [5, 17, 18, 19, 24, 40])
def test_both_go_on_from_their_state_as_if_nothing_had_been(rounds):
    actor, learner, vector, _ = make()
    drive(actor, learner, rounds, vector)
    again_actor, again_learner, again_vector, _ = make(seed=9)
    again_vector.publish(vector.values, vector.version)
    again_actor.restore(flatten(actor.state()))
    again_learner.restore(flatten(learner.state()))
    drive(actor, learner, 60, vector)
    drive(again_actor, again_learner, 60, again_vector)
    np.testing.assert_array_equal(vector.values, again_vector.values)
    assert vector.version == again_vector.version > 0
    for (name, one), (_, two) in zip(flatten(actor.state()).items(), flatten(again_actor.state()).items(), strict=True):
        np.testing.assert_array_equal(one, two, err_msg=name)


def test_without_their_episodes_a_new_rollout_begins():
    actor, learner, vector, _ = make(exact=False)
    drive(actor, learner, 20, vector)
    again_actor, again_learner, again_vector, _ = make(exact=False)
    again_actor.restore(flatten(actor.state()))
    again_learner.restore(flatten(learner.state()))
    assert again_actor.acted_steps == actor.acted_steps > 0
    assert again_actor.sampler.at_start
    assert not again_learner.in_flight
    drive(again_actor, again_learner, 30, again_vector)
    assert again_learner.updates > learner.updates
