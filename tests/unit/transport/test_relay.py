"""Records that go from ranks to ranks through a third one; here all of them are one."""

import numpy as np
import pytest
from mpi4py import MPI

from hpcrl.transport.relay import Relay

BYTES = 24


@pytest.fixture
def relay():
    made = Relay(MPI.COMM_SELF, name="test", hosts=(0,), producers=(0,), consumers=(0,), record_bytes=BYTES, capacity=2)
    yield made
    made.free()


def record(number):
    return np.full(BYTES // 8, number, np.int64)


def test_records_come_out_in_order_and_a_full_ring_takes_no_more(relay):
    out, taken = np.zeros(BYTES, np.uint8), []
    assert not relay.holds(1)
    pushed = [relay.push(record(number)) for number in range(3)]
    assert pushed == [True, True, False]
    for number in range(2, 20):
        assert relay.holds(2)
        assert not relay.holds(3)
        relay.pop(out)
        taken.append(out.view(np.int64).copy())
        assert relay.push(record(number))
    np.testing.assert_array_equal(taken, [record(number) for number in range(18)])
