"""A run's tables in the formats of other programs."""

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hpcrl.analysis.runs import Run
from hpcrl.analysis.tensorboard import write_events
from hpcrl.errors import ConfigError, StorageError

CLOCKS = ("wall_seconds", "total_frames", "global_update")
EVENTS_FILE = "events.out.tfevents.0.hpcrl"


def to_csv(run: Run, directory: Path) -> list[Path]:
    """One file for each table that has rows; numbers are written so that reading gives the same ones back."""
    written = []
    for table, columns in _tables(run):
        written.append(_new(directory) / f"{table}.csv")
        try:
            with open(written[-1], "x", newline="", encoding="utf-8") as stream:
                writer = csv.writer(stream)
                writer.writerow(columns)
                writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
        except OSError as error:
            raise _fault(written[-1], error) from error
    return written


def to_parquet(run: Run, directory: Path) -> list[Path]:
    """The same as Parquet files; needs pandas and pyarrow.

    Raises
    ------
    ConfigError
        One of them is not installed.
    """
    written = []
    for table, _ in _tables(run):
        path = _new(directory) / f"{table}.parquet"
        if path.exists():
            raise _fault(path, FileExistsError(17, "File exists"))
        try:
            run.frame(table).to_parquet(path)
        except ImportError as error:
            raise ConfigError("export to parquet needs pyarrow: pip install pyarrow") from error
        written.append(path)
    return written


def to_tensorboard(run: Run, directory: Path) -> list[Path]:
    """One event file: every table's numbers over total frames, as ``table/column``; times are the run's own clock.

    Rows of the table ``gradients`` are left out: they are histograms over several columns.
    """
    path = _new(directory) / EVENTS_FILE
    try:
        write_events(path, _events(run))
    except OSError as error:
        raise _fault(path, error) from error
    return [path]


def _events(run: Run) -> Iterator[tuple[float, int, dict[str, float]]]:
    for table, columns in _tables(run):
        if table in ("gradients", "order"):
            continue
        names = [name for name in columns if name not in CLOCKS]
        for row in range(len(columns["wall_seconds"])):
            values = {f"{table}/{name}": float(columns[name][row]) for name in names}
            known = {tag: value for tag, value in values.items() if np.isfinite(value)}
            yield float(columns["wall_seconds"][row]), int(columns["total_frames"][row]), known


def _tables(run: Run) -> list[tuple[str, dict[str, np.ndarray]]]:
    return [(table, columns) for table, columns in run.tables.items() if len(columns["wall_seconds"])]


def _new(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _fault(directory, error) from error
    return directory


def _fault(path: Path, error: OSError) -> StorageError:
    return StorageError(f"cannot write {path}: {error.strerror}; nothing is overwritten, choose another --output")
