"""The panel fits its console, plain lines stay plain, and the right one is chosen."""

import dataclasses
import io
import os
import pty
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from hpcrl.roles import display
from hpcrl.roles.display import PlainDisplay, Progress, line, make_display, summary
from hpcrl.roles.panel import History, RichDisplay, panel
from hpcrl.storage import schema

TYPICAL = Progress(
    wall_seconds=4321,
    total_frames=12_345_678,
    total_steps=3_086_419,
    global_update=123_456,
    steps_per_second=1234.5,
    frames_per_second=4938.2,
    updates_per_second=55.31,
    epsilon=0.8734,
    mean_return_100=-3.42,
    staleness_mean=1.23,
    gradients_accepted=123_456,
    gradients_dropped=321,
    replay_fill=0.453,
    loss=0.01234,
    mean_q=1.234,
    eta_seconds=7800,
    alive={"parameter_server": (1, 1), "learner": (2, 2), "actor": (3, 4), "evaluator": (1, 1), "monitor": (1, 1)},
    total_frames_goal=50_000_000,
    run_dir="runs/pong",
    name="pong",
)
EMPTY = Progress(name="catch", run_dir="runs/catch", alive={"learner": (0, 1)})
HUGE = dataclasses.replace(
    TYPICAL,
    wall_seconds=400_000,
    eta_seconds=900_000,
    total_frames=9_123_456_789,
    total_frames_goal=10_000_000_000,
    global_update=123_456_789,
    frames_per_second=493_826.2,
    steps_per_second=123_456.5,
    updates_per_second=55_555.0,
    mean_return_100=-123_456.7,
    staleness_mean=123.4,
    loss=1.2e-9,
    mean_q=-12_345.6,
    replay_fill=1.0,
    gradients_accepted=123_456_789,
    gradients_dropped=3_210_000,
    alive={"parameter_server": (31, 31), "learner": (100, 100), "actor": (99, 100)},
    run_dir="/scratch/project_1234567/someone/a/very/long/directory/name/runs/breakout-gorila-seed-1",
    name="breakout-gorila-seed-1",
)


def filled_history():
    history = History()
    for value in range(1000):
        history.append(value)
    return history


def draw(progress, width, history=None):
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(panel(progress, history or filled_history(), width))
    return console.file.getvalue().splitlines()


def test_progress_holds_every_column_of_its_table():
    assert {field.name for field in dataclasses.fields(Progress)} >= schema.TABLES["progress"].keys()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("progress", [TYPICAL, EMPTY, HUGE], ids=["typical", "empty", "huge"])
def test_panel_fills_its_width_and_cuts_nothing_short(progress, width):
    lines = draw(progress, width)
    assert all(len(text) == width for text in lines)
    assert not any("…" in text for text in lines)
    assert len(lines) <= 14


def test_panel_is_no_wider_than_is_readable():
    assert {len(text) for text in draw(TYPICAL, 300)} == {120}


@pytest.mark.parametrize("width", [80, 120])
def test_panel_says_everything_with_its_unit(width):
    text = "\n".join(draw(TYPICAL, width))
    for expected in (
        "hpcrl pong",
        "24.7%",
        "12.3 M of 50.0 M frames",
        "1:12:01 elapsed",
        "2:10:00 to go",
        "-3.42",
        "mean of the last 100 episodes",
        "3/4",
        "4,938 frames/s",
        "1,234 steps/s",
        "0.873 epsilon",
        "0.0123 loss",
        "1.23 mean Q",
        "45.3% of replay",
        "55.31 updates/s",
        "1.23 staleness",
        "123,456 accepted",
        "321 dropped",
        "hpcrl stop runs/pong",
    ):
        assert expected in text


def test_panel_counts_updates_where_they_end_the_run_first():
    text = "\n".join(draw(dataclasses.replace(TYPICAL, total_updates_goal=200_000), 80))
    assert "123,456 of 200,000 updates" in text
    assert "61.7%" in text


def test_plain_line_is_one_line_with_units():
    text = line(TYPICAL)
    assert text == (
        "1:12:01 (24.7%), 2:10:00 to go | 12,345,678 frames, 123,456 updates | "
        "4,938 frames/s, 1,234 steps/s, 55.31 updates/s | "
        "return -3.42 (last 100), epsilon 0.873, loss 0.0123, mean Q 1.23 | "
        "gradients 123,456 accepted, 321 dropped, staleness 1.23 updates | replay 45.3% | "
        "actors alive 3/4"
    )


