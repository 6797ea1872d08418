"""The parameter server: which gradients count, what is published when, and its state."""

import numpy as np
import pytest
import torch
from fakes import Reports

from hpcrl.algorithms.optimizers import Optimizer, make_rule
from hpcrl.roles.gradient_record import HEADER_WORDS, MOST_DELAY_UPDATES, decode_verdict, encode_verdict
from hpcrl.roles.parameter_server import ParameterServer
from hpcrl.transport.protocol import ANSWER_BITS

SIZE = 6


class Vector:
    """Publications, in order; refuses while ``full``."""

    def __init__(self, name, log):
        self.name, self.log, self.full, self.published = name, log, False, []
        self.being_read = False

    def attend(self):
        return self.being_read

    def publish(self, values, version):
        if self.full:
            return False
        self.published.append((version, values.copy()))
        self.log.append(f"{self.name} {version}")
        return True

    @property
    def versions(self):
        return [version for version, _ in self.published]


class Rings:
    """Records of each learner, whose memory is overwritten as soon as they are given back."""

    def __init__(self, learners, log):
        self.records, self.log, self.verdicts = [[] for _ in range(learners)], log, []

    def push(self, learner, version, gradient):
        header = np.zeros(HEADER_WORDS, np.int64)
        header[0] = version
        gradient = np.broadcast_to(np.float32(gradient), SIZE).copy()
        self.records[learner].append(np.concatenate([header.view(np.uint8), gradient.view(np.uint8)]))

    def waiting(self):
        return [len(records) for records in self.records]

    def oldest(self, learner):
        return self.records[learner][0]

    def pop(self, learners, verdicts):
        self.verdicts.append({learner: decode_verdict(answer) for learner, answer in verdicts.items()})
        for learner in learners:
            self.records[learner].pop(0)[:] = 255
            self.log.append(f"pop {learner}")


def make(
    *, optimizer="sgd", learning_rate=1.0, rate=None, staleness_bound=10, target_period=100, last_update=0, learners=4
):
    """A server whose shard starts at zero; with plain SGD of rate 1 the shard is minus the sum of the gradients."""
    log, reports = [], Reports()
    server = ParameterServer(
        0,
        optimizer=Optimizer(torch.zeros(SIZE), make_rule(optimizer, epsilon=1e-3), learning_rate),
        learning_rate=rate or (lambda version: learning_rate),
        params=Vector("params", log),
        targets=Vector("targets", log),
        gradients=Rings(learners, log),
        staleness_bound=staleness_bound,
        target_period=target_period,
        last_update=last_update,
        at_end=lambda: log.append("end"),
        announce=lambda version: log.append(f"announce {version}"),
        reporter=reports.reporter,
    )
    server.publish()
    log.clear()
    return server, log


def values(server):
    return server.shard


def test_at_the_start_parameters_and_target_are_published_as_version_0():
    server, _ = make()
    assert server.params.versions == server.targets.versions == [0]


def test_an_idle_step_does_nothing():
    server, log = make()
    assert not server.step()
    assert log == []
    assert server.version == 0


def test_while_it_is_read_a_server_does_not_sleep_as_an_idle_one():
    server, _ = make()
    server.params.being_read = True
    assert server.step()
    assert server.version == 0


def test_every_accepted_gradient_is_a_version():
    server, log = make()
    for learner, gradient in ((0, 1), (1, 10), (3, 100)):
        server.gradients.push(learner, 0, gradient)
    assert server.step()
    assert server.version == server.accepted == 3
    np.testing.assert_array_equal(values(server), -111)
    # Published once, announced, and only then are the slots given back: who sees its push consumed must find it in
    # the next pull.
    assert log == ["params 3", "announce 3", "pop 0", "pop 1", "pop 3"]
    np.testing.assert_array_equal(server.params.published[-1][1], -111)


def test_each_gradient_is_applied_at_the_rate_of_its_version():
    server, _ = make(rate=lambda version: 10.0**version)
    for learner in range(3):
        server.gradients.push(learner, 0, 1)
    server.step()
    server.gradients.push(0, 3, 1)
    server.step()
    np.testing.assert_array_equal(values(server), -1111)


def test_one_gradient_of_a_learner_in_a_step():
    """Nobody is served twice before everybody is served once."""
    server, _ = make()
    server.gradients.push(0, 0, 1)
    server.gradients.push(0, 0, 1)
    server.gradients.push(1, 0, 1)
    server.step()
    assert server.gradients.waiting() == [1, 0, 0, 0]
    server.step()
    assert server.version == 3


def test_stale_gradients_are_dropped_counted_and_given_back():
    server, log = make(staleness_bound=1)
    for learner in range(4):
        server.gradients.push(learner, 0, 10**learner)
    server.step()
    # The first is as new as can be and the second one version old; for the others it is too late.
    assert (server.version, server.accepted, server.dropped, server.staleness_sum) == (2, 2, 2, 1)
    assert server.gradients.verdicts == [{0: (True, 0), 1: (True, 1), 2: (False, 2), 3: (False, 2)}]
    np.testing.assert_array_equal(values(server), -11)
    assert log == ["params 2", "announce 2", "pop 0", "pop 1", "pop 2", "pop 3"]
    server.gradients.push(0, 1, 1)
    server.gradients.push(1, 2, 1)
    server.step()
    assert (server.version, server.dropped, server.staleness_sum) == (4, 2, 3)


