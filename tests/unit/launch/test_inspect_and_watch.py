"""Looking at a run by its files: what is there, whether it is sound, and whether it still goes on."""

import ctypes
import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from rich.console import Console

from hpcrl import config
from hpcrl.errors import StorageError
from hpcrl.launch import inspect, watch
from hpcrl.storage import checkpoint, runlock, schema
from hpcrl.storage.runlog import RunLog
from hpcrl.storage.statefile import write_state

ROOT = Path(__file__).parents[3]


def write_checkpoint(run_dir, update, absent=()):
    directory = checkpoint.begin(run_dir, update)
    path = checkpoint.state_path(directory, "parameter_server-0")
    write_state(path, "parameter_server", {"params": [1.0, 2.0]}, {})
    attributes = {"total_frames": 4 * update, "wall_seconds": 2.0 * update}
    checkpoint.finish(directory, ["parameter_server-0"], absent, attributes)


def progress_row(update):
    row = dict.fromkeys(schema.TABLES["progress"], 0) | {"total_frames": 4 * update, "wall_seconds": 2.0 * update}
    return row | {"global_update": update, "total_steps": update, "mean_return_100": 0.5}


@pytest.fixture
def run_dir(tmp_path):
    """A run of 20 updates with two checkpoints, ended."""
    run = tmp_path / "run"
    run.mkdir()
    (run / schema.CONFIG_FILE).write_text(
        config.to_toml(config.from_dict({"env": {"id": "catch"}, "network": {"kind": "mlp"}}))
    )
    log = RunLog(run, {"seed": 1})
    for update in (10, 20):
        log.append("progress", progress_row(update))
        write_checkpoint(run, update)
    log.close()
    return run


def told(run_dir, verify=True):
    out = io.StringIO()
    found = inspect.inspect_run(run_dir, verify)
    inspect.render(run_dir, found, verify, Console(file=out, width=120))
    return found, out.getvalue()


def test_a_sound_run_is_listed(run_dir):
    found, text = told(run_dir)
    assert found.sound
    assert [checkpoint.global_update for checkpoint, _ in found.checkpoints] == [10, 20]
    assert "not running" in text
    assert text.count("yes") == 2
    assert "0.1.0 v2" in text
    assert "80" in text  # frames of the second


@pytest.mark.parametrize("verify", [True, False])
def test_a_flipped_byte_is_found_where_one_looks(run_dir, verify):
    path = run_dir / "checkpoints" / "step-000000000020" / "parameter_server-0.h5"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    found, text = told(run_dir, verify)
    assert found.sound == (not verify)
    assert ("DAMAGED" in text) == verify
    assert ("parameter_server-0.h5: expected sha256" in text) == verify
    assert ("not asked" in text) == (not verify)


def test_damaged_manifests_and_segments_are_named(run_dir):
    (run_dir / "checkpoints" / "step-000000000010" / "manifest.json").write_text("{")
    (run_dir / "runlog-001.h5").write_bytes(b"no HDF5")
    os.utime(run_dir / "runlog-001.h5", (0, 0))
    found, text = told(run_dir)
    assert not found.sound
    assert len(found.checkpoints) == 1
    assert "damaged: " in text
    assert "runlog-001.h5" in text


def test_who_is_missing_in_a_checkpoint_is_told(run_dir):
    write_checkpoint(run_dir, 30, absent=["learner-1"])
    assert "step-000000000030: without learner-1" in told(run_dir)[1]


def test_a_running_and_a_killed_run_are_told_apart(run_dir):
    lock = runlock.acquire(run_dir)
    assert f"running (host {lock._holder.host}, pid {os.getpid()})" in told(run_dir)[1]
    text = (run_dir / schema.LOCK_FILE).read_text()
    lock.release()
    (run_dir / schema.LOCK_FILE).write_text(json.dumps(json.loads(text) | {"started": 1}))
    assert "its last job was killed" in told(run_dir)[1]
    (run_dir / schema.LOCK_FILE).write_text(json.dumps(json.loads(text) | {"host": "another"}))
    assert "on another host" in told(run_dir)[1]


def test_a_directory_that_is_no_run_is_a_clear_error(tmp_path):
    with pytest.raises(StorageError, match="expected a run directory"):
        inspect.inspect_run(tmp_path, True)
    with pytest.raises(StorageError, match="expected a run directory"):
        watch.main(tmp_path, "plain")


def test_an_ended_run_is_shown_once(run_dir, capsys):
    watch.main(run_dir, "plain")
    out = capsys.readouterr().out
    assert "80 frames, 20 updates" in out
    assert "2.00 frames/s" in out  # the mean over 40 s
    assert "killed" not in out


def test_a_run_without_a_row_yet_is_shown(run_dir, capsys):
    (run_dir / "runlog-000.h5").unlink()
    watch.main(run_dir, "plain")
    assert "0 frames, 0 updates" in capsys.readouterr().out


def test_a_killed_run_is_said_to_be_killed(run_dir, capsys):
    lock = runlock.acquire(run_dir)
    text = (run_dir / schema.LOCK_FILE).read_text()
    lock.release()
    (run_dir / schema.LOCK_FILE).write_text(json.dumps(json.loads(text) | {"started": 1}))
    watch.main(run_dir, "plain")
    assert "was killed" in (out := capsys.readouterr().out)
    assert "newest checkpoint is of update 20" in out


def test_a_live_run_is_followed_to_its_end(run_dir, capsys, monkeypatch):
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.05)
    lock = runlock.acquire(run_dir)
    watching = threading.Thread(target=watch.main, args=(run_dir, "plain"))
    watching.start()
    log = RunLog(run_dir, {"seed": 1, schema.RESUMED_UPDATE: 20})
    log.append("progress", progress_row(30))
    log.flush()
    time.sleep(0.5)
    assert watching.is_alive()
    log.append("progress", progress_row(40))
    log.close()
    lock.release()
    watching.join(timeout=20)
    assert not watching.is_alive()
    out = capsys.readouterr().out
    assert "120 frames, 30 updates" in out
    assert "reached    160 frames" in out


def obey_permissions():
    """Permissions do not bind root, unless it gives up the capability (1) to override them."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.parametrize("command", ["watch", "inspect"])
def test_a_directory_that_may_only_be_read_will_do(run_dir, command):
    paths = [run_dir, *run_dir.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        writing = f"open({str(run_dir / 'new')!r}, 'w')"
        begin = {"preexec_fn": obey_permissions, "capture_output": True, "text": True, "timeout": 60}
        assert "PermissionError" in subprocess.run([sys.executable, "-c", writing], **begin).stderr
        done = subprocess.run([sys.executable, "-m", "hpcrl", command, run_dir], cwd=ROOT, **begin)
        assert done.returncode == 0, done.stderr
        assert "80" in done.stdout
    finally:
        for path in paths:
            path.chmod(0o755)
