"""Log lines that say which rank and role they come from.

Modules log to ``logging.getLogger(__name__)``; only the entry points call `configure`. The root logger is left alone.
"""

import logging
import sys
from pathlib import Path

from hpcrl.errors import StorageError

_LOGGER = logging.getLogger("hpcrl")


class _Formatter(logging.Formatter):
    def __init__(self, rank: int, label: str):
        place = f"rank {rank} {label}".rstrip()
        super().__init__(f"[%(asctime)s {place}] %(severity)s%(message)s", datefmt="%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        record.severity = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return super().format(record)


class _StderrHandler(logging.Handler):
    """Writes to whatever ``sys.stderr`` is now: the live display replaces it while it is on the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def configure(rank: int, label: str, level: int | str = logging.WARNING) -> None:
    """Send hpcrl's log lines to stderr as ``[12:00:01 rank 3 actor 1] message``.

    Parameters
    ----------
    rank
        Rank in the job's world.
    label
        Roles of this rank, such as ``"actor 1"``.
    level
        Least level shown. The monitor's rank uses INFO and all others WARNING, so that a job of many ranks says
        everything once.
    """
    for handler in tuple(_LOGGER.handlers):
        _LOGGER.removeHandler(handler)
        handler.close()
    handler = _StderrHandler()
    handler.setFormatter(_Formatter(rank, label))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(level)
    _LOGGER.propagate = False


def log_to_file(path: Path) -> logging.Handler:
    """Also append the lines of this rank to a text file (``events.log``), for ``tail -f``; call after `configure`.

    Raises
    ------
    StorageError
        The file cannot be opened.
    """
    try:
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot append to {path}: {error.strerror}; check its directory and permissions") from error
    if _LOGGER.handlers:
        handler.setFormatter(_LOGGER.handlers[0].formatter)
    _LOGGER.addHandler(handler)
    return handler
