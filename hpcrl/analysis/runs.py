"""Runs as they lie on the disk: live, ended, killed, restarted or just begun.

>>> run = load("runs/pong_gorila")
>>> run.tables["episodes"]["episode_return"]    # a NumPy array, restarts joined
>>> run.frame("progress").plot("total_frames", "mean_return_100")    # pandas
"""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hpcrl.errors import ConfigError, StorageError
from hpcrl.storage import schema
from hpcrl.storage.checkpoint import Checkpoint, list_checkpoints
from hpcrl.storage.runlog import list_segments, read_runlog

if TYPE_CHECKING:
    import pandas

SEED_KEYS = ("run.seed", "run.name", "run.dir")
"""Keys in which runs of one experiment may differ."""


@dataclass(frozen=True)
class Run:
    """What a run has left, as it was when :func:`load` read it."""

    path: Path
    config: dict[str, Any]
    """dotted key to value: the resolved configuration of the last start"""
    tables: dict[str, dict[str, np.ndarray]]
    """table to column to array ``[rows]``, see docs/hdf5.md; without rows where nothing was written yet"""
    starts: int
    """segments of the run log: how often the run was started"""
    checkpoints: tuple[Checkpoint, ...]
    """oldest first; their manifests alone were read"""
    damaged: tuple[tuple[Path, str], ...]
    """files and directories that cannot be read and were left out, and why"""
    layers: tuple[str, ...] = ()
    """names of the network's layers, which the table ``norms`` numbers"""

    @property
    def name(self) -> str:
        """Name of the run directory."""
        return self.path.name

    @property
    def game(self) -> str:
        """``"ms_pacman"`` for ``ALE/MsPacman-v5``, as score tables have it; else the environment's id."""
        return game_name(self.config["env.id"])

    @property
    def protocol(self) -> str:
        """Training protocol: ``"nature"``, ``"dopamine"``, ``"machado"`` or ``"custom"``."""
        return self.config.get("env.protocol", "custom")

    def frame(self, table: str) -> "pandas.DataFrame":
        """A table as a pandas data frame; a copy.

        Raises
        ------
        ConfigError
            pandas is not installed, or there is no such table.
        """
        if table not in self.tables:
            raise ConfigError(f"expected a table of the run log ({', '.join(self.tables)}), got {table!r}")
        try:
            import pandas
        except ImportError as error:
            raise ConfigError("data frames need pandas: pip install pandas (hpcrl's extra `analysis`)") from error
        return pandas.DataFrame(self.tables[table], copy=True)

    def last(self, column: str) -> float:
        """Last value of a column of ``progress``; 0 before the first row."""
        values = self.tables["progress"][column]
        return values[-1].item() if len(values) else 0


def load(run_dir: str | os.PathLike) -> Run:
    """Read a run directory. Nothing in it is changed, and it may be read-only or written to by a job.

    Raises
    ------
    StorageError
        It is no run directory, or its run log holds nothing that can be read.
    """
    path = Path(run_dir)
    config = _read_config(path)
    segments, damaged_segments = list_segments(path)
    checkpoints, damaged_checkpoints = list_checkpoints(path)
    if segments or damaged_segments:
        # Progress first: of a run that goes on, the other tables then reach at least as far.
        order = ["progress", *(table for table in schema.TABLES if table != "progress")]
        tables = {table: read_runlog(path, table, warns=table == "progress") for table in order}
    else:
        tables = {
            table: {name: np.empty(0, column.dtype) for name, column in columns.items()}
            for table, columns in schema.TABLES.items()
        }
    return Run(
        path=path,
        config=config,
        tables=tables,
        starts=len(segments) + len(damaged_segments),
        checkpoints=tuple(checkpoints),
        damaged=(*damaged_segments, *damaged_checkpoints),
        layers=tuple(json.loads(segments[-1].attributes.get("layers", "[]"))) if segments else (),
    )


def _read_config(path: Path) -> dict[str, Any]:
    file = path / schema.CONFIG_FILE
    if not file.is_file():
        found = "a file" if path.is_file() else "a directory without one" if path.is_dir() else "nothing"
        raise StorageError(f"{path}: expected a run directory (with {schema.CONFIG_FILE}), got {found}")
    try:
        sections = tomllib.loads(file.read_text(encoding="utf-8"))
        config = flat({name: section for name, section in sections.items() if isinstance(section, Mapping)})
    except (OSError, ValueError) as error:
        raise StorageError(f"{file}: expected the configuration of a run, got: {error}") from error
    if "env.id" not in config:
        raise StorageError(f"{file}: expected the configuration of a run, got one without env.id")
    return config


def flat(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """``{"section": {"key": value}}`` as ``{"section.key": value}``."""
    return {f"{section}.{key}": value for section, keys in sections.items() for key, value in keys.items()}


def game_name(env_id: str) -> str:
    """ale-py's name of a game, ``"ms_pacman"`` for ``"ALE/MsPacman-v5"``; other ids stay as they are."""
    if not env_id.startswith("ALE/"):
        return env_id
    words = re.sub(r"^ALE/|-v\d+$", "", env_id)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", words).lower()


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """Keys of the configuration that not all runs have alike, each with the value of every run (None: no such key)."""
    keys = dict.fromkeys(key for run in runs for key in run.config)
    values = {key: [run.config.get(key) for run in runs] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def by_experiment(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs whose configurations differ in nothing but :data:`SEED_KEYS`, together, in the order given."""
    groups: list[tuple[dict, list[Run]]] = []
    for run in runs:
        problem = {key: value for key, value in run.config.items() if key not in SEED_KEYS}
        for known, members in groups:
            if known == problem:
                members.append(run)
                break
        else:
            groups.append((problem, [run]))
    return [members for _, members in groups]


def label(members: Sequence[Run], noun: str = "seeds") -> str:
    """Name of an experiment: of its one run, or what the names of its runs begin with, and how many there are."""
    if len(members) == 1:
        return members[0].name
    common = os.path.commonprefix([run.name for run in members])
    common = re.sub(r"[-_. ]*(seed|s)?[-_. ]*$", "", common) or members[0].name
    return f"{common}, {len(members)} {noun}"
