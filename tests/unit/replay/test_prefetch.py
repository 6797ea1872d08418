"""Drawing ahead: the same batches in the same order, how much of it is hidden, and faults that come through."""

import threading
import time

import numpy as np
import pytest

from hpcrl.replay.prefetch import Prefetch


class Slow:
    """Batches 1, 2, …, each of which takes a while; the first of all is not there yet."""

    fill, overwritten, age, mean_priority = 0.5, 7, 30.0, 2.0

    def __init__(self, seconds=0.05):
        self.seconds, self.asked, self.updated, self.threads = seconds, 0, [], set()

    def sample(self, batch_size, rng):
        self.threads.add(threading.current_thread().name)
        time.sleep(self.seconds)
        self.asked += 1
        return (self.asked - 1, batch_size) if self.asked > 1 else None

    def update(self, batch, delta):
        self.updated.append((batch, delta))


def test_batches_come_in_order_and_one_is_drawn_ahead():
    replay = Slow()
    ahead, rng = Prefetch(replay), np.random.default_rng(0)
    assert ahead.sample(32, rng) is None
    assert replay.asked == 1, "nothing is drawn ahead of what is not there"
    assert [ahead.sample(32, rng) for _ in range(4)] == [(i, 32) for i in range(1, 5)]
    ahead.update("batch", "delta")
    ahead.free()
    assert replay.asked == 6
    assert replay.updated == [("batch", "delta")]
    assert (ahead.fill, ahead.overwritten, ahead.age, ahead.mean_priority) == (0.5, 7, 30.0, 2.0)
    assert threading.current_thread().name not in replay.threads


def test_what_is_hidden_behind_a_computation_is_not_waited_for():
    ahead, rng = Prefetch(Slow(0.1)), np.random.default_rng(0)
    ahead.sample(32, rng)
    for _ in range(5):
        assert ahead.sample(32, rng) is not None
        time.sleep(0.2)
    ahead.free()
    assert ahead.sampling_seconds >= 0.5
    assert ahead.hidden > 0.4, "all but the first is hidden"


def test_a_fault_in_the_thread_reaches_the_learner():
    replay = Slow()
    replay.sample = lambda batch_size, rng: 1 / 0
    ahead = Prefetch(replay)
    with pytest.raises(ZeroDivisionError):
        ahead.sample(32, np.random.default_rng(0))
    ahead.free()
