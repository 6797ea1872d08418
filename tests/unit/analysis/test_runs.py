"""Reading runs in every state, by the Python API and by the commands that analyse them."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

from hpcrl.analysis import load
from hpcrl.analysis.runs import by_experiment, differences, game_name, label
from hpcrl.config import from_dict, to_toml
from hpcrl.errors import ConfigError, StorageError
from hpcrl.storage import schema
from hpcrl.storage.runlog import RunLog

GOLDEN = Path(__file__).parents[2] / "golden" / "0.1.0" / "run"


def configure(run_dir, **run):
    run_dir.mkdir(exist_ok=True)
    raw = {"run": {"dir": str(run_dir), **run}, "env": {"id": "ALE/MsPacman-v5", "protocol": "dopamine"}}
    (run_dir / "config.toml").write_text(to_toml(from_dict(raw)))
    return run_dir


def log_rows(log, updates):
    for k in updates:
        row = {"wall_seconds": k, "total_frames": 100 * k, "global_update": k}
        log.append("episodes", row | {"actor": 0, "simulator": 0, "episode_return": 2.0 * k, "length_steps": 10})
        log.append("progress", dict.fromkeys(schema.TABLES["progress"], 0) | row)
    log.flush()


def test_a_live_run_is_read_while_it_is_written(tmp_path):
    log = RunLog(configure(tmp_path), {"seed": 1})
    log_rows(log, [1, 2])
    run = load(tmp_path)
    np.testing.assert_array_equal(run.tables["episodes"]["episode_return"], [2, 4])
    log_rows(log, [3])
    assert load(tmp_path).last("total_frames") == 300
    log.close()
    assert (run.name, run.game, run.protocol, run.starts) == (tmp_path.name, "ms_pacman", "dopamine", 1)


def test_three_restarts_are_one_run(tmp_path):
    configure(tmp_path)
    for resumed, updates in [(0, [1, 2, 3]), (2, [3, 4]), (4, [5, 6]), (5, [6, 7])]:
        start = {"resumed_update": resumed, "resumed_frames": 100 * resumed} if resumed else {}
        log = RunLog(tmp_path, {"seed": 1, **start})
        log_rows(log, updates)
        log.close()
    run = load(tmp_path)
    assert run.starts == 4
    assert run.tables["progress"]["global_update"].tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_a_killed_run_with_a_torn_segment_says_what_it_left_out(tmp_path):
    log = RunLog(configure(tmp_path), {"seed": 1})
    log_rows(log, [1, 2])
    log.close()
    (tmp_path / "runlog-001.h5").write_bytes((tmp_path / "runlog-000.h5").read_bytes()[:500])
    os.utime(tmp_path / "runlog-001.h5", (0, 0))  # a young file may be one that is just being made
    run = load(tmp_path)
    assert run.tables["episodes"]["global_update"].tolist() == [1, 2]
    assert [path.name for path, _ in run.damaged] == ["runlog-001.h5"]
    (tmp_path / "runlog-000.h5").write_bytes(b"")
    os.utime(tmp_path / "runlog-000.h5", (0, 0))
    with pytest.raises(StorageError, match="runlog-000.h5"):
        load(tmp_path)


def test_a_run_that_has_just_begun_has_empty_tables(tmp_path):
    run = load(configure(tmp_path))
    assert (run.starts, run.last("total_frames"), run.checkpoints) == (0, 0, ())
    assert run.tables["episodes"]["episode_return"].dtype == np.float64
    assert {len(column) for table in run.tables.values() for column in table.values()} == {0}


def test_what_is_no_run_is_a_clear_error(tmp_path):
    with pytest.raises(StorageError, match="expected a run directory .* got nothing"):
        load(tmp_path / "absent")
    with pytest.raises(StorageError, match="got a directory without one"):
        load(tmp_path)
    with pytest.raises(StorageError, match="got a file"):
        load(GOLDEN / "runlog-000.h5")
    for text in ("[unfinished", "title = 'another program'\n", "[env]\nid2 = 1\n"):
        (tmp_path / "config.toml").write_text(text)
        with pytest.raises(StorageError, match="expected the configuration of a run"):
            load(tmp_path)
    (tmp_path / "config.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(StorageError, match="expected the configuration of a run"):
        load(tmp_path)


def test_a_foreign_hdf5_file_in_the_place_of_a_log_is_named(tmp_path):
    configure(tmp_path)
    foreign = GOLDEN / "checkpoints" / "step-000000000040" / "actor-0.h5"
    (tmp_path / "runlog-000.h5").write_bytes(foreign.read_bytes())
    os.utime(tmp_path / "runlog-000.h5", (0, 0))
    with pytest.raises(StorageError, match="expected an hpcrl file of type 'runlog', found type 'actor'"):
        load(tmp_path)


def test_golden_run_loads():
    run = load(GOLDEN)
    assert run.starts == 2
    assert len(run.checkpoints) == 2
    assert not run.damaged
    assert len(run.tables["episodes"]["episode_return"]) > 0


def test_a_table_as_a_data_frame():
    run = load(GOLDEN)
    frame = run.frame("episodes")
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == list(schema.TABLES["episodes"])
    np.testing.assert_array_equal(frame["episode_return"], run.tables["episodes"]["episode_return"])
    with pytest.raises(ConfigError, match="expected a table of the run log"):
        run.frame("episode")


def test_seeds_of_one_experiment_belong_together(tmp_path):
    runs = [load(configure(tmp_path / f"pong-seed{seed}", seed=seed)) for seed in (1, 2)]
    other = load(configure(tmp_path / "short", total_frames=5))
    assert [len(members) for members in by_experiment([runs[0], other, runs[1]])] == [2, 1]
    assert label(runs) == "pong, 2 seeds"
    assert label([other]) == "short"
    found = differences([runs[0], runs[1], other])
    assert found["run.seed"] == [1, 2, 1]
    assert found["run.total_frames"] == [0, 0, 5]
    assert set(found) == {"run.seed", "run.dir", "run.total_frames"}


@pytest.mark.parametrize(
    ("env_id", "game"),
    [("ALE/UpNDown-v5", "up_n_down"), ("ALE/Qbert-v5", "qbert"), ("CartPole-v1", "CartPole-v1"), ("catch", "catch")],
)
def test_games_have_the_names_of_the_score_tables(env_id, game):
    assert game_name(env_id) == game


def test_loading_reporting_and_exporting_need_neither_mpi_nor_torch_nor_pandas(tmp_path):
    code = f"""
import sys, pathlib, hpcrl.analysis, hpcrl.analysis.report, hpcrl.analysis.export
run = hpcrl.analysis.load({str(GOLDEN)!r})
hpcrl.analysis.report.report([run])
hpcrl.analysis.export.to_csv(run, pathlib.Path({str(tmp_path)!r}))
print([m for m in ("mpi4py", "torch", "pandas", "matplotlib", "gymnasium") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
