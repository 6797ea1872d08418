"""How a gradient travels from a learner to a parameter server, and what the server answers."""

HEADER_WORDS = 8
"""int64 words before the gradient in a record; word 0 is the version of this shard that it was computed at, word 1 its
number among the learner's minibatches"""
MOST_DELAY_UPDATES = 2046
"""Longer delays are told to learners as this."""


def encode_verdict(accepted: bool, delay: int) -> int:
    """The server's answer to a gradient: whether it was applied, and its delay. [updates]"""
    return 2 * min(max(delay, 0), MOST_DELAY_UPDATES) + accepted + 1


def decode_verdict(answer: int) -> tuple[bool, int]:
    """What :func:`encode_verdict` was given."""
    delay, accepted = divmod(answer - 1, 2)
    return bool(accepted), delay
