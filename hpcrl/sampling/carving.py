"""Several arrays in one piece of memory, so that they can be shared or sent as one."""

from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64
"""Arrays begin on a cache line of their own. [bytes]"""

Fields = Sequence[tuple[tuple[int, ...], np.dtype | type]]
"""Shape and dtype of each array."""


def bytes_of(fields: Fields) -> int:
    """Bytes that the arrays take together."""
    return sum(_round_up(_bytes(*field)) for field in fields)


def carve(memory: np.ndarray, fields: Fields) -> list[np.ndarray]:
    """Views of ``memory``, uint8 ``[bytes_of(fields)]``, one after the other."""
    arrays, begin = [], 0
    for shape, dtype in fields:
        nbytes = _bytes(shape, dtype)
        arrays.append(memory[begin : begin + nbytes].view(dtype).reshape(shape))
        begin += _round_up(nbytes)
    return arrays


def _bytes(shape: tuple[int, ...], dtype) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


def _round_up(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
