"""The best checkpoint by evaluation: which it is, and keeping it from being pruned.

An evaluation counts for the first checkpoint that has at least the parameters that were evaluated. A small text file
beside the checkpoints names it, since evaluations end after a checkpoint's own files are sealed by checksums.
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

from hpcrl.errors import StorageError
from hpcrl.storage import schema
from hpcrl.storage.checkpoint import list_checkpoints
from hpcrl.storage.fault import fault_point
from hpcrl.storage.hdf5 import fsync, storage_error


class Best(NamedTuple):
    """The evaluation with the greatest mean return, and its checkpoint."""

    checkpoint: str
    """name of its directory"""
    evaluated_update: int
    mean_return: float
    episodes: int

    def path(self, run_dir: Path) -> Path:
        """Directory of the checkpoint."""
        return Path(run_dir) / schema.CHECKPOINTS_DIRECTORY / self.checkpoint


def mark_best(run_dir: Path, evaluated_update: int, mean_return: float, episodes: int) -> bool:
    """Label the checkpoint of an evaluation as the best, if it is.

    Returns
    -------
    bool
        False where no checkpoint has the evaluated parameters yet: ask again after the next. Else it is settled.

    Raises
    ------
    StorageError
        The label cannot be written.
    """
    since = [c for c in list_checkpoints(run_dir)[0] if c.global_update >= evaluated_update]
    if not since:
        return False
    before = read_best(run_dir)
    if before is not None and before.mean_return >= mean_return:
        return True
    first = min(since, key=lambda checkpoint: checkpoint.global_update)
    best = Best(first.path.name, int(evaluated_update), float(mean_return), int(episodes))
    path = _label(run_dir)
    unfinished = path.with_name(path.name + schema.UNFINISHED_SUFFIX)
    try:
        unfinished.write_text(json.dumps(schema.header("best") | best._asdict(), indent=1) + "\n")
        fsync(unfinished)
        fault_point("best_written")
        unfinished.replace(path)
        fsync(path.parent)
    except OSError as error:
        raise storage_error("write", path, error) from error
    return True


def read_best(run_dir: Path) -> Best | None:
    """The best checkpoint; None where there is none, or its label cannot be read."""
    path = _label(run_dir)
    try:
        found = json.loads(path.read_text())
        schema.check_header(found, "best", path)
        best = Best(
            str(found["checkpoint"]),
            int(found["evaluated_update"]),
            float(found["mean_return"]),
            int(found["episodes"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, StorageError):
        return None
    named = re.fullmatch(schema.CHECKPOINT_PATTERN, best.checkpoint)
    return best if named and best.path(run_dir).is_dir() else None


def _label(run_dir: Path) -> Path:
    return Path(run_dir) / schema.CHECKPOINTS_DIRECTORY / schema.BEST_FILE
