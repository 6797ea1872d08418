"""Files of games under way, for episodes to begin with (human starts: Nair et al. 2015, section 5.1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage.statefile import read_state, write_state
from hpcrl.types import GameStart


class Starts(NamedTuple):
    """What a file of starts holds."""

    game: str
    """environment id: ``"ALE/Pong-v5"``"""
    origin: str
    """who played up to them"""
    surrogate: bool
    """Whether they stand in for the published ones, which were never released: results cannot be compared with them"""
    starts: tuple[GameStart, ...]


def write_starts(path: Path, game: str, origin: str, starts: Sequence[GameStart]) -> None:
    """Write starts, labelled as surrogate.

    Raises
    ------
    StorageError
        The file exists, or cannot be written.
    """
    arrays = {
        "states": np.frombuffer(b"".join(start.state for start in starts), np.uint8),
        "state_bytes": np.array([len(start.state) for start in starts], np.int64),
        "frames": np.array([start.frames for start in starts], np.int64),
    }
    write_state(path, "starts", arrays, {"game": game, "origin": origin, "surrogate": True})


def read_starts(path: Path) -> Starts:
    """Read what :func:`write_starts` wrote.

    Raises
    ------
    StorageError
        The file is missing, damaged, or of another type or version.
    """
    arrays, attributes = read_state(path, "starts")
    try:
        ends, states = np.cumsum(arrays["state_bytes"]), arrays["states"]
        if len(ends) == 0 or ends[-1] != len(states) or (arrays["state_bytes"] <= 0).any():
            raise StorageError(f"{path}: expected at least one start, with as many bytes as it says")
        pieces = np.split(states, ends[:-1])
        starts = tuple(
            GameStart(piece.tobytes(), int(frames)) for piece, frames in zip(pieces, arrays["frames"], strict=True)
        )
        return Starts(str(attributes["game"]), str(attributes["origin"]), bool(attributes["surrogate"]), starts)
    except (KeyError, ValueError) as error:
        raise StorageError(f"{path}: expected a file of starts, got one without {error}") from error
