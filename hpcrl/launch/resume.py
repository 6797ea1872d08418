"""Restoring a run from a checkpoint that other numbers of servers may have written."""

import re

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage.checkpoint import Checkpoint, read_state, state_path


def check_size(checkpoint: Checkpoint, total: int) -> None:
    """Raise a :class:`StorageError` where a checkpoint does not hold ``total`` parameters."""
    held = checkpoint.attributes["shard_bounds"][-1]
    if held != total:
        raise StorageError(
            f"{checkpoint.path} holds {held:,} parameters, but this network has {total:,}: it was written with another "
            f"network or environment; give another run.dir"
        )


def load_shard(checkpoint: Checkpoint, begin: int, end: int, total: int) -> dict[str, np.ndarray]:
    """State of the parameters ``begin:end`` of ``total``, cut from or pieced together from the shards of a checkpoint.

    Vectors are laid end to end in the order of the shards; single numbers (versions, step counts) are those of the
    first shard that has them.

    Raises
    ------
    StorageError
        The checkpoint holds parameters of another size.
    """
    check_size(checkpoint, total)
    owners = [owner for owner in checkpoint.owners if owner.startswith("parameter_server-")]
    owners.sort(key=lambda owner: int(re.sub(r"\D", "", owner)))
    vectors: dict[str, np.ndarray] = {}
    numbers: dict[str, np.ndarray] = {}
    at = 0
    for owner in owners:
        arrays, _ = read_state(state_path(checkpoint.path, owner), "parameter_server")
        length = len(arrays["params"])
        low, high = max(begin - at, 0), min(end - at, length)
        if low < high:
            for name, value in arrays.items():
                if value.ndim:
                    # A shard that never accepted a gradient has no moments yet: they are zero.
                    whole = vectors.setdefault(name, np.zeros(end - begin, value.dtype))
                    whole[at + low - begin : at + high - begin] = value[low:high]
                else:
                    numbers.setdefault(name, value)
        at += length
    return {**vectors, **numbers}
