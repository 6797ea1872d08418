"""Where gradients are made."""

import numpy as np

from hpcrl.roles.gradient_record import HEADER_WORDS, gradient_place
from hpcrl.transport.own import OwnRing


def test_a_gradient_is_made_in_the_record_of_an_only_server():
    ring = OwnRing(np.zeros(8 * HEADER_WORDS + 12, np.uint8))
    place = gradient_place(ring, [0])
    place[:] = 1, 2, 3
    assert ring.push({0: (np.arange(HEADER_WORDS), place)})
    record = ring.oldest(0)
    assert record[: 8 * HEADER_WORDS].view(np.int64).tolist() == list(range(HEADER_WORDS))
    assert record[8 * HEADER_WORDS :].view(np.float32).tolist() == [1, 2, 3]


def test_of_several_servers_it_is_not():
    assert gradient_place(OwnRing(np.zeros(8 * HEADER_WORDS + 12, np.uint8)), [0, 1]) is None
