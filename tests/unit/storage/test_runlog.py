"""The run log can be read while it is written, after a kill, and over restarts."""

import os
import signal
import subprocess
import sys

import h5py
import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.storage import runlog, schema
from hpcrl.storage.runlog import RunLog, read_runlog

ATTRIBUTES = {"config": "[run]\n", "seed": 1, "command_line": "hpcrl train x.toml"}


def evaluation(global_update, **values):
    row = dict.fromkeys(schema.TABLES["evaluations"], 0) | {"global_update": global_update}
    return row | {"total_frames": 4 * global_update, "mean_return": global_update / 2} | values


def write(run_dir, updates, **attributes):
    log = RunLog(run_dir, ATTRIBUTES | attributes)
    for update in updates:
        log.append("evaluations", evaluation(update))
    log.close()
    return log


def updates_of(run_dir):
    return read_runlog(run_dir, "evaluations")["global_update"].tolist()


def run_writer(run_dir, body):
    """Run a writer in a process of its own; it prints a line when it is where the test wants it."""
    start = f"import os, sys, signal\nfrom hpcrl.storage.runlog import RunLog\nlog = RunLog({str(run_dir)!r}, {{}})\n"
    process = subprocess.Popen(
        [sys.executable, "-c", start + body], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_a_column_that_was_added_later_reads_as_unknown(tmp_path, monkeypatch):
    write(tmp_path, [1, 2])
    added = {"count": schema.Column("i8", "1", "new"), "share": schema.Column("f8", "1", "new")}
    monkeypatch.setitem(schema.TABLES, "evaluations", schema.TABLES["evaluations"] | added)
    rows = read_runlog(tmp_path, "evaluations")
    assert rows["global_update"].tolist() == [1, 2]
    assert rows["count"].tolist() == [-1, -1]
    assert np.isnan(rows["share"]).all()


APPEND = """
for update in range(3000):
    log.append("evaluations", dict(wall_seconds=0., total_frames=0, global_update=update, episodes=0,
                                   mean_return=update / 2, std_return=0., epsilon=0.))
log.flush()
"""


def check_3000(run_dir):
    rows = read_runlog(run_dir, "evaluations")
    np.testing.assert_array_equal(rows["global_update"], np.arange(3000))
    np.testing.assert_array_equal(rows["mean_return"], np.arange(3000) / 2)
    assert len(read_runlog(run_dir, "episodes")["actor"]) == 0


def test_round_trip_of_every_table(tmp_path):
    log = RunLog(tmp_path, ATTRIBUTES)
    for table, columns in schema.TABLES.items():
        for row in range(5):
            log.append(table, {name: 10 * row + i for i, name in enumerate(columns)})
        log.flush()
    log.close()
    log.close()
    for table, columns in schema.TABLES.items():
        rows = read_runlog(tmp_path, table)
        assert list(rows) == list(columns)
        for i, (name, column) in enumerate(columns.items()):
            np.testing.assert_array_equal(rows[name], 10 * np.arange(5) + i)
            assert rows[name].dtype == column.dtype


def test_file_describes_itself(tmp_path):
    log = write(tmp_path, [1], resumed_update=0)
    assert log.path.name == "runlog-000.h5"
    with h5py.File(log.path) as file:
        attributes = dict(file.attrs)
        assert file["progress/frames_per_second"].attrs["unit"] == "frames/s"
        assert all(file[table][name].attrs["meaning"] for table in schema.TABLES for name in schema.TABLES[table])
    assert attributes["file_type"] == "runlog"
    assert attributes["version"] == schema.VERSIONS["runlog"]
    assert attributes["config"] == "[run]\n"
    assert attributes["seed"] == 1
    assert {"hpcrl_version", "date", "host", "command_line", "resumed_update"} <= attributes.keys()


def test_rows_show_only_once_flushed(tmp_path):
    log = RunLog(tmp_path, ATTRIBUTES)
    log.append("evaluations", evaluation(1))
    assert updates_of(tmp_path) == []
    log.flush()
    assert updates_of(tmp_path) == [1]
    log.close()


def test_live_run_is_readable_from_another_process_and_a_read_only_directory(tmp_path):
    process = run_writer(tmp_path, APPEND + "print('ready', flush=True); sys.stdin.read()")
    tmp_path.chmod(0o555)
    try:
        check_3000(tmp_path)
    finally:
        tmp_path.chmod(0o755)
        process.communicate()
    check_3000(tmp_path)


def test_killed_run_is_readable_and_the_next_segment_carries_on(tmp_path):
    process = run_writer(tmp_path, APPEND + "print('ready', flush=True); os.kill(os.getpid(), signal.SIGKILL)")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    check_3000(tmp_path)
    write(tmp_path, [11, 12], resumed_update=10)
    assert updates_of(tmp_path) == [*range(11), 11, 12]


def test_kill_in_the_middle_of_flushing_never_shows_half_a_row(tmp_path):
    body = f"print('ready', flush=True)\nwhile True:{APPEND.replace(chr(10), chr(10) + '    ')}"
    for delay in (0.01, 0.05, 0.1):
        process = run_writer(tmp_path, body)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(delay)
        process.kill()
        process.communicate()
        newest = max(tmp_path.iterdir())
        rows = runlog._read_segment(newest, "evaluations")[2]
        assert len({len(column) for column in rows.values()}) == 1
        np.testing.assert_array_equal(rows["mean_return"], rows["global_update"] / 2)
        np.testing.assert_array_equal(rows["global_update"], np.arange(len(rows["epsilon"])) % 3000)


def test_resumed_segments_supersede_what_lies_past_their_start(tmp_path):
    write(tmp_path, [10, 20, 30, 40])
    write(tmp_path, [31, 50], resumed_update=30)
    write(tmp_path, [21, 22], resumed_update=20)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"runlog-00{i}.h5" for i in range(3)]
    assert updates_of(tmp_path) == [10, 20, 21, 22]


