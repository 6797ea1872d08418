"""Replay memories as data sets for offline reinforcement learning, in the layout of Minari."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage.hdf5 import storage_error
from hpcrl.storage.replay import ReplayFile

MINARI_VERSION = "0.5.4"
"""Whose layout this is."""
FINAL = 1
"""Value of a record's ``final`` that marks the last frame of an episode (see docs/hdf5.md)."""


class Episode(NamedTuple):
    """One whole episode of ``T`` steps."""

    frames: np.ndarray
    """obs_dtype ``[T + 1, *obs_shape]``, without the stack"""
    actions: np.ndarray
    """int64 ``[T]``"""
    rewards: np.ndarray
    """float32 ``[T]``, raw"""
    terminated: np.ndarray
    """bool ``[T]``; a lost life too, where the protocol says so"""
    truncated: np.ndarray
    """bool ``[T]``"""


def whole_episodes(replay: ReplayFile) -> Iterator[Episode]:
    """Episodes of which a memory holds every step, lane by lane; others are left out."""
    for lane in range(replay.shape.num_lanes):
        outcomes = replay.outcomes(lane)
        frames = np.concatenate(
            [chunk for _, chunk in replay.frames(lane)] or [np.empty((0, *replay.frame_dtype.shape))]
        )
        ends = np.flatnonzero(outcomes["final"] == FINAL)
        for begin in np.flatnonzero((outcomes["first"] == 1) & (outcomes["final"] == 0)):
            later = ends[ends > begin]
            if not later.size or outcomes["final"][begin : later[0]].any():
                continue
            steps = outcomes[begin : later[0]]
            yield Episode(
                frames[begin : later[0] + 1],
                steps["action"].astype(np.int64),
                steps["reward"],
                steps["terminated"].astype(bool),
                steps["truncated"].astype(bool),
            )


def write_minari(directory: Path, replays: Sequence[Path], *, dataset_id: str, num_actions: int, about: dict) -> int:
    """Write ``data/main_data.hdf5`` and ``data/metadata.json`` of a Minari data set.

    Parameters
    ----------
    directory
        It must not exist.
    replays
        Replay files of a checkpoint.
    dataset_id
        Name of the data set.
    num_actions
        Of the environment.
    about
        Further keys of the metadata.

    Returns
    -------
    int
        Episodes written.

    Raises
    ------
    StorageError
        It cannot be written, or a replay file cannot be read.
    """
    data = Path(directory) / "data"
    try:
        data.mkdir(parents=True)
        with h5py.File(data / "main_data.hdf5", "x") as file:
            count = steps = 0
            for path in replays:
                with ReplayFile(path) as replay:
                    frame = replay.frame_dtype
                    for episode in whole_episodes(replay):
                        _write_episode(file, count, episode)
                        count, steps = count + 1, steps + len(episode.actions)
        metadata = {
            "dataset_id": dataset_id,
            "total_episodes": count,
            "total_steps": steps,
            "data_format": "hdf5",
            "minari_version": MINARI_VERSION,
            "observation_space": json.dumps(_box(frame)),
            "action_space": json.dumps({"type": "Discrete", "dtype": "int64", "start": 0, "n": num_actions}),
            **about,
        }
        (data / "metadata.json").write_text(json.dumps(metadata, indent=1) + "\n")
    except FileExistsError as error:
        raise StorageError(f"{directory}: it exists; choose another --output") from error
    except (OSError, RuntimeError) as error:
        raise storage_error("write", directory, error) from error
    return count


def _write_episode(file: h5py.File, number: int, episode: Episode) -> None:
    group = file.create_group(f"episode_{number}")
    group.attrs.update({"id": number, "total_steps": len(episode.actions)})
    chunks = (1, *episode.frames.shape[1:])
    group.create_dataset("observations", data=episode.frames, compression="gzip", compression_opts=1, chunks=chunks)
    group.create_dataset("actions", data=episode.actions)
    group.create_dataset("rewards", data=episode.rewards)
    group.create_dataset("terminations", data=episode.terminated)
    group.create_dataset("truncations", data=episode.truncated)


def _box(frame: np.dtype) -> dict[str, Any]:
    pixels = frame.base == np.uint8
    low, high = (0, 255) if pixels else (float("-inf"), float("inf"))
    shape = list(frame.shape)
    return {
        "type": "Box",
        "dtype": frame.base.name,
        "shape": shape,
        "low": np.full(shape, low, object).tolist(),
        "high": np.full(shape, high, object).tolist(),
    }
