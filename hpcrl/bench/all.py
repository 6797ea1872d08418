"""``hpcrl bench all``: every benchmark, one after the other, each in a process of its own; one table of all figures."""

import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from hpcrl import bench
from hpcrl.errors import HpcrlError

BENCHMARKS = ("parts", "sampler", "replay", "transport", "checkpoint", "learners", "dqn", "ppo", "scale")
"""From the parts to the whole."""


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about half an hour, ``quick`` about four minutes.

    A benchmark that fails is told at the end; the figures of the others are written.

    Raises
    ------
    HpcrlError
        One or more failed.
    StorageError
        ``json_path`` cannot be written.
    """
    if json_path is not None:
        bench.check_writable(json_path)
    rows, failed = [], []
    with tempfile.TemporaryDirectory(prefix="hpcrl-bench-") as tmp:
        for name in BENCHMARKS:
            figures = Path(tmp) / f"{name}.json"
            command = [sys.executable, "-m", "hpcrl", "bench", name, "--json", str(figures)]
            if subprocess.run([*command, *["--quick"] * quick], check=False).returncode:
                failed.append(name)
            else:
                rows += bench.read_json(figures)
    header = bench.machine()
    bench.print_rows(rows, title="hpcrl bench all", header=header, notes=[], console=Console())
    if json_path is not None:
        bench.write_json(rows, json_path)
    if failed:
        raise HpcrlError(f"{len(failed)} of {len(BENCHMARKS)} benchmarks failed, see above: {', '.join(failed)}")
