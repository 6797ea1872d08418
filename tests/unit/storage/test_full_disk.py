"""A full disk is an error with a remedy, and writing goes on once there is space (needs root: a small tmpfs)."""

import shutil
import subprocess

import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.replay import local_lanes
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage import schema
from hpcrl.storage.replay import ReplayCut, ReplayFile
from hpcrl.storage.runlog import RunLog, read_runlog
from hpcrl.storage.statefile import write_state


@pytest.fixture
def small_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a small tmpfs: needs root")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def grow(path):
    subprocess.run(["mount", "-o", "remount,size=16m", str(path)], check=True)


def test_checkpoint(small_disk):
    directory = checkpoints.begin(small_disk, 1)
    path = checkpoints.state_path(directory, "learner-0")
    state = {f"array{i}": np.random.default_rng(i).random(100_000) for i in range(4)}
    with pytest.raises(StorageError, match="learner-0.h5: No space left on device.*free some space"):
        write_state(path, "learner", state, {})
    assert not path.exists()
    grow(small_disk)
    write_state(path, "learner", state, {})
    checkpoints.finish(directory, ["learner-0"], [], {})
    assert checkpoints.latest(small_disk)[0].global_update == 1


def test_replay(small_disk):
    """Noise, which does not compress: the disk is full in the middle of the frames."""
    lanes = local_lanes(2, (84, 84), np.uint8, capacity=200, stack=4, n_step=1)
    rng = np.random.default_rng(0)
    for index in range(150):
        frames = rng.integers(256, size=(2, 84, 84), dtype=np.uint8)
        outcome = {"action": [0, 1], "reward": [0, 1], "terminated": False, "truncated": False, "first": index == 0}
        lanes.append(np.arange(2), frames, **outcome)
    directory = checkpoints.begin(small_disk, 1)
    path = checkpoints.state_path(directory, "replay-0")
    sizes = {"capacity": 200, "stack": 4, "n_step": 1}
    with pytest.raises(StorageError, match="replay-0.h5: No space left on device.*free some space"):
        ReplayCut(lanes.memory, lanes.cursors, **sizes).write(path)
    assert not path.exists()
    grow(small_disk)
    ReplayCut(lanes.memory, lanes.cursors, **sizes).write(path)
    checkpoints.finish(directory, ["replay-0"], [], {})
    assert checkpoints.latest(small_disk)[0].global_update == 1
    with ReplayFile(checkpoints.state_path(checkpoints.checkpoint_dir(small_disk, 1), "replay-0")) as file:
        for lane in range(2):
            frames = np.concatenate([frames for _, frames in file.frames(lane)])
            np.testing.assert_array_equal(frames, lanes.memory["frame"][lane, :150])


def test_run_log_loses_no_row(small_disk):
    log = RunLog(small_disk, {})
    update, failures = 0, []
    while len(failures) < 3:
        for _ in range(5000):
            log.append("evaluations", dict.fromkeys(schema.TABLES["evaluations"], update))
            update += 1
        try:
            log.flush()
        except StorageError as error:
            failures.append(str(error))
    assert all("No space left on device" in failure for failure in failures)
    grow(small_disk)
    log.close()
    rows = read_runlog(small_disk, "evaluations")
    for column in rows.values():
        np.testing.assert_array_equal(column, np.arange(update))
