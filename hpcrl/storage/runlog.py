"""The run log: what happened, row by row, readable while the run is going and after it was killed.

One file per segment (start of the run), in HDF5's single-writer-multiple-reader (SWMR) mode. After a crash such a
file can be read but not reopened for appending, hence a new segment. Rows are data first, flush, then
`schema.COMMITTED_ROWS`: neither a reader nor a kill nor a full disk ever sees half a row.
"""

import logging
import re
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage import schema
from hpcrl.storage.hdf5 import check_whole, open_file, release_space, reserve_space, storage_error

_log = logging.getLogger(__name__)

MAX_BUFFERED_ROWS = 100_000
"""Rows kept for each table while the disk cannot be written; beyond it the oldest are lost."""
_SPARE_BYTES = 2**20
"""More than HDF5's own structures can need in one flush."""
_SUPERSEDES_NOTHING = np.iinfo(np.int64).max
_CREATION_SECONDS = 1.0
"""A new file cannot be read until its writer has switched to SWMR; a reader waits this long."""


class RunLog:
    """Writer of the run log; one per run, on the monitor's rank.

    `append` may be called from another thread than `flush`, and never waits for the disk.

    Parameters
    ----------
    run_dir
        Run directory; it must exist.
    attributes
        Numbers and texts that describe this segment: ``config``, ``seed``, ``command_line``; and where it starts,
        ``resumed_update`` (default 0) and ``resumed_frames`` (default: not judged). Readers leave out rows of earlier
        segments beyond either.

    Raises
    ------
    StorageError
        The file cannot be made.
    """

    def __init__(self, run_dir: Path, attributes: dict[str, str | int | float]):
        self._run_dir = Path(run_dir)
        start = {schema.RESUMED_UPDATE: 0, schema.RESUMED_FRAMES: _SUPERSEDES_NOTHING}
        self._attributes = {**start, "host": socket.gethostname(), **attributes}
        self._pending = {table: deque(maxlen=MAX_BUFFERED_ROWS) for table in schema.TABLES}
        self._lock = threading.Lock()  # guards _pending only, and is never held during a write
        self._closed = False
        self._open_segment()

    def append(self, table: str, row: dict[str, float]) -> None:
        """Buffer one row.

        Raises
        ------
        StorageError
            The columns are not exactly those of the table.
        """
        columns = schema.TABLES[table]
        if row.keys() != columns.keys():
            wrong = sorted(row.keys() ^ columns.keys())
            raise StorageError(f"run log table {table!r}: missing or unknown columns {wrong}, expected {list(columns)}")
        with self._lock:
            self._pending[table].append(tuple(row[name] for name in columns))

    def flush(self) -> None:
        """Write all buffered rows so that readers see them.

        Raises
        ------
        StorageError
            The disk is full or faulty. The rows stay buffered; the next `flush` tries again, in a new segment.
        """
        for table in schema.TABLES:
            with self._lock:
                rows = list(self._pending[table])
                self._pending[table].clear()
            if not rows:
                continue
            try:
                if self._file is None:
                    self._open_segment()
                self._write(table, rows)
            except (OSError, RuntimeError, StorageError) as error:
                with self._lock:
                    rows += self._pending[table]
                    self._pending[table].clear()
                    self._pending[table].extend(rows)
                self._abandon_segment()
                if isinstance(error, StorageError):
                    raise
                raise storage_error("write", self.path, error) from error

    def close(self) -> None:
        """Write what is buffered and close the file; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.flush()
        if self._file is not None:
            try:
                self._file.close()
                release_space(self.path)
            except (OSError, RuntimeError) as error:
                raise storage_error("close", self.path, error) from error

    def _open_segment(self) -> None:
        self._file = None
        number = max((number for number, _ in _segments(self._run_dir)), default=-1) + 1
        while self._file is None:
            self.path = self._run_dir / schema.RUNLOG_FILE.format(number)
            try:
                # Not a NewFile: HDF5 marks a file that it writes through Python in a way that SWMR readers refuse. So
                # other threads wait here, and below for the switch to SWMR, for the disk: four writes, before training
                # begins and after a fault of the disk.
                self._file = open_file(self.path, "x")
            except FileExistsError:
                number += 1
            except (OSError, RuntimeError) as error:
                raise storage_error("create", self.path, error) from error
        self._committed = dict.fromkeys(schema.TABLES, 0)
        try:
            reserve_space(self._file, _SPARE_BYTES)
            self._file.attrs.update(schema.header("runlog") | self._attributes)
            # The datasets are kept open: HDF5 writes when one is closed, and h5py then swallows the errors.
            self._datasets = {
                table: _create_table(self._file.create_group(table), columns)
                for table, columns in schema.TABLES.items()
            }
            self._file.swmr_mode = True
        except (OSError, RuntimeError) as error:
            self._abandon_segment()
            raise storage_error("create", self.path, error) from error

    def _abandon_segment(self) -> None:
        """Give up a file after a failed write: HDF5 loses rows without a word if it is used any further."""
        if self._file is None:
            return
        try:
            self._file.close()
        except (OSError, RuntimeError) as error:
            _log.debug("closing %s: %s", self.path, error)
        self._file = None
        if any(self._committed.values()):
            # The next segment carries on from this one.
            self._attributes |= dict.fromkeys((schema.RESUMED_UPDATE, schema.RESUMED_FRAMES), _SUPERSEDES_NOTHING)
        else:
            self.path.unlink(missing_ok=True)

    def _write(self, table: str, rows: list[tuple]) -> None:
        *columns, committed = self._datasets[table]
        start = self._committed[table]
        stop = start + len(rows)
        chunk_bytes = sum(column.dtype.itemsize for column in columns) * schema.CHUNK_ROWS
        reserve_space(self._file, (len(rows) // schema.CHUNK_ROWS + 2) * chunk_bytes + _SPARE_BYTES)
        for column, values in zip(columns, zip(*rows, strict=True), strict=True):
            column.resize((stop,))
            column[start:stop] = values
            column.flush()
        committed[0] = stop
        committed.flush()
        self._committed[table] = stop


def read_runlog(run_dir: Path, table: str, *, warns: bool = True) -> dict[str, np.ndarray]:
    """Read one table of a run, live or ended, over all its segments.

    Rows that a later segment supersedes, since it resumed from an earlier update, are left out; so the rows of
    ``progress`` come with strictly increasing ``total_frames``, whatever stops and kills there were. A segment that
    cannot be read is left out with a warning.

    Parameters
    ----------
    run_dir
        Run directory; it may be read-only.
    table
        ``"episodes"``, ``"progress"`` or ``"evaluations"``.
    warns
        Whether to say what is left out.

    Returns
    -------
    dict
        One array ``dtype [rows]`` for each column of ``schema.TABLES[table]``.

    Raises
    ------
    StorageError
        The directory holds no run log, or none that can be read.
    """
    if table not in schema.TABLES:
        raise StorageError(f"run log has no table {table!r}: expected one of {', '.join(schema.TABLES)}")
    segments, faults = [], []
    for _, path in _segments(Path(run_dir)):
        try:
            segments.append(_read_segment(path, table))
        except StorageError as error:
            faults.append(str(error))
            if warns:
                _log.warning("left out: %s", error)
    if not segments:
        raise StorageError("\n".join(faults) or f"{run_dir} holds no run log (runlog-000.h5): is it a run directory?")
    kept = []
    last_update = last_frames = _SUPERSEDES_NOTHING
    for resumed_update, resumed_frames, rows in reversed(segments):
        alive = (rows["global_update"] <= last_update) & (rows["total_frames"] <= last_frames)
        kept.append({name: column[alive] for name, column in rows.items()})
        last_update, last_frames = min(last_update, resumed_update), min(last_frames, resumed_frames)
    if table == "evaluations":
        _leave_out_repeated(kept)
    merged = {name: np.concatenate([rows[name] for rows in reversed(kept)]) for name in schema.TABLES[table]}
    if table == "progress":  # a run that stands still, or ends, writes the frames of the row before once more
        newest = np.append(np.diff(merged["total_frames"]) > 0, True)[: len(merged["total_frames"])]
        merged = {name: column[newest] for name, column in merged.items()}
    return merged


def _leave_out_repeated(segments: list[dict[str, np.ndarray]]) -> None:
    """Leave evaluations out that a later segment (they are given last first) has finished once more.

    One that was under way at a checkpoint goes on after a resume, and its row carries the clocks of its beginning.
    """
    later: set[tuple[int, int]] = set()
    for rows in segments:
        clocks = list(zip(rows["global_update"].tolist(), rows["total_frames"].tolist(), strict=True))
        once = np.array([clock not in later for clock in clocks], bool)
        rows |= {name: column[once] for name, column in rows.items()}
        later.update(clocks)


class Segment(NamedTuple):
    """One file of a run log: what a start of the run wrote."""

    path: Path
    attributes: dict
    """of the file: format version, program version, date, host, seed, where it resumed"""
    rows: dict[str, int]
    """committed rows of each table"""


def list_segments(run_dir: Path) -> tuple[list[Segment], list[tuple[Path, str]]]:
    """Return the segments of a run, oldest first, and (file, reason) of those that cannot be read."""
    found, faults = [], []
    for _, path in _segments(Path(run_dir)):
        try:
            with _open_to_read(path) as file:
                schema.check_header(file.attrs, "runlog", path)
                rows = {
                    table: int(file[table][schema.COMMITTED_ROWS][0]) if table in file else 0 for table in schema.TABLES
                }
                found.append(Segment(path, dict(file.attrs), dict.fromkeys(schema.TABLES, 0) | rows))
        except (OSError, RuntimeError, KeyError) as error:
            faults.append((path, str(storage_error("read", path, error))))
        except StorageError as error:
            faults.append((path, str(error)))
    return found, faults


def _segments(run_dir: Path) -> list[tuple[int, Path]]:
    try:
        matches = [(re.fullmatch(schema.RUNLOG_PATTERN, path.name), path) for path in run_dir.iterdir()]
    except OSError as error:
        raise storage_error("read", run_dir, error) from error
    return sorted((int(match[1]), path) for match, path in matches if match)


def _create_table(group, columns: dict[str, schema.Column]) -> list:
    """Return the datasets of the columns, then that of the committed rows."""
    datasets = []
    for name, column in columns.items():
        dataset = group.create_dataset(
            name, shape=(0,), maxshape=(None,), chunks=(schema.CHUNK_ROWS,), dtype=column.dtype
        )
        dataset.attrs.update(unit=column.unit, meaning=column.meaning)
        datasets.append(dataset)
    return [*datasets, group.create_dataset(schema.COMMITTED_ROWS, data=np.zeros(1, np.int64))]


def _read_segment(path: Path, table: str) -> tuple[int, int, dict[str, np.ndarray]]:
    """Return the update and the frames at which a segment starts, and its rows."""
    try:
        with _open_to_read(path) as file:
            schema.check_header(file.attrs, "runlog", path)
            group = file.get(table)
            if group is None:  # a table that is younger than the file
                rows = {name: np.zeros(0, column.dtype) for name, column in schema.TABLES[table].items()}
                return int(file.attrs[schema.RESUMED_UPDATE]), int(file.attrs[schema.RESUMED_FRAMES]), rows
            num_rows = int(group[schema.COMMITTED_ROWS][0])  # read first: columns only grow
            rows = {name: _read_column(group, name, column, num_rows) for name, column in schema.TABLES[table].items()}
            return int(file.attrs[schema.RESUMED_UPDATE]), int(file.attrs[schema.RESUMED_FRAMES]), rows
    except (OSError, RuntimeError, KeyError) as error:
        raise storage_error("read", path, error) from error


def _read_column(group, name: str, column: schema.Column, num_rows: int) -> np.ndarray:
    """A column; where it was added to this version of the format since the file was written, nothing: NaN or -1."""
    if name not in group:
        return np.full(num_rows, np.nan if column.dtype.startswith("f") else -1, column.dtype)
    return group[name][:num_rows]


def _open_to_read(path: Path):
    deadline = time.monotonic() + _CREATION_SECONDS
    while True:
        try:
            check_whole(path)
            return open_file(path, "r", swmr=True)
        except (OSError, RuntimeError):
            try:
                return open_file(path, "r")
            except (OSError, RuntimeError):
                fresh = time.time() - path.stat().st_mtime < 60.0
                if not fresh or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
