"""``hpcrl bench soak``: what it makes of the sizes that it saw; nothing is trained."""

import os
import subprocess
import sys

import numpy as np
import pytest

from hpcrl.bench import soak


def test_a_rise_is_that_after_the_warm_up():
    minutes = np.arange(0, 60, 0.5)
    sizes = 300 + 50 * np.minimum(minutes, 10) + 0.25 * minutes
    assert soak.rise(60 * minutes, sizes) == pytest.approx(0.25)


def test_ranks_below_a_launcher_are_known_by_their_number():
    wait = "import time; print(flush=True); time.sleep(60)"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}]).wait()"
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PMI_RANK": "3"},
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as launcher:
        try:
            launcher.stdout.readline()
            assert soak.resident(launcher.pid).keys() == {3}
            assert 1 < soak.resident(launcher.pid)[3] < 1000
            assert soak.resident(os.getpid())[3] > 1
        finally:
            os.killpg(launcher.pid, 9)


def test_queues_are_seen_at_both_ends_of_a_run():
    progress = {
        "wall_seconds": np.arange(6.0),
        "staleness_mean": np.array([np.nan, 1.0, 1.0, 1.0, 2.0, 4.0]),
        "updates_per_second": np.array([10.0, 20.0, 30.0, 30.0, 30.0, 40.0]),
    }
    rows = {row.name: row.value for row in soak.queue_rows(progress)}
    assert rows == {
        "soak.staleness_mean.first": 1.0,
        "soak.staleness_mean.last": 3.0,
        "soak.updates_per_second.first": 15.0,
        "soak.updates_per_second.last": 35.0,
    }
