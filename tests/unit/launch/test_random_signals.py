"""A serial run that is sent signals at random times: however many come, it stops once, cleanly, and goes on later."""

import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from test_random_kills import announced, start

from hpcrl.errors import EXIT_STOPPED
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage.runlog import list_segments

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)
"""Not INT, of which a second one ends the process."""


def catches_signals(pid: int) -> bool:
    """Whether a process has a handler for the last of :data:`SIGNALS`; Python itself needs some milliseconds."""
    caught = re.search(r"SigCgt:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
    return bool(int(caught[1], 16) >> (SIGNALS[-1] - 1) & 1)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_250_signals_at_random_times(tmp_path, seed):
    """Ten starts with 25 each: every other one is hit at once, the rest when they train."""
    run_dir, rng = tmp_path / "run", np.random.default_rng(seed)
    update = 0
    for number in range(10):
        process, before = start(run_dir), len(announced(run_dir))
        while not catches_signals(process.pid):
            time.sleep(0.001)
        if number % 2:
            wait_until_it_trains(process, run_dir, before)
        time.sleep(rng.uniform(0, 2.0))
        for _ in range(25):
            process.send_signal(rng.choice(SIGNALS))  # one that has ended already hears of no more
            time.sleep(rng.exponential(0.05))
        err = process.communicate(timeout=120)[1]
        assert process.returncode == EXIT_STOPPED, err
        assert "Traceback" not in err
        assert len(list_segments(run_dir)[0]) == number + 1  # each start has trained, once
        newest, skipped = checkpoints.latest(run_dir)
        assert not skipped
        assert not list((run_dir / "checkpoints").glob("*.tmp"))
        assert newest.global_update >= update
        update = newest.global_update
    assert update > 0


def wait_until_it_trains(process, run_dir, before):
    """Until it has written a checkpoint."""
    deadline = time.monotonic() + 120
    while len(announced(run_dir)) == before:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_handler_only_sets_attributes():
    """Nothing else is safe at any moment: not a line of the log, not a file."""
    source = Path(__file__).parents[3].joinpath("hpcrl", "launch", "signals.py").read_text()
    body = re.search(r"def ask\(signum, frame\):\n((?:        .*\n)+)", source)[1]
    lines = [line.strip() for line in body.splitlines()]
    assert lines == [
        "request.made = True",
        "request.urgent |= signum == signal.SIGTERM",
        "if signum == signal.SIGINT:",
        "signal.signal(signum, signal.SIG_DFL)",
    ]
