"""The learner: when it may go, what it pulls, what it pushes."""

import numpy as np
import pytest
from fakes import FakeReplica, Reports

from hpcrl.algorithms.gorila import LossGuard
from hpcrl.roles.gradient_record import HEADER_WORDS, encode_verdict
from hpcrl.roles.learner import Learner
from hpcrl.roles.ratio import LocalTally, TrainingRatio
from hpcrl.roles.updates import APPLIED, DROPPED, NO_DELAY, OUTLIER, PARTLY_APPLIED, ServerUpdate
from hpcrl.storage.statefile import flatten

SERVERS = [(4, 0, 3), (2, 3, 8)]
"""Rank, begin and end of two shards of eight parameters."""


class Rings:
    """Servers that consume when the test says so."""

    def __init__(self, capacity):
        self.capacity, self.waiting, self.pushed, self.answered = capacity, 0, [], []

    def room(self):
        return self.waiting < self.capacity

    def drained(self):
        return self.waiting == 0

    def answers(self):
        answered, self.answered = self.answered, []
        return answered

    def push(self, records):
        assert self.room()
        self.waiting += 1
        self.pushed.append({rank: [part.copy() for part in parts] for rank, parts in records.items()})
        return True


class Replay:
    fill, overwritten, hidden, age, mean_priority = 0.25, 3, 0.9, 40.0, 0.5

    def __init__(self):
        self.sampled, self.updated = [], []

    def sample(self, batch_size, rng):
        self.sampled.append((batch_size, int(rng.integers(1000))))
        return self.sampled[-1]

    def update(self, batch, delta):
        self.updated.append((batch, delta))


class Algorithm:
    """Fills the gradient with the number of the update; the loss is that number too."""

    def __init__(self, online):
        self.online, self.batches = online, []

    def gradient(self, batch):
        self.batches.append(batch)
        self.online.gradients[:] = len(self.batches) + np.arange(8) / 10
        return float(len(self.batches)), 10.0 * len(self.batches), f"delta {len(self.batches)}"


def make(*, pipeline=0, pull_period=1, target_period=10, steps=10**6, guard=None):
    online, target, reports = FakeReplica((0, 0)), FakeReplica((0, 0)), Reports()
    ratio = TrainingRatio(LocalTally(), intensity=8, batch_size=32, learning_starts=0, slack_updates=0)
    ratio.add_steps(steps)
    learner = Learner(
        1,
        online=online,
        target=target,
        update=ServerUpdate(
            online,
            target,
            gradients=Rings(pipeline + 1),
            servers=SERVERS,
            pipeline=pipeline,
            pull_period=pull_period,
            target_period=target_period,
        ),
        algorithm=Algorithm(online),
        guard=guard,
        replay=Replay(),
        ratio=ratio,
        batch_size=32,
        rng=np.random.default_rng(0),
        reporter=reports.reporter,
    )
    return learner, reports


def go_on(learner):
    """One step after which the servers have consumed everything."""
    worked = learner.step()
    learner.update.gradients.waiting = 0
    return worked


def test_an_update_pulls_samples_computes_and_pushes():
    learner, _ = make()
    learner.online.source[:] = 5, 6
    assert learner.step()
    assert learner.replay.sampled[0][0] == 32
    assert learner.algorithm.batches == learner.replay.sampled
    assert learner.replay.updated == [(learner.replay.sampled[0], "delta 1")]
    (record,) = learner.update.gradients.pushed
    assert record.keys() == {4, 2}
    for (rank, begin, end), version in zip(SERVERS, (5, 6), strict=True):
        header, gradient = record[rank]
        assert header.dtype == np.int64
        assert header.shape == (HEADER_WORDS,)
        assert header[0] == version  # each shard judges staleness by its own clock
        np.testing.assert_array_equal(gradient, np.float32(1 + np.arange(8) / 10)[begin:end])


def test_without_pipeline_it_waits_until_its_push_is_consumed():
    learner, _ = make(pipeline=0)
    assert learner.step()
    for _ in range(3):
        assert not learner.step()
    assert (len(learner.update.gradients.pushed), learner.online.pulls, len(learner.replay.sampled)) == (1, 1, 1)
    assert learner.ratio.tally.trained() == 0
    learner.update.gradients.waiting = 0
    assert learner.step()
    assert learner.ratio.tally.trained() == 32
    assert learner.online.pulls == 2


def test_with_pipeline_one_push_may_be_on_its_way():
    learner, _ = make(pipeline=1)
    assert learner.step()
    assert learner.step()
    assert not learner.step()
    assert learner.update.gradients.waiting == 2
    learner.update.gradients.waiting = 1
    assert learner.step()
    assert learner.ratio.tally.trained() == 64


def test_it_does_nothing_before_an_update_is_due():
    learner, _ = make(steps=3)
    assert not learner.step()
    assert (learner.online.pulls, learner.replay.sampled, learner.update.gradients.pushed) == (0, [], [])
    learner.ratio.add_steps(1)
    assert go_on(learner)
    assert not learner.step()
    assert learner.ratio.tally.trained() == 32  # counted although the next is not due


@pytest.mark.parametrize(("pull_period", "pulls"), [(1, 9), (4, 3), (100, 1)])
def test_it_pulls_every_so_many_of_its_own_updates(pull_period, pulls):
    learner, _ = make(pull_period=pull_period)
    for _ in range(9):
        assert go_on(learner)
        assert not learner.in_flight or learner.update.gradients.drained()
    assert learner.online.pulls == pulls


