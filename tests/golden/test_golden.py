"""Runs of every version of the file formats can be read, evaluated and gone on with for ever."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from make import contents

from hpcrl.config import from_dict
from hpcrl.envs import make_games
from hpcrl.launch.agents import load_agent
from hpcrl.launch.inspect import inspect_run
from hpcrl.storage import schema
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.replay import ReplayFile
from hpcrl.storage.starts import read_starts

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


def test_their_weights_are_those_of_the_run(golden):
    np.testing.assert_array_equal(load_agent(golden / "agent.h5").params, load_agent(golden / "run").params)


def test_games_go_on_from_their_starts(golden):
    starts = read_starts(golden / "starts.h5")
    assert (starts.game, starts.surrogate, len(starts.starts)) == ("ALE/Pong-v5", True, 2)
    arguments = from_dict({"env": {"id": starts.game}}).env.arguments()
    env = make_games(2, np.random.SeedSequence(1), starts=starts.starts, **arguments)
    frames = env.reset()
    assert (frames[0] != frames[1]).any()
    assert not env.step(np.zeros(2, np.int64)).episode_over.any()
    env.close()


def test_they_can_be_evaluated_and_gone_on_with(golden):
    evaluated = hpcrl("evaluate", golden / "run", "--episodes", 2)
    assert evaluated.returncode == 0, evaluated.stderr
    trained = hpcrl("train", golden / "golden.toml", "--run-dir", golden / "run", "--set", "run.total_updates=100")
    assert trained.returncode == 0, trained.stderr
    assert "resuming" in trained.stderr
    assert latest(golden / "run")[0].global_update == 100
