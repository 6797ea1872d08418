"""How a gradient travels from a learner to a parameter server, and what the server answers."""

from collections.abc import Sequence

import numpy as np

from hpcrl.transport.own import OwnRing
from hpcrl.transport.ring import Rings

HEADER_WORDS = 8
"""int64 words before the gradient in a record; word 0 is the version of this shard that it was computed at, word 1 its
number among the learner's minibatches"""
MOST_DELAY_UPDATES = 2046
"""Longer delays are told to learners as this."""


def gradient_place(gradients: Rings | OwnRing, servers: Sequence[int]) -> np.ndarray | None:
    """float32 ``[P]``: where a learner may make its gradient, so that a push of it copies nothing.

    That is in the record that goes to the only one of ``servers`` (their ranks), where :meth:`Rings.place` gives it;
    None elsewhere. Several servers have a record each, and a gradient lies in one piece.
    """
    record = gradients.place(servers[0]) if len(servers) == 1 else None
    return None if record is None else record[8 * HEADER_WORDS :].view(np.float32)


def encode_verdict(accepted: bool, delay: int) -> int:
    """The server's answer to a gradient: whether it was applied, and its delay. [updates]"""
    return 2 * min(max(delay, 0), MOST_DELAY_UPDATES) + accepted + 1


def decode_verdict(answer: int) -> tuple[bool, int]:
    """What :func:`encode_verdict` was given."""
    delay, accepted = divmod(answer - 1, 2)
    return bool(accepted), delay
