"""Restoring a run from a checkpoint that other numbers of servers may have written."""

import re

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage.checkpoint import Checkpoint, read_state, state_path


def load_shard(checkpoint: Checkpoint, begin: int, end: int, total: int) -> dict[str, np.ndarray]:
    """State of the parameters ``begin:end`` of ``total``, cut from or pieced together from the shards of a checkpoint.

    Vectors are laid end to end in the order of the shards; single numbers (versions, step counts) are those of the
    shard that holds ``begin``.

    Raises
    ------
    StorageError
        The checkpoint holds parameters of another size.
    """
    owners = [owner for owner in checkpoint.owners if owner.startswith("parameter_server-")]
    owners.sort(key=lambda owner: int(re.sub(r"\D", "", owner)))
    pieces: dict[str, list[np.ndarray]] = {}
    at = 0
    for owner in owners:
        arrays, _ = read_state(state_path(checkpoint.path, owner), "parameter_server")
        length = len(arrays["params"])
        low, high = max(begin - at, 0), min(end - at, length)
        if low < high:
            for name, value in arrays.items():
                pieces.setdefault(name, []).append(value[low:high] if value.ndim else value)
        at += length
    if at != total:
        raise StorageError(
            f"{checkpoint.path} holds {at} parameters, but this network has {total}: it was written with another "
            f"network or environment; give another run.dir"
        )
    return {name: np.concatenate(parts) if parts[0].ndim else parts[0] for name, parts in pieces.items()}