def test_a_step_of_stale_gradients_alone_publishes_nothing():
    server, log = make(staleness_bound=0)
    server.gradients.push(0, -1, 1)
    assert server.step()
    assert log == ["pop 0"]
    assert (server.version, server.dropped) == (0, 1)


def test_the_target_is_the_shard_at_exactly_every_period():
    server, log = make(target_period=2, learners=3)
    kept = {}
    for round_ in range(4):
        for learner in range(3):
            server.gradients.push(learner, 3 * round_, 1)
        server.step()
        kept[server.version] = (server.target_version, server.target.tolist())
    # Three versions at a time: the even ones in the middle are kept all the same, at -1 for every version.
    assert kept == {v: (v // 2 * 2, [-(v // 2 * 2)] * SIZE) for v in (3, 6, 9, 12)}
    assert server.targets.versions == [0, 2, 6, 8, 12]
    for version, target in server.targets.published:
        np.testing.assert_array_equal(target, -version)


def test_parameters_are_published_before_the_target_that_belongs_to_them():
    server, log = make(target_period=1)
    server.gradients.push(0, 0, 1)
    server.step()
    assert log == ["params 1", "announce 1", "targets 1", "pop 0"]


def test_where_slow_readers_hold_every_slot_a_later_step_publishes():
    server, log = make(target_period=1)
    server.params.full = server.targets.full = True
    server.gradients.push(0, 0, 1)
    server.step()
    assert log == ["pop 0"]
    server.gradients.push(0, 0, 1)
    server.step()
    server.params.full = server.targets.full = False
    server.step()
    assert log[1:] == ["pop 0", "params 2", "announce 2", "targets 2"]
    server.step()
    assert log[-1] == "targets 2"


def test_it_never_goes_beyond_the_last_update():
    server, log = make(last_update=2)
    for learner in range(4):
        server.gradients.push(learner, 0, 10**learner)
    server.step()
    # The others are not judged any more, nor given back: who waits for a verdict does not go on.
    assert log == ["params 2", "announce 2", "end", "pop 0", "pop 1"]
    np.testing.assert_array_equal(values(server), -11)
    assert server.gradients.verdicts == [{0: (True, 0), 1: (True, 1)}]
    server.gradients.push(0, 2, 1)
    assert not server.step()  # it is idle
    assert (server.version, server.accepted, server.dropped) == (2, 2, 0)
    assert log.count("end") == 1
    assert server.gradients.waiting() == [1, 0, 1, 1]


def test_a_verdict_is_a_small_number():
    for accepted in (False, True):
        for delay in (0, 1, 400, MOST_DELAY_UPDATES):
            assert 0 < encode_verdict(accepted, delay) < 2**ANSWER_BITS
            assert decode_verdict(encode_verdict(accepted, delay)) == (accepted, delay)
        assert decode_verdict(encode_verdict(accepted, 10**6)) == (accepted, MOST_DELAY_UPDATES)


def test_a_run_resumed_at_its_end_ends_at_once():
    server, _ = make(last_update=2)
    for learner in range(2):
        server.gradients.push(learner, 0, 1)
    server.step()
    resumed, log = make(last_update=2)
    resumed.restore(server.state())
    assert "end" in log


@pytest.mark.parametrize("optimizer", ["sgd", "rmsprop", "adagrad", "adam"])
def test_a_restored_server_goes_on_bit_for_bit(optimizer):
    rng = np.random.default_rng(0)
    gradients = rng.normal(size=(10, SIZE)).astype(np.float32)

    def train(server, some):
        for gradient in some:
            server.gradients.push(0, server.version, gradient)
            server.step()

    server, _ = make(optimizer=optimizer, learning_rate=0.1, target_period=3)
    train(server, gradients[:5])
    state = server.state()
    kept = {name: value.copy() for name, value in state.items()}
    train(server, gradients[5:])
    for name, value in kept.items():
        np.testing.assert_array_equal(state[name], value, err_msg=f"{name} is no copy")

    restored, log = make(optimizer=optimizer, learning_rate=0.1, target_period=3)
    restored.restore(state)
    assert log[:2] == ["params 5", "announce 5"]
    assert restored.targets.versions[-1] == 3
    np.testing.assert_array_equal(restored.targets.published[-1][1], state["target"])
    train(restored, gradients[5:])
    assert (restored.version, restored.target_version) == (server.version, server.target_version) == (10, 9)
    np.testing.assert_array_equal(values(restored), values(server))
    np.testing.assert_array_equal(restored.target, server.target)
    for name, value in server.state().items():
        np.testing.assert_array_equal(restored.state()[name], value, err_msg=name)


def test_restoring_keeps_no_hold_on_the_given_arrays():
    server, _ = make(optimizer="adagrad")
    state = make(optimizer="adagrad")[0].state()
    server.restore(state)
    for learner in range(2):
        server.gradients.push(learner, 0, 1)
    server.step()
    assert not state["params"].any()
    assert not state["target"].any()
