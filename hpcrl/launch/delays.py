"""The distribution of ``learning.virtual_delay``: as written, or as another run recorded it."""

import re
from pathlib import Path

import numpy as np

from hpcrl.errors import ConfigError, StorageError
from hpcrl.storage.runlog import read_runlog


def delay_distribution(text: str) -> tuple[list[int], list[float]]:
    """Delays [updates] and their weights.

    Parameters
    ----------
    text : str
        ``"30"``, ``"0:1, 10:2.5"`` (delay and weight), or the directory of a run whose gradients were as old as these
        are to be.

    Raises
    ------
    ConfigError
        It is none of these, or the run recorded no gradients.
    """
    parts = [re.fullmatch(r"\s*(\d+)\s*(?::\s*([\d.eE+-]+)\s*)?", part) for part in text.split(",")]
    try:
        if all(parts):
            delays, weights = [int(part[1]) for part in parts], [float(part[2] or 1) for part in parts]
        else:
            delays, weights = _recorded(Path(text))
        if min(weights) < 0 or not 0 < sum(weights) < np.inf:
            raise ValueError("weights must not be negative, and not all 0")
    except (ValueError, StorageError) as error:
        raise ConfigError(
            f'learning.virtual_delay: expected "30", "0:1, 10:2.5" or the directory of a run that recorded its '
            f'gradients, got "{text}": {error}'
        ) from error
    return delays, weights


def _recorded(run_dir: Path) -> tuple[list[int], list[float]]:
    rows = read_runlog(run_dir, "gradients")
    sent = rows["delay_updates"] >= 0
    delays, which = np.unique(rows["delay_updates"][sent], return_inverse=True)
    if not len(delays):
        raise StorageError(f"{run_dir}: no gradients in its run log")
    return delays.tolist(), np.bincount(which, rows["count"][sent]).tolist()
