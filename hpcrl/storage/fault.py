"""Dying at a chosen point of a checkpoint, for tests of what is left then."""

import os
import signal

VARIABLE = "HPCRL_FAULT_POINT"
"""Environment variable that names the point; a second word, if there is one, says at which passage (default: 1)."""

POINTS = (
    "begun",
    "state_opened",
    "state_written",
    "replay_opened",
    "replay_chunk",
    "replay_written",
    "all_written",
    "manifest_written",
    "replaced",
    "renamed",
    "best_written",
    "pruning",
    "pruned",
)
"""In the order in which a checkpoint passes them."""

_passages = 0


def fault_point(name: str) -> None:
    """End this process with SIGKILL if the environment says so."""
    global _passages
    wanted, _, passage = os.environ.get(VARIABLE, "").partition(" ")
    if wanted == name:
        _passages += 1
        if _passages == int(passage or 1):
            os.kill(os.getpid(), signal.SIGKILL)
