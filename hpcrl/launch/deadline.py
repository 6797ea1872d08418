"""When the job will be ended from outside, as far as its environment says."""

import contextlib
import math
from collections.abc import Mapping

from hpcrl.errors import ConfigError

END_VARIABLES = ("HPCRL_END_TIME", "SLURM_JOB_END_TIME")
"""Environment variables with the time at which the job is ended: ours, which job scripts set, and Slurm's own, which
only newer versions do. [seconds since 1970, UTC]"""
STATES_SECONDS = 5.0
REPLAY_BYTES_PER_SECOND = 1e8
"""What a checkpoint takes on a slow disk: the states of the roles, and replay before it is compressed."""


def seconds_left(environ: Mapping[str, str], now: float) -> float:
    """Seconds until this job is ended; infinite where nothing says when.

    An end that is past does not count: the job was given more time since it was told, or the variable is another's.

    Parameters
    ----------
    environ
        Where `END_VARIABLES` are looked up.
    now : float
        The time. [seconds since 1970, UTC]

    Raises
    ------
    ConfigError
        A variable holds no time.
    """
    ends = (_time(name, environ[name]) for name in END_VARIABLES if environ.get(name))
    return min((end - now for end in ends if end > now), default=math.inf)


def _time(name: str, text: str) -> float:
    with contextlib.suppress(ValueError):
        if math.isfinite(time := float(text)):
            return time
    raise ConfigError(f"{name}: expected the seconds since 1970 at which the job is ended (date +%s), got {text!r}")


def expected_checkpoint_seconds(replay_bytes: int) -> float:
    """What a checkpoint should take at most, before one was measured.

    Parameters
    ----------
    replay_bytes : int
        Of the largest memory.
    """
    return STATES_SECONDS + replay_bytes / REPLAY_BYTES_PER_SECOND
