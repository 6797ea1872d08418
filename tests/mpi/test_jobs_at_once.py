"""Jobs that start at the same moment on one machine do not disturb each other."""

from pathlib import Path

import pytest
from launching import start_training

from hpcrl.errors import EXIT_FINISHED
from hpcrl.storage.checkpoint import latest

CONFIG = Path(__file__).with_name("small.toml")


@pytest.mark.long
def test_ten_jobs_started_at_once(tmp_path):
    jobs = [start_training(2, CONFIG, tmp_path / f"{n}", "run.total_updates=100", f"run.seed={n}") for n in range(10)]
    try:
        for job in jobs:
            _, err = job.communicate(timeout=500)
            assert job.returncode == EXIT_FINISHED, err
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
    for n in range(10):
        newest, skipped = latest(tmp_path / f"{n}")
        assert (newest.global_update, newest.attributes["seed"], skipped) == (100, n, [])
        assert (tmp_path / f"{n}" / "events.log").read_text().count("new run") == 1
