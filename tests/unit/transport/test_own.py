"""What stands in for windows on a single rank: it keeps the promises of those, and copies nothing that it need not."""

import numpy as np

from hpcrl.transport.own import OwnRing, OwnVector


def test_a_vector_is_read_where_it_lies():
    vector, out, versions = OwnVector(), np.zeros(3, np.float32), np.array([-1])
    values = np.ones(3, np.float32)
    assert vector.publish(values, 0)
    assert vector.pull(out, versions)
    assert (out.tolist(), versions.tolist()) == ([1, 1, 1], [0])
    values += 1
    assert not vector.pull(out, versions)
    assert vector.publish(values, 5)
    assert vector.pull(out, versions)
    assert (out.tolist(), versions.tolist()) == ([2, 2, 2], [5])


def test_a_ring_of_one_record():
    ring = OwnRing(np.zeros(24, np.uint8))
    assert ring.room()
    assert ring.waiting() == [0]
    assert ring.answers() == []
    for number in (1, 2):
        header, values = np.array([number, 7]), np.array([1.5, number], np.float32)
        assert ring.push({0: (header, values)})
        assert not ring.room()
        assert not ring.drained()
        assert ring.waiting() == [1]
        record = ring.oldest(0)
        assert record[:16].view(np.int64).tolist() == [number, 7]
        assert record[16:].view(np.float32).tolist() == [1.5, number]
        ring.pop({}, {})
        assert not ring.drained()
        ring.pop({0: 3}, {0: 3})
        assert ring.drained()
    assert ring.answers() == [[3], [3]]
    assert ring.answers() == []


def test_what_was_made_in_the_record_is_not_copied():
    ring = OwnRing(np.zeros(24, np.uint8))
    values = ring.record[16:].view(np.float32)
    values[:] = 4
    ring.push({0: (np.array([1, 2]), values)})
    values[1] = 5  # that is a look behind the scenes: until it is given back, a record must be left alone
    assert ring.oldest(0)[16:].view(np.float32).tolist() == [4, 5]
