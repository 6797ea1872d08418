"""Arrays of jobs: which game is which task's, and what all of them cost."""

import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpcrl.analysis import load
from hpcrl.analysis.runs import game_name
from hpcrl.analysis.scores import table
from hpcrl.cli import app
from hpcrl.config import load as load_config
from hpcrl.errors import ConfigError
from hpcrl.launch import topology
from hpcrl.launch.array import Measured, cost, measure, read_games, read_seeds
from hpcrl.launch.sizes import forecast_of

ROOT = Path(__file__).parents[3]
GAMES = ROOT / "configs" / "atari49.txt"
GOLDEN = ROOT / "tests" / "golden" / "0.1.0" / "run"


def test_the_file_has_the_49_games_of_the_paper():
    assert sorted(map(game_name, read_games(GAMES))) == sorted(table("gorila_noop").games)


def test_the_cost_is_worked_out_from_rates():
    config = load_config(ROOT / "configs" / "atari49.toml")
    rank_map = topology.plan(17, [0] * 17, **config.rank_map(), cores_per_node=17, gpus_per_node=0)
    like = Measured(frames_per_second=1000.0, actors=2, bytes_per_transition=500.0)
    found = cost(config, rank_map, forecast_of(config, rank_map), like, jobs=49, cores=17)
    assert found.hours == pytest.approx(200e6 / 8000 / 3600)  # 16 actors: 8,000 frames/s
    assert found.core_hours == pytest.approx(49 * 17 * found.hours)
    replay = 16 * 200_000 * 500.0
    assert found.disk_bytes == pytest.approx(49 * 3 * replay, rel=0.02)
    endless = load_config(ROOT / "configs" / "atari49.toml", ["run.total_frames=0"])
    with pytest.raises(ConfigError, match=r"expected run.total_frames or run.time_limit_seconds"):
        cost(endless, rank_map, forecast_of(config, rank_map), like, jobs=49, cores=17)


def test_rates_are_those_of_the_files_of_a_run(tmp_path):
    run = load(GOLDEN)
    found = measure(run)
    assert found.frames_per_second == run.last("total_frames") / run.last("wall_seconds")
    assert found.actors == 1
    size = (GOLDEN / "checkpoints" / "step-000000000080" / "replay-0.h5").stat().st_size
    transitions = run.last("replay_fill") * run.config["replay.capacity_steps"]
    assert found.bytes_per_transition == pytest.approx(size / transitions)
    (tmp_path / "config.toml").write_text((GOLDEN / "config.toml").read_text())
    with pytest.raises(ConfigError, match="expected a run that has trained"):
        measure(load(tmp_path))


def test_plan_prints_it():
    arguments = ["plan", ROOT / "configs" / "atari49.toml", "--ranks", "17", "--array", GAMES]
    done = CliRunner().invoke(app, [*map(str, arguments), "--like", str(GOLDEN)])
    assert done.exit_code == 0, done.output
    assert "49 jobs like" in done.output
    assert "core-hours" in done.output
    assert "48: ALE/Zaxxon-v5, seed 1\nall 49 members are valid\n" in done.output


def test_an_array_is_games_times_seeds_and_every_member_is_checked(tmp_path):
    games = tmp_path / "games"
    games.write_text("catch\nCartPole-v1\n")
    config = ROOT / "configs" / "catch_serial.toml"
    arguments = ["plan", config, "--array", games, "--seeds", "3,5"]
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    listed = "0: catch, seed 3\n1: catch, seed 5\n2: CartPole-v1, seed 3\n3: CartPole-v1, seed 5\n"
    assert listed + "all 4 members are valid" in done.output
    games.write_text("catch\nALE/Pingpong-v5\nNo-v0\n")
    with pytest.raises(ConfigError) as raised:
        CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    message = str(raised.value)
    assert message.startswith("2 of 6 members cannot be started:\nmember 2 (ALE/Pingpong-v5, seed 3): ")
    assert "\nmember 4 (No-v0, seed 3): " in message


@pytest.mark.parametrize("text", ["", "1,", "1 1", "-1", "a"])
def test_seeds_are_different_numbers(text):
    if text == "1,":
        assert read_seeds(text) == [1]
    else:
        with pytest.raises(ConfigError, match="--seeds: expected different whole numbers"):
            read_seeds(text)


@pytest.mark.parametrize(("task", "game"), [("1", "Alien"), ("49", "Zaxxon"), ("50", None)])
def test_the_job_trains_the_game_of_its_task(tmp_path, task, game):
    (tmp_path / "srun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": task}
    environment |= {"SLURM_SUBMIT_DIR": str(ROOT), "SCRATCH": "/scratch"}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    command = ["bash", "jobs/atari49.sh", "--set", "run.seed=2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, env=environment, check=False)
    if game is None:
        assert (done.returncode, done.stdout) == (2, "")
        assert "has no line 50" in done.stderr
    else:
        assert f"hpcrl train configs/atari49.toml --set env.id=ALE/{game}-v5 --set run.seed=2" in done.stdout
        assert f"--run-dir /scratch/atari49/{game}\n" in done.stdout


def test_a_file_without_games_is_told(tmp_path):
    (tmp_path / "empty").touch()
    with pytest.raises(ConfigError, match="got none"):
        read_games(tmp_path / "empty")
    with pytest.raises(ConfigError, match="expected a file with an environment in each line"):
        read_games(tmp_path / "absent")
