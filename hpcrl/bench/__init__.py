"""Benchmarks: each measures hpcrl against a bound, the best that the same machine does without hpcrl.

A benchmark is a module with ``run(json_path, quick=...)``; ``hpcrl bench NAME`` calls it. Here is only what all of them
share: the rows they end with, as a table and as a file, and what has become of them since an earlier file.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from hpcrl.errors import StorageError

if TYPE_CHECKING:
    from rich.console import Console


class Row(NamedTuple):
    """One figure of a benchmark."""

    name: str
    """dotted; ends in ``.bound`` for a bound and in ``.ratio`` for a value over its bound"""
    value: float
    unit: str
    bound: float | None = None
    """in the same unit; None where there is none"""
    ratio: float | None = None
    """``value / bound``"""


def compared(name: str, value: float, unit: str, bound: float) -> list[Row]:
    """Return the three rows of a figure that has a bound: itself, ``name.bound`` and ``name.ratio``."""
    ratio = value / bound
    return [Row(name, value, unit, bound, ratio), Row(f"{name}.bound", bound, unit), Row(f"{name}.ratio", ratio, "1")]


def medians(samples: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each entry over samples that all have the same entries."""
    return {name: statistics.median(sample[name] for sample in samples) for name in samples[0]}


def machine() -> dict[str, str]:
    """Return what figures depend on: processor, cores, torch and MPI library."""
    from importlib import metadata

    # In a process of its own: a process that has loaded MPI must not start others.
    code = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
    mpi = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return {
        "CPU": _cpu_model(),
        "cores": f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}",
        "torch": metadata.version("torch"),
        "MPI": " ".join(mpi.stdout.partition("\n")[0].partition(",")[0].split()) or "none",
    }


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "unknown"
    return next(
        (line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "unknown"
    )


def print_rows(
    rows: Iterable[Row], *, title: str, header: Mapping[str, str], notes: Iterable[str], console: "Console"
) -> None:
    """Print the machine, the rows as a table, and notes below it."""
    from rich.table import Table  # here, because the ranks of some benchmarks are many, and print nothing

    for name, value in header.items():
        console.print(f"{name}: {value}", highlight=False, markup=False, soft_wrap=True)
    table = Table(title=title)
    table.add_column("name", overflow="fold")  # a name cut short is of no use
    for column in ("value", "unit", "bound", "ratio"):
        table.add_column(column, justify="left" if column == "unit" else "right")
    for row in rows:
        table.add_row(row.name, _number(row.value), row.unit, _number(row.bound), _number(row.ratio))
    console.print(table)
    for note in notes:
        console.print(note, highlight=False, markup=False, soft_wrap=True)


def read_json(path: Path) -> list[Row]:
    """Read what :func:`write_json` wrote.

    Raises
    ------
    StorageError
        The file cannot be read, or holds something else.
    """
    try:
        return [Row(**row) for row in json.loads(path.read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise StorageError(f"{path}: expected the rows of a benchmark (hpcrl bench NAME --json): {error}") from error


def fallen(rows: Iterable[Row], baseline: Iterable[Row], tolerance: float) -> list[str]:
    """Say which ratios are lower than in a baseline by more than ``tolerance`` of it, and which are gone.

    Ratios alone are compared: they were measured beside their bounds and so depend least on the machine.
    """
    now = {row.name: row.value for row in rows}
    found = []
    for row in baseline:
        if not row.name.endswith(".ratio"):
            continue
        if row.name not in now:
            found.append(f"{row.name}: {row.value:.3f} in the baseline, not measured now")
        elif now[row.name] < (1 - tolerance) * row.value:
            found.append(f"{row.name}: {row.value:.3f} in the baseline, {now[row.name]:.3f} now")
    return found


def _number(value: float | None) -> str:
    """Four significant digits, no exponent in the usual range; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def check_writable(path: Path) -> None:
    """Raise before minutes of measuring where the figures could not be written after them.

    Raises
    ------
    StorageError
        The file cannot be made or written.
    """
    try:
        path.open("a").close()
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error


def write_json(rows: Iterable[Row], path: Path) -> None:
    """Write the rows as a list of objects with the members of `Row`.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    try:
        path.write_text(json.dumps([row._asdict() for row in rows], indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
