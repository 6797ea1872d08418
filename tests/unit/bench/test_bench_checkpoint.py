"""The checkpoint benchmark on a small memory: what it measures is the real thing, and its rows are complete."""

import io

import numpy as np
import pytest
from rich.console import Console

from hpcrl.bench import _frames, checkpoint


@pytest.fixture
def replay(monkeypatch):
    monkeypatch.setattr(_frames, "PLAYED_FRAMES", 256)
    replay = _frames.Replay(8000, lanes=4)
    replay.fill(_frames.pong_frames())
    return replay


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(checkpoint, "PAIRS", 2)
    monkeypatch.setattr(checkpoint, "SAMPLED_CHUNKS", 8)


def test_the_memory_is_a_valid_replay_of_frames_that_differ(replay):
    assert replay.lanes.check_valid() == (True, "")
    frames = replay.lanes.memory["frame"][:, : replay.capacity].reshape(8000, -1)
    assert len({frame.tobytes() for frame in frames}) == 8000


def test_rows_of_writing_and_reading(replay, tmp_path):
    rows, notes = checkpoint.storage_rows(replay, tmp_path, Console(file=io.StringIO()))
    by_name = {row.name: row for row in rows}
    write = by_name["checkpoint.write"]
    assert write.ratio == write.value / write.bound == by_name["checkpoint.write.ratio"].value
    assert by_name["checkpoint.packed"].value > 5
    peaks = {f"checkpoint.{name}.peak" for name in ("write", "read", "divide")}
    assert {*peaks, "checkpoint.read", "checkpoint.divide", "checkpoint.cut"} <= by_name.keys()
    assert all(row.value >= 0 for row in rows)
    assert notes[0].startswith("8,000 records")


def test_a_file_is_loaded_as_it_was_and_divided(replay, tmp_path):
    before = replay.lanes.memory.copy()
    directory = checkpoint.checkpoints.begin(tmp_path, 1)
    replay.cut().write(checkpoint.checkpoints.state_path(directory, "replay-0"))
    saved = checkpoint.checkpoints.finish(directory, ["replay-0"], [], {})
    shape = checkpoint.Shape(4, 2000, _frames.STACK, _frames.N_STEP)
    lanes = checkpoint.load(saved, shape, replay)
    assert lanes.memory.tobytes() == before.tobytes()
    lanes = checkpoint.load(saved, shape._replace(num_lanes=10, capacity=800), replay)
    assert lanes.check_valid() == (True, "")
    assert lanes.cursors.committed().sum() >= 8000 - 8


def test_memory_that_rises_is_measured():
    seconds, rise = checkpoint.measured(lambda: np.ones(2**23).sum())
    assert seconds > 0
    assert 0.9 * 2**26 <= rise < 2**27


def test_latencies_make_rows():
    quiet, server, bundle = [0.001] * 99 + [0.1], [0.002] * 100, [0.003] * 100
    rows = {row.name: row.value for row in checkpoint.pull_rows({"quiet": quiet, "server": server, "bundle": bundle})}
    assert rows["checkpoint.pull.server.median"] == 2.0
    assert rows["checkpoint.pull.bundle.median"] == 3.0
    assert rows["checkpoint.pull.bundle.median.bound"] == 1.0
    assert rows["checkpoint.pull.server.median.ratio"] == 2.0
    assert len(rows) == 12
