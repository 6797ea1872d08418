"""Runs of every version of the file formats can be read, evaluated and gone on with for ever."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from make import contents

from hpcrl.launch.inspect import inspect_run
from hpcrl.storage import schema
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.replay import ReplayFile

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
VERSIONS = sorted(path.parent for path in HERE.glob("*/expected.json"))


@pytest.fixture(params=VERSIONS, ids=[path.name for path in VERSIONS])
def golden(request, tmp_path):
    """A copy of the golden files of a version: they may be read-only, and a run writes."""
    return shutil.copytree(request.param, tmp_path / "golden")


def hpcrl(*arguments):
    command = [sys.executable, "-m", "hpcrl", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_there_are_golden_files():
    assert VERSIONS


def test_they_hold_what_they_held(golden):
    expected = json.loads((golden / "expected.json").read_text())
    expected["rows"] = dict.fromkeys(schema.TABLES, 0) | expected["rows"]  # younger tables are empty
    assert contents(golden / "run") == expected
    assert inspect_run(golden / "run", verify=True).sound


def test_their_replay_can_be_read(golden):
    checkpoint, _ = latest(golden / "run")
    with ReplayFile(checkpoint.path / checkpoint.files["replay-0"]["name"]) as replay:
        for lane in range(replay.shape.num_lanes):
            frames = sum(len(frames) for _, frames in replay.frames(lane))
            assert frames == len(replay.outcomes(lane)) == replay.end[lane] - replay.begin[lane] > 0
            assert (replay.priorities(lane) >= 0).all()


def test_they_can_be_evaluated_and_gone_on_with(golden):
    evaluated = hpcrl("evaluate", golden / "run", "--episodes", 2)
    assert evaluated.returncode == 0, evaluated.stderr
    trained = hpcrl("train", golden / "golden.toml", "--run-dir", golden / "run", "--set", "run.total_updates=100")
    assert trained.returncode == 0, trained.stderr
    assert "resuming" in trained.stderr
    assert latest(golden / "run")[0].global_update == 100
