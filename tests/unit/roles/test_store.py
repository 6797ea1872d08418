"""A learner at stored parameters: which chunks it takes, what it counts, and whom it waits for; without MPI."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.algorithms.multi_step_adam import AsynchronousAdam, MultiStepAdam
from hpcrl.algorithms.optimizers import SGD
from hpcrl.errors import EXIT_STALLED, StalledError
from hpcrl.roles.replicated import OwnReplica
from hpcrl.roles.store import StoreUpdate
from hpcrl.roles.updates import APPLIED, DROPPED, NO_DELAY
from hpcrl.transport.store import Block, Chunk

SIZE = 8


class FakeStore:
    """Two chunks of eight parameters in this process; ``locked`` maps a chunk to the rank that holds it."""

    def __init__(self, vectors):
        self.chunks = [Chunk(0, 0, 5), Chunk(0, 5, 8)]
        self.values = np.zeros((vectors, SIZE), np.float32)
        self.counts, self.locked, self.visits = np.zeros(2, np.int64), {}, []

    def try_acquire(self, chunk):
        if chunk in self.locked:
            return None
        _, begin, end = self.chunks[chunk]
        return Block(self.counts[chunk : chunk + 1].copy(), self.values[:, begin:end].copy(), None)

    def release(self, chunk, block):
        if block is not None:
            _, begin, end = self.chunks[chunk]
            self.values[:, begin:end], self.counts[chunk] = block.vectors, block.count[0]
            self.visits.append(chunk)

    def holder(self, chunk):
        return self.locked.get(chunk)


def make(*, rule=None, period=1, last_update=0, stall_seconds=60.0, first=0):
    rule = rule or SGD()
    store = FakeStore(3 if isinstance(rule, AsynchronousAdam) else 1)
    store.values[0] = 1
    online, total, ends = OwnReplica(nn.Linear(SIZE, 1, bias=False), "cpu"), [0], []

    def count(updates):
        total[0] += updates
        return total[0]

    update = StoreUpdate(
        online,
        None,
        store=store,
        rule=rule,
        multi_step=MultiStepAdam(online.flat.values, rule) if period > 1 else None,
        sync_period=period,
        first=first,
        learning_rate=lambda version: 0.5,
        count=count,
        last_update=last_update,
        at_end=lambda: ends.append(True),
        target_period=10,
        stall_seconds=stall_seconds,
        labels=["server", "me", "another"],
    )
    return update, store, total, ends


def test_each_chunk_is_overwritten_once_and_taken_over():
    update, store, _, _ = make(first=1)
    assert update.online.flat.values.tolist() == [1] * SIZE
    store.values[0, :5] = 3  # another learner was there
    update.online.flat.gradients[:] = torch.arange(SIZE)
    update.give(0, accepted=True)
    assert update.fates() == [(APPLIED, 0)]
    expected = np.where(np.arange(SIZE) < 5, 3, 1) - 0.5 * np.arange(SIZE)
    np.testing.assert_array_equal(store.values[0], expected)
    np.testing.assert_array_equal(update.online.flat.values, expected)
    assert store.visits == [1, 0]
    assert store.counts.tolist() == [1, 1]


def test_a_chunk_that_is_locked_comes_later_and_the_delay_is_what_others_did():
    update, store, total, _ = make()
    store.locked[0] = 2
    update.online.flat.gradients[:] = 1
    total[0] += 3  # others, since this learner took the parameters
    update.give(0, accepted=True)
    assert update.fates() is None
    assert store.visits == [1]
    del store.locked[0]
    assert update.fates() == [(APPLIED, 3)]
    assert store.visits == [1, 0]
    update.online.pull()
    assert update.online.global_update == 4


def test_what_is_refused_changes_nothing():
    update, store, total, _ = make()
    update.online.flat.gradients[:] = 1
    update.give(0, accepted=False)
    assert update.fates() == []
    assert (store.visits, total) == ([], [0])


def test_the_last_update_is_made_once():
    update, store, total, ends = make(last_update=2)
    update.online.flat.gradients[:] = 1
    fates = []
    for number in range(3):
        update.give(number, accepted=True)
        fates += update.fates()
    assert fates == [(APPLIED, 0), (APPLIED, 0), (DROPPED, NO_DELAY)]
    assert total == [2]
    assert len(ends) == 2
    assert store.counts.tolist() == [2, 2]


def test_several_steps_are_merged_at_once():
    rule = AsynchronousAdam(1e-3)
    update, store, total, _ = make(rule=rule, period=3)
    plain, state = torch.ones(SIZE), rule.start(torch.ones(SIZE))
    for number in range(6):
        gradient = torch.linspace(-1, 1, SIZE) * (number + 1)
        update.online.flat.gradients[:] = gradient
        update.give(number, accepted=True)
        assert update.fates() == [(APPLIED, 0)]
        rule.apply(plain, gradient, state, 0.5)
        assert len(store.visits) == 2 * ((number + 1) // 3)
        torch.testing.assert_close(update.online.flat.values, plain)
    np.testing.assert_allclose(store.values, torch.stack([plain, state["exp_avg"], state["exp_avg_sq"]]), rtol=1e-5)
    assert total == [6]


def test_a_holder_that_has_stopped_is_named():
    update, store, _, _ = make(stall_seconds=-1.0)
    store.locked[1] = 2
    update.give(0, accepted=True)
    with pytest.raises(StalledError, match="chunk 1 of the parameters, on server, has been locked by another") as error:
        update.fates()
    assert error.value.exit_code == EXIT_STALLED