def test_plain_display_keeps_its_period_and_has_no_control_codes(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    stream = io.StringIO()
    shown = PlainDisplay(stream, period_seconds=10.0)
    for _ in range(60):
        now[0] += 0.5
        shown.update(TYPICAL)
    assert stream.getvalue().count("\n") == 3
    shown.close(TYPICAL)
    assert stream.getvalue().endswith(summary(TYPICAL) + "\n")
    assert "\x1b" not in stream.getvalue()


def test_rich_display_draws_at_most_twice_a_second(monkeypatch):
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    shown = RichDisplay(console, redirect_stderr=False)
    draws = []
    monkeypatch.setattr(shown, "_draw", draws.append)
    for _ in range(1000):
        shown.update(TYPICAL)
    assert len(draws) == 1


def test_rich_display_leaves_panel_summary_and_a_visible_cursor():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    shown = RichDisplay(console, redirect_stderr=False)
    shown.update(EMPTY)
    text = console.file.getvalue()
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
    shown.close(TYPICAL)
    text = console.file.getvalue()
    assert summary(TYPICAL) in text
    assert "hpcrl stop runs/pong" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")


class GoneTerminal(io.StringIO):
    def write(self, _):
        raise OSError(5, "Input/output error")


def test_a_terminal_that_goes_away_does_not_end_the_run():
    for shown in (
        PlainDisplay(GoneTerminal(), 0.0),
        RichDisplay(Console(file=GoneTerminal(), width=80, force_terminal=True), redirect_stderr=False),
    ):
        shown.update(TYPICAL)
        shown.close(TYPICAL)


@pytest.mark.parametrize(
    ("progress", "state", "onward"),
    [
        (TYPICAL, "stopped before its end", "run the same command again"),
        (dataclasses.replace(TYPICAL, total_frames=50_000_001), "finished", "raise run.total_frames"),
        (dataclasses.replace(TYPICAL, total_frames_goal=0), "stopped", "run the same command again"),
    ],
)
def test_summary_says_what_was_reached_and_how_to_go_on(progress, state, onward):
    text = summary(progress)
    assert text.splitlines()[0] == f"hpcrl: run pong {state}"
    assert onward in text
    assert "runs/pong: config.toml, runlog-*.h5, events.log, checkpoints/" in text
    assert f"{progress.total_frames:,} frames" in text


@given(st.lists(st.floats(-1e6, 1e6), max_size=1000), st.integers(1, 60))
def test_history_is_bounded_and_its_sparkline_fits(values, width):
    history = History()
    for value in values:
        history.append(value)
    assert len(history.values) < 128
    assert len(history.sparkline(width)) == min(width, len(history.values))


def test_sparkline_rises_with_its_numbers():
    history = History()
    for value in (float("nan"), 0, 1, 2, 3, 4, 5, 6, 7):
        history.append(value)
    assert history.sparkline(20) == "▁▂▃▄▅▆▇█"
    assert history.sparkline(4) == "▁▃▆█"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, "0"),
        (999_999, "999,999"),
        (1_234_567, "1.23 M"),
        (9_999_999, "10.0 M"),
        (123_456_789, "123 M"),
        (999_900_000, "1.00 B"),
        (10_000_000_000, "10.0 B"),
    ],
)
def test_counts(value, expected):
    assert display.count(value) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"), [(float("nan"), "-"), (59.9, "0:00:59"), (86399, "23:59:59"), (90061, "1 d 1:01")]
)
def test_durations(seconds, expected):
    assert display.duration(seconds) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(float("nan"), "-"), (0.0, "0"), (1234567.8, "1,234,568"), (-3.416, "-3.42"), (0.05, "0.05"), (2e-5, "2.0e-05")],
)
def test_numbers(value, expected):
    assert display.number(value) == expected


def test_auto_is_plain_for_a_file_and_rich_when_asked_for():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert isinstance(make_display("auto", 10.0, stream), PlainDisplay)
    assert isinstance(make_display("plain", 10.0, stream), PlainDisplay)
    assert isinstance(make_display("rich", 10.0, stream), RichDisplay)


CHOOSE = "from hpcrl.roles.display import make_display; d = make_display('auto', 1.0); print(type(d).__name__)"


def run_on_a_terminal(command, **environment):
    """Run a command whose stdin, stdout and stderr are a terminal, and return what it printed there."""
    master, slave = pty.openpty()
    environment = os.environ | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"} | environment
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=environment)
    process.wait(30)
    os.close(slave)
    printed = os.read(master, 65536).decode()
    os.close(master)
    return printed


def test_auto_is_rich_on_a_terminal():
    assert "RichDisplay" in run_on_a_terminal([sys.executable, "-c", CHOOSE])


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"PYTHONIOENCODING": "ascii"}])
def test_auto_is_plain_on_a_terminal_that_cannot_draw(environment):
    assert "PlainDisplay" in run_on_a_terminal([sys.executable, "-c", CHOOSE], **environment)


def launcher(tmp_path, name):
    """A program called `name` that passes the output of its child on through a pipe, as mpiexec does."""
    shell = tmp_path / name
    shell.symlink_to("/bin/sh")
    return [str(shell), "-c", f'"{sys.executable}" -c "{CHOOSE}" | cat; true']


def test_auto_sees_the_terminal_behind_a_launcher(tmp_path):
    assert "RichDisplay" in run_on_a_terminal(launcher(tmp_path, "mpiexec"))


def test_auto_is_plain_behind_a_pipe_that_is_no_launchers(tmp_path):
    assert "PlainDisplay" in run_on_a_terminal(launcher(tmp_path, "something"))


def test_auto_is_plain_where_the_launcher_writes_to_a_file(tmp_path):
    with open(tmp_path / "log", "w") as log:
        subprocess.run(launcher(tmp_path, "mpiexec"), stdout=log, env=os.environ | {"TERM": "xterm"}, check=True)
    assert "PlainDisplay" in (tmp_path / "log").read_text()


def test_display_imports_neither_mpi_nor_hdf5_nor_rich():
    code = "import sys, hpcrl.roles.display; print({'mpi4py', 'h5py', 'rich', 'torch'} & sys.modules.keys())"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"set()\n"