def test_a_segment_that_restored_nothing_supersedes_all(tmp_path):
    write(tmp_path, [10, 20])
    write(tmp_path, [1])
    assert updates_of(tmp_path) == [1]


def test_frames_before_the_first_update_are_superseded_too(tmp_path):
    log = RunLog(tmp_path, ATTRIBUTES)
    log.append("evaluations", evaluation(0, total_frames=100))
    log.append("evaluations", evaluation(0, total_frames=200))
    log.close()
    write(tmp_path, [1], resumed_update=0, resumed_frames=100)
    assert read_runlog(tmp_path, "evaluations")["total_frames"].tolist() == [100, 4]


def progress(total_frames, global_update):
    row = dict.fromkeys(schema.TABLES["progress"], 0.0)
    return row | {"total_frames": total_frames, "global_update": global_update}


def test_progress_has_strictly_increasing_frames_over_stops_and_kills(tmp_path):
    """The first start is stopped, the second killed past its checkpoint, the third before it wrote one."""
    starts = [
        ((0, 2**62), [(8, 0), (40, 8), (40, 9)]),  # the last row of a clean stop repeats the frames of the one before
        ((9, 40), [(60, 14), (80, 19), (100, 24)]),
        ((18, 76), [(84, 20), (96, 23)]),
        ((18, 76), [(76, 18), (90, 21)]),
    ]
    for (update, frames), rows in starts:
        log = RunLog(tmp_path, ATTRIBUTES | {"resumed_update": update, "resumed_frames": frames})
        for row in rows:
            log.append("progress", progress(*row))
        log.close()
    merged = read_runlog(tmp_path, "progress")
    clocks = list(zip(merged["total_frames"].tolist(), merged["global_update"].tolist(), strict=True))
    assert clocks == [(8, 0), (40, 9), (60, 14), (76, 18), (90, 21)]


def test_an_evaluation_that_a_resumed_run_finished_again_counts_once(tmp_path):
    write(tmp_path, [10, 20])
    write(tmp_path, [20, 30], resumed_update=25)
    assert updates_of(tmp_path) == [10, 20, 30]
    write(tmp_path, [40, 40], resumed_update=35)  # two evaluators
    assert updates_of(tmp_path) == [10, 20, 30, 40, 40]


def test_segment_numbers_sort_as_numbers(tmp_path):
    write(tmp_path, [1])
    os.rename(tmp_path / "runlog-000.h5", tmp_path / "runlog-999.h5")
    assert write(tmp_path, [2], resumed_update=1).path.name == "runlog-1000.h5"
    assert updates_of(tmp_path) == [1, 2]


def test_unreadable_segment_is_left_out_with_a_warning(tmp_path, caplog):
    (tmp_path / "runlog-000.h5").write_bytes(b"")
    os.utime(tmp_path / "runlog-000.h5", (0, 0))
    with pytest.raises(StorageError, match="runlog-000.h5"):
        read_runlog(tmp_path, "evaluations")
    write(tmp_path, [5])
    assert updates_of(tmp_path) == [5]
    assert "left out" in caplog.text
    assert "runlog-000.h5" in caplog.text


def test_newer_version_is_refused_by_name(tmp_path, monkeypatch):
    monkeypatch.setitem(schema.VERSIONS, "runlog", 78)
    write(tmp_path, [1])
    monkeypatch.setitem(schema.VERSIONS, "runlog", 77)
    with pytest.raises(StorageError, match="expected 'runlog' version 77, found version 78"):
        read_runlog(tmp_path, "evaluations")


def test_no_run_directory(tmp_path):
    with pytest.raises(StorageError, match="no run log"):
        read_runlog(tmp_path, "evaluations")
    with pytest.raises(StorageError, match="nowhere"):
        read_runlog(tmp_path / "nowhere", "evaluations")
    with pytest.raises(StorageError, match="nowhere/runlog-000.h5|nowhere"):
        RunLog(tmp_path / "nowhere", ATTRIBUTES)
    with pytest.raises(StorageError, match="no table 'scores'"):
        read_runlog(tmp_path, "scores")


def test_row_with_wrong_columns_is_refused(tmp_path):
    log = RunLog(tmp_path, ATTRIBUTES)
    with pytest.raises(StorageError, match="std_return"):
        log.append("evaluations", {name: 0 for name in schema.TABLES["evaluations"] if name != "std_return"})
    log.close()


def test_failed_write_keeps_the_rows_for_a_new_segment(tmp_path, monkeypatch):
    log = RunLog(tmp_path, ATTRIBUTES)
    log.append("evaluations", evaluation(1))
    log.flush()
    log.append("evaluations", evaluation(2))

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log, "_write", fail)
        for _ in range(3):
            with pytest.raises(StorageError, match="No space left on device.*free some space"):
                log.flush()
    log.append("evaluations", evaluation(3))
    log.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runlog-000.h5", "runlog-001.h5"]
    assert updates_of(tmp_path) == [1, 2, 3]
