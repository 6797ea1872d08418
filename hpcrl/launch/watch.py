"""``hpcrl watch``: follow a run by its files alone, from anywhere, without MPI."""

import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcrl.config import Config, load
from hpcrl.errors import StorageError
from hpcrl.roles.display import Progress, make_display
from hpcrl.storage import schema
from hpcrl.storage.checkpoint import list_checkpoints
from hpcrl.storage.runlock import SILENT_SECONDS, is_seen, read_holder
from hpcrl.storage.runlog import read_runlog

LOOK_SECONDS = 1.0
"""How often the files are looked at."""


def main(run_dir: Path, display: str) -> None:
    """Show where a run stands until it ends, or is found dead; a finished run is shown once.

    Raises
    ------
    StorageError
        It is no run directory.
    """
    if not (run_dir / schema.CONFIG_FILE).is_file():
        raise StorageError(f"{run_dir}: expected a run directory (with {schema.CONFIG_FILE}), got none")
    config = load(run_dir / schema.CONFIG_FILE)
    signs = SignsOfLife(run_dir)
    shown = make_display(display, period_seconds=0.0)
    rows = -1
    while True:
        alive = signs.look()  # before the rows: what a run writes last must be shown
        table = _progress_rows(run_dir)
        if len(table["wall_seconds"]) != rows:
            rows = len(table["wall_seconds"])
            shown.update(latest(table, config, run_dir))
        if not alive:
            break
        time.sleep(LOOK_SECONDS)
    shown.close(whole(latest(table, config, run_dir)))
    if alive is None:
        print(_killed(run_dir))


class SignsOfLife:
    """Whether the job that writes to a run directory is alive: by its process, or by the touches of its lock."""

    def __init__(self, run_dir: Path):
        self._run_dir = run_dir
        self._stamp, self._since = 0, time.monotonic()

    def look(self) -> bool | None:
        """True while a job runs, False where it has ended, None where it was killed."""
        holder = read_holder(self._run_dir)
        if holder is None:
            return False
        alive = is_seen(holder)
        if alive is not None:
            return True if alive else None
        try:
            stamp = (self._run_dir / schema.LOCK_FILE).stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if stamp != self._stamp:
            self._stamp, self._since = stamp, time.monotonic()
        return True if time.monotonic() - self._since < SILENT_SECONDS else None


def latest(table: dict[str, np.ndarray], config: Config, run_dir: Path) -> Progress:
    """Progress as the newest row of the run log tells it; zeros and NaN where there is none yet."""
    newest = {name: column[-1].item() for name, column in table.items()} if len(table["wall_seconds"]) else {}
    return Progress(
        **newest,
        total_frames_goal=config.run.total_frames,
        total_updates_goal=config.run.total_updates,
        run_dir=run_dir,
        name=config.run.name,
    )


def whole(progress: Progress) -> Progress:
    """The same with rates over the whole run."""
    seconds = progress.wall_seconds or math.nan
    return replace(
        progress,
        frames_per_second=progress.total_frames / seconds,
        steps_per_second=progress.total_steps / seconds,
        updates_per_second=progress.global_update / seconds,
    )


def _progress_rows(run_dir: Path) -> dict[str, np.ndarray]:
    try:
        return read_runlog(run_dir, "progress")
    except StorageError:  # a run that has just begun
        return {name: np.zeros(0, column.dtype) for name, column in schema.TABLES["progress"].items()}


def _killed(run_dir: Path) -> str:
    found, _ = list_checkpoints(run_dir)
    left = f"its newest checkpoint is of update {found[-1].global_update:,}" if found else "it left no checkpoint"
    return f"hpcrl: the last job on {run_dir} was killed ({read_holder(run_dir)}); {left}"
