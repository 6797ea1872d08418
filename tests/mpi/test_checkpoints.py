"""Checkpoints of whole jobs: resumed by other numbers of ranks, and killed in the middle of being written."""

import contextlib
import shutil
import subprocess
import threading
import time
from pathlib import Path

import pytest
from launching import run_ranks, train, training_job
from saved import parameters, stored

from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage import fault

pytestmark = pytest.mark.one_mpi

CONFIG = Path(__file__).with_name("small.toml")


SHORT = [(3, 2, "bundled", "local"), (1, 3, "bundled", "local"), (2, 2, "split", "global")]
LONG = [*SHORT[:1], (1, 5, "bundled", "local"), (2, 2, "bundled", "local"), (1, 2, "split", "local"), SHORT[2]]
LONG.append((1, 3, "split", "global"))


@pytest.mark.parametrize("jobs", [SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "long"])
def test_servers_and_bundles_of_any_number_keep_parameters_and_transitions(jobs, tmp_path):
    """No update is made after the first job, so every further one saves what it restored; its actors may add to it."""
    run_dir = tmp_path / "run"
    before = None
    for servers, bundles, layout, place in jobs:
        overrides = [f"topology.servers={servers}", "run.total_updates=100", f'topology.layout="{layout}"']
        overrides.append(f'replay.place="{place}"')
        done = train(servers + bundles, CONFIG, run_dir, *overrides, f"replay.capacity_steps={4000 // bundles}")
        assert done.returncode == EXIT_FINISHED, done.stderr
        checkpoint, skipped = checkpoints.latest(run_dir)
        assert (checkpoint.global_update, skipped) == (100, [])
        now = parameters(checkpoint), stored(checkpoint)
        if before:
            assert now[0] == before[0]
            assert sum(before[1].values()) > 300
            assert not before[1] - now[1]
            assert "transitions kept, 0 dropped" in done.stderr
        before = now


@pytest.mark.long  # tests/unit/storage/test_kills.py does it at every point
@pytest.mark.parametrize("point", ["replay_chunk", "manifest_written"])
def test_a_job_killed_while_it_writes_goes_on_from_the_checkpoint_before(point, tmp_path):
    run_dir = tmp_path / "run"
    done = train(3, CONFIG, run_dir, "run.total_updates=50")
    assert done.returncode == EXIT_FINISHED, done.stderr
    done = train(3, CONFIG, run_dir, "run.total_updates=100", **{fault.VARIABLE: point})
    assert done.returncode != EXIT_FINISHED
    assert list((run_dir / "checkpoints").glob("*.tmp"))
    newest, skipped = checkpoints.latest(run_dir)
    assert (newest.global_update, skipped) == (50, [])
    done = train(3, CONFIG, run_dir, "run.total_updates=100")
    assert done.returncode == EXIT_FINISHED, done.stderr
    assert "replay restored" in done.stderr
    newest, skipped = checkpoints.latest(run_dir)
    assert (newest.global_update, skipped) == (100, [])
    assert not list((run_dir / "checkpoints").glob("*.tmp"))


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small tmpfs: needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def number_of_newest(run_dir):
    """0 where there is none; others may be pruned just now."""
    return max((found.number for found in checkpoints.list_checkpoints(run_dir)[0]), default=0)


def wait_for_number(run_dir, number):
    deadline = time.monotonic() + 60
    while number_of_newest(run_dir) < number:
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wait_until_it_says(process, text, seconds=60.0):
    """Read what a job prints on stderr until there is ``text`` in it."""
    timer, said = threading.Timer(seconds, process.kill), ""
    timer.start()
    while text not in said:
        line = process.stderr.readline()
        assert line, said
        said += line
    timer.cancel()


def test_training_goes_on_while_the_disk_is_full(small_disk):
    run_dir, filler = small_disk / "run", small_disk / "filler"
    with training_job(3, CONFIG, run_dir, "checkpoint.period_seconds=0.5", "checkpoint.keep_last=1") as process:
        wait_for_number(run_dir, 1)
        with contextlib.suppress(OSError), filler.open("wb") as file:
            for size in (2**20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
                        file.flush()
        wait_until_it_says(process, "No space left on device (free some space; training goes on meanwhile")
        assert process.poll() is None
        before = number_of_newest(run_dir)
        assert before >= 1  # the last good one
        filler.unlink()
        wait_for_number(run_dir, before + 1)
        assert run_ranks(0, ["-m", "hpcrl", "stop", run_dir]).returncode == 0
        _, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_STOPPED, err
    newest, skipped = checkpoints.latest(run_dir)
    assert newest.number > before
    assert not skipped
    assert not list((run_dir / "checkpoints").glob("*.tmp"))


@pytest.mark.long
@pytest.mark.parametrize("point", fault.POINTS)
def test_a_job_killed_at_any_point_goes_on(tmp_path, point):
    run_dir, often = tmp_path / "run", ["checkpoint.period_seconds=0.3", "checkpoint.keep_last=1"]
    done = train(3, CONFIG, run_dir, *often, "run.time_limit_seconds=2.0")
    before, _ = checkpoints.latest(run_dir)
    assert before, done.stderr
    evaluations = ["topology.evaluators=1", "run.evaluation_period_updates=50", "run.evaluation_episodes=2"]
    done = train(4, CONFIG, run_dir, *often, *evaluations, "run.time_limit_seconds=20.0", **{fault.VARIABLE: point})
    if point != "replaced":  # which only writing the same update twice passes
        assert done.returncode not in (0, EXIT_FINISHED), done.stderr
    killed, skipped = checkpoints.latest(run_dir)
    assert not skipped
    assert killed.number >= before.number
    done = train(3, CONFIG, run_dir, *often, "run.time_limit_seconds=2.0")
    after, skipped = checkpoints.latest(run_dir)
    assert not skipped
    assert after.number > killed.number, done.stderr
    assert not list((run_dir / "checkpoints").glob("*.tmp"))
