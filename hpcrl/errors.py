"""Exceptions and exit codes.

Every message says what was expected, what was got and what to change.
"""

EXIT_FINISHED = 0
"""The run reached ``run.total_frames`` or ``run.total_updates``."""
EXIT_FAULT = 1
"""An uncaught exception on some rank."""
EXIT_CONFIG = 2
"""The configuration, topology, launcher or machine is wrong; nothing was written."""
EXIT_STALLED = 70
"""A rank made no progress for ``run.stall_seconds``."""
EXIT_STOPPED = 85
"""Stopped cleanly before the end; the same command resumes the run."""


class HpcrlError(Exception):
    """Root of every error that hpcrl raises on purpose."""

    exit_code = EXIT_FAULT


class ConfigError(HpcrlError):
    """A configuration value is wrong; the message lists every fault at once."""

    exit_code = EXIT_CONFIG


class TopologyError(HpcrlError):
    """The ranks cannot be divided into the roles that the configuration asks for."""

    exit_code = EXIT_CONFIG


class MachineError(HpcrlError):
    """This machine or its MPI cannot run the job: no MPI, two MPIs, another's launcher, too little memory."""

    exit_code = EXIT_CONFIG


class TransportError(HpcrlError):
    """One-sided communication failed or timed out."""


class StalledError(TransportError):
    """What this rank waits for does not come, and the job cannot go on without it."""

    exit_code = EXIT_STALLED


class StorageError(HpcrlError):
    """A run directory, checkpoint or log cannot be read or written."""