def test_the_target_is_pulled_when_there_must_be_a_new_one_and_only_then():
    learner, _ = make(target_period=10)
    pulls = []
    for update in range(0, 35, 3):
        learner.online.source[:] = update
        learner.target.source[:] = update // 10 * 10
        go_on(learner)
        pulls.append(learner.target.pulls)
    #       0  3  6  9 12 15 18 21 24 27 30 33
    assert pulls == [1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4]


def test_a_target_that_is_published_late_is_pulled_again():
    learner, _ = make(target_period=10)
    go_on(learner)
    learner.online.source[:] = 10, 10
    learner.target.source[:] = 10, 0  # the second server has put its publication off
    go_on(learner)
    go_on(learner)
    assert learner.target.pulls == 3
    learner.target.source[:] = 10, 10
    go_on(learner)
    go_on(learner)
    assert learner.target.pulls == 4
    assert learner.target.versions.tolist() == [10, 10]


def test_a_resumed_learner_pulls_the_target_of_before():
    learner, _ = make(target_period=10)
    learner.online.source[:] = 47
    learner.target.source[:] = 40
    go_on(learner)
    go_on(learner)
    assert learner.target.pulls == 1
    assert learner.target.global_update == 40


def test_reports_hold_means_since_the_last_report():
    learner, reports = make()
    for _ in range(3):
        go_on(learner)
    learner.step()
    losses = [values["loss"] for values in reports.of("learner")]
    assert np.isnan(losses[0])
    assert losses[1:] == [1, 2, 3]
    ((kind, values),) = learner.reports()
    assert (kind, values["loss"], values["mean_q"]) == ("learner", 4, 40)
    memory = {"replay_fill": 0.25, "overwritten": 3, "sampling_hidden": 0.9, "replay_age": 40.0, "mean_priority": 0.5}
    assert reports.of("learner")[-1].items() >= {"updates": 3, **memory}.items()


def test_it_counts_what_became_of_each_gradient():
    """By all shards, by some, by none; the delay is that of shard 0."""
    learner, reports = make()
    verdicts = [
        [(True, 3), (True, 4)],
        [(True, 0), (False, 9)],
        [(False, 9), (True, 0)],
        [(False, 8), (False, 7)],
        [(True, 3), (True, 2)],
    ]
    for verdict in verdicts:
        learner.step()
        learner.update.gradients.waiting = 0
        learner.update.gradients.answered.append([encode_verdict(*shard) for shard in verdict])
    learner.step()
    expected = {(APPLIED, 3): 2, (PARTLY_APPLIED, 0): 1, (PARTLY_APPLIED, 9): 1, (DROPPED, 8): 1}
    counted = {}
    for values in reports.of("gradient"):
        key = values["fate"], values["delay_updates"]
        counted[key] = counted.get(key, 0) + values["count"]
    for key, count in learner.fates.items():
        counted[key] = counted.get(key, 0) + count
    assert counted == expected


def test_gradients_that_could_not_be_reported_are_reported_later():
    learner, reports = make()
    learner.fates[APPLIED, 4] = 3
    sent = []
    learner.reporter.send = lambda record: sent.append(record)  # None: the ring was full
    learner.step()
    assert sent
    assert learner.fates == {(APPLIED, 4): 3}


def test_a_gradient_whose_loss_is_an_outlier_is_not_sent():
    learner, reports = make(guard=LossGuard(3.0, window=8))
    losses = [1.0, 2.0] * 4 + [50.0, 1.5, float("nan"), 1.0]
    sent = []
    for loss in losses:
        learner.algorithm.gradient = lambda batch, loss=loss: (loss, 0.0, None)
        before = len(learner.update.gradients.pushed)
        assert go_on(learner)
        sent.append(len(learner.update.gradients.pushed) > before)
    assert sent == [True] * 8 + [False, True, False, True]
    assert len(learner.replay.updated) == 10  # nor do its errors become priorities
    learner.step()
    assert reports.of("gradient") == [{"fate": OUTLIER, "delay_updates": NO_DELAY, "count": 1}] * 2
    assert learner.updates == 13
    assert learner.ratio.tally.trained() == 12 * 32  # it was trained on, and the next is due all the same


def test_minibatches_come_from_its_own_random_stream():
    first, second = make()[0], make()[0]
    for learner in (first, second):
        for _ in range(5):
            go_on(learner)
    assert first.replay.sampled == second.replay.sampled
    assert len(set(first.replay.sampled)) == 5


def test_a_memory_that_has_nothing_to_sample_yet_is_asked_again():
    learner, _ = make()
    batches = iter([None, None, "a batch"])
    learner.replay.sample = lambda batch_size, rng: next(batches)
    assert [learner.step() for _ in range(3)] == [False, False, True]
    assert learner.updates == len(learner.update.gradients.pushed) == 1


@pytest.mark.parametrize("pipeline", [0, 1])
def test_a_resumed_learner_goes_on_with_its_count_and_its_random_numbers(pipeline):
    learner, other = (make(pull_period=3, pipeline=pipeline)[0] for _ in range(2))
    for _ in range(4):
        go_on(learner)
    other.restore(flatten(learner.state()))
    assert other.updates == 4
    pulls = [other.online.pulls]
    for _ in range(6):
        go_on(learner)
        go_on(other)
        pulls.append(other.online.pulls)
    # At once, since it has no parameters yet, and then where it would have without the stop: after 6 and 9 updates.
    assert np.diff(pulls).tolist() == [1, 0, 1, 0, 0, 1]
    assert other.replay.sampled == learner.replay.sampled[4:]
    # The gradient on its way at the cut counts as trained.
    assert other.ratio.tally.trained() == 32 * 6
