"""What lies in a run directory, whether it is sound, and whether a job writes there now."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from hpcrl.errors import StorageError
from hpcrl.roles.display import duration
from hpcrl.storage import schema
from hpcrl.storage.best import Best, read_best
from hpcrl.storage.checkpoint import Checkpoint, find_fault, list_checkpoints
from hpcrl.storage.runlock import is_seen, read_holder
from hpcrl.storage.runlog import Segment, list_segments


class Inspection(NamedTuple):
    """Everything that `inspect_run` found."""

    state: str
    checkpoints: list[tuple[Checkpoint, str]]
    """oldest first, each with what is wrong with it; empty text: its files are as its manifest says"""
    best: Best | None
    """which of them is the best by evaluation"""
    segments: list[Segment]
    damaged: list[tuple[Path, str]]
    """files and directories that cannot be read at all, and why"""

    @property
    def sound(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damaged and not any(fault for _, fault in self.checkpoints)


def inspect_run(run_dir: Path, verify: bool) -> Inspection:
    """Look at everything in a run directory, which may be read-only.

    Parameters
    ----------
    run_dir
    verify
        Read every checkpoint in full and compare its checksums.

    Raises
    ------
    StorageError
        It is no run directory.
    """
    if not (run_dir / schema.CONFIG_FILE).is_file():
        raise StorageError(f"{run_dir}: expected a run directory (with {schema.CONFIG_FILE}), got none")
    checkpoints, damaged_checkpoints = list_checkpoints(run_dir)
    segments, damaged_segments = list_segments(run_dir)
    return Inspection(
        state=state(run_dir),
        checkpoints=[(checkpoint, (find_fault(checkpoint) or "") if verify else "") for checkpoint in checkpoints],
        best=read_best(run_dir),
        segments=segments,
        damaged=damaged_checkpoints + damaged_segments,
    )


def state(run_dir: Path) -> str:
    """Whether a job writes to a run directory now, as far as its lock tells."""
    holder = read_holder(run_dir)
    if holder is None:
        return "not running"
    alive = is_seen(holder)
    if alive is None:
        try:
            silent = time.time() - (run_dir / schema.LOCK_FILE).stat().st_mtime
        except FileNotFoundError:
            return "not running"
        return f"running on another host ({holder}), if its last sign of life {silent:.0f} s ago says so"
    return f"running ({holder})" if alive else f"not running; its last job was killed ({holder})"


def render(run_dir: Path, found: Inspection, verified: bool, console: Console) -> None:
    """Print an inspection."""
    console.print(f"{run_dir}: {found.state}", highlight=False, markup=False, soft_wrap=True)
    if found.checkpoints:
        console.print(_checkpoint_table(found.checkpoints, verified))
    else:
        console.print("no checkpoint")
    for checkpoint, fault in found.checkpoints:
        if checkpoint.absent:
            console.print(f"{checkpoint.path.name}: without {', '.join(checkpoint.absent)}", soft_wrap=True)
        if fault:
            console.print(f"{checkpoint.path.name}: {fault}", markup=False, highlight=False, soft_wrap=True)
    if found.best:
        console.print(
            f"best: {found.best.checkpoint}, with a mean return of {found.best.mean_return:,.2f} over "
            f"{found.best.episodes} episodes at update {found.best.evaluated_update:,}",
            highlight=False,
            soft_wrap=True,
        )
    if found.segments:
        console.print(_segment_table(found.segments))
    for path, why in found.damaged:
        console.print(f"damaged: {path}: {why}", markup=False, highlight=False, soft_wrap=True)


def _checkpoint_table(checkpoints: list[tuple[Checkpoint, str]], verified: bool) -> Table:
    table = _table("checkpoints, oldest first", right=("update", "frames", "trained", "size"))
    for name in ("written", "hpcrl", "verified"):
        table.add_column(name, no_wrap=True)
    for checkpoint, fault in checkpoints:
        size = sum(file["bytes"] for file in checkpoint.files.values())
        table.add_row(
            f"{checkpoint.global_update:,}",
            f"{checkpoint.attributes.get('total_frames', 0):,}",
            duration(checkpoint.attributes.get("wall_seconds", 0.0)),
            f"{size / 1e6:,.1f} MB",
            *_origin(checkpoint.header),
            "DAMAGED" if fault else "yes" if verified else "not asked",
        )
    return table


def _segment_table(segments: list[Segment]) -> Table:
    table = _table("run log, one file for each start", right=("from update", *schema.TABLES))
    for name in ("begun", "hpcrl", "host"):
        table.add_column(name, no_wrap=True)
    for segment in segments:
        rows = (f"{rows:,}" for rows in segment.rows.values())
        start = f"{segment.attributes[schema.RESUMED_UPDATE]:,}"
        table.add_row(start, *rows, *_origin(segment.attributes), str(segment.attributes["host"]))
    return table


def _table(title: str, right: tuple[str, ...]) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _origin(header: Mapping) -> tuple[str, str]:
    """When a file was written, and by which hpcrl, in which version v of its format."""
    return str(header["date"])[:16].replace("T", " "), f"{header['hpcrl_version']} v{header['version']}"
