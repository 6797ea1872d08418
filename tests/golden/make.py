"""Make the golden files of this version: ``python tests/golden/make.py`` writes ``tests/golden/VERSION/``.

Made once for every version of hpcrl whose file formats differ from those before, and never changed again.
"""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np

from hpcrl.storage import schema
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

CONFIG = Path(__file__).with_name("everything.toml")


def main() -> None:
    """Train a little, stop, train on, and write down what a reader must find."""
    directory = Path(__file__).parent / importlib.metadata.version("hpcrl")
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    shutil.copy(CONFIG, directory / "golden.toml")
    program = "import sys; sys.argv[0] = 'hpcrl'; from hpcrl.cli import main; main()"  # no path of this machine
    hpcrl = [sys.executable, "-c", program]
    command = [*hpcrl, "train", "golden.toml", "--run-dir", "run"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for updates in (40, 80):
        stop = ["--set", f"run.total_updates={updates}"]
        subprocess.run([*command, *stop], check=True, cwd=directory, env=environment)
    for arguments in (
        ["export", "run", "--to", "weights", "--output", "agent.h5"],
        ["starts", "record", "ALE/Pong-v5", "--random", "--count", "2", "--output", "starts.h5"],
    ):
        subprocess.run([*hpcrl, *arguments], check=True, cwd=directory, env=environment)
    (directory / "expected.json").write_text(json.dumps(contents(directory / "run"), indent=1) + "\n")


def contents(run_dir: Path) -> dict:
    """What is in a run, as far as any later version must be able to tell."""
    tables = {table: read_runlog(run_dir, table) for table in schema.TABLES}
    checkpoint, _ = latest(run_dir)
    return {
        "rows": {table: len(columns["global_update"]) for table, columns in tables.items()},
        "returns": float(tables["episodes"]["episode_return"].sum()),
        "last_update": int(tables["progress"]["global_update"][-1]),
        "evaluated": np.unique(tables["evaluations"]["global_update"]).tolist(),
        "checkpoint": checkpoint.global_update,
        "owners": sorted(checkpoint.owners),
    }


if __name__ == "__main__":
    main()
