"""Virtual staleness: exactly the delay that was drawn, and exactly the parameters of then."""

import numpy as np
import pytest
from fakes import MemoryVector

from hpcrl.roles.virtual_delay import DelayedVector


def play(delays, weights, updates, *, stride=1, seed=0):
    """Versions pulled when the server publishes every ``stride``-th version; the values are the version itself."""
    vector = MemoryVector()
    delayed = DelayedVector(vector, delays=delays, weights=weights, rng=np.random.default_rng(seed))
    out, versions, pulled = np.zeros(3, np.float32), np.full(1, -1, np.int64), []
    for version in range(0, updates, stride):
        vector.publish(np.full(3, version, np.float32), version)
        before = versions.copy()
        assert delayed.pull(out, versions) == (before != versions).any()
        assert out.tolist() == [versions[0]] * 3
        pulled.append(int(versions[0]))
    return np.array(pulled)


@pytest.mark.parametrize("delay", [0, 1, 7])
def test_a_constant_delay_is_exact(delay):
    pulled = play([delay], [1.0], 40)
    assert pulled.tolist() == [max(version - delay, 0) for version in range(40)]


def test_delays_come_in_their_proportions():
    pulled = play([0, 5, 9], [1.0, 2.0, 1.0], 20_000)
    delays = (np.arange(20_000) - pulled)[9:]
    values, counts = np.unique(delays, return_counts=True)
    assert values.tolist() == [0, 5, 9]
    np.testing.assert_allclose(counts / len(delays), [0.25, 0.5, 0.25], atol=0.02)


def test_where_versions_were_missed_the_delay_is_the_least_that_is_long_enough():
    pulled = play([7], [1.0], 400, stride=5)  # versions 0, 5, 10, ...
    assert (np.arange(0, 400, 5) - pulled)[2:].tolist() == [10] * 78


def test_pulling_twice_draws_twice():
    vector = MemoryVector()
    delayed = DelayedVector(vector, delays=[0, 1], weights=[1, 1], rng=np.random.default_rng(0))
    out, versions = np.zeros(1, np.float32), np.full(1, -1, np.int64)
    for version in (0, 1):
        vector.publish(np.full(1, version, np.float32), version)
        delayed.pull(out, versions)
    seen = set()
    for _ in range(30):
        delayed.pull(out, versions)
        seen.add((int(versions[0]), float(out[0])))
    assert seen == {(0, 0.0), (1, 1.0)}
