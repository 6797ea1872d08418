"""The live panel: what `display.RichDisplay` draws on a terminal."""

import contextlib
import math
import os
import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hpcrl.roles.display import ROLE_NAMES, Progress, count, duration, number, percent, summary

PERIOD_SECONDS = 0.5
"""The panel is drawn at most so often."""
MAX_WIDTH = 120
_LABEL_WIDTH = 10
"""Columns of the first column of every row."""


class RichDisplay:
    """A panel that is redrawn in place.

    Parameters
    ----------
    console
        Where it is drawn.
    terminal
        The terminal behind the console where the console cannot ask it for its size, as below a launcher.
    redirect_stderr
        Show this rank's log lines above the panel; right where stderr goes to the same terminal.
    """

    def __init__(self, console: Console, terminal: str | None = None, redirect_stderr: bool = True):
        self._console = console
        self._terminal = terminal
        self._history = History()
        self._last = -math.inf
        self._live = Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=redirect_stderr)

    def update(self, progress: Progress) -> None:
        """Redraw the panel, if the last drawing is old enough."""
        now = time.monotonic()
        if now - self._last >= PERIOD_SECONDS:
            self._last = now
            self._draw(progress)

    def close(self, progress: Progress) -> None:
        """Leave the last panel on the screen, then print the summary."""
        self._draw(progress)
        with contextlib.suppress(OSError):
            self._live.stop()
            self._console.print(summary(progress), highlight=False, markup=False, soft_wrap=True)

    def _draw(self, progress: Progress) -> None:
        self._history.append(progress.mean_return_100)
        with contextlib.suppress(OSError):
            if self._terminal is not None:
                self._console.width, self._console.height = _terminal_size(self._terminal)
            if not self._live.is_started:
                self._live.start()
                self._console.show_cursor(True)  # a job that is killed could not bring a hidden cursor back
            self._live.update(panel(progress, self._history, self._console.width), refresh=True)


class History:
    """A bounded history of one number, ever coarser as it grows longer, over all of the run."""

    _MAX_LENGTH = 128

    def __init__(self):
        self.values: list[float] = []
        self._stride = 1
        self._count = 0

    def append(self, value: float) -> None:
        """Add a number; NaN is left out."""
        if math.isnan(value):
            return
        if self._count % self._stride == 0:
            self.values.append(value)
        self._count += 1
        if len(self.values) == self._MAX_LENGTH:
            self.values = self.values[::2]
            self._stride *= 2

    def sparkline(self, width: int) -> str:
        """Return the history as at most `width` blocks, the lowest number lowest."""
        bins = min(width, len(self.values))
        edges = [i * len(self.values) // bins for i in range(bins + 1)] if bins else []
        groups = [self.values[start:stop] for start, stop in zip(edges, edges[1:], strict=False)]
        means = [sum(group) / len(group) for group in groups]
        if not means or max(means) == min(means):
            return "▁" * bins
        span = max(means) - min(means)
        return "".join("▁▂▃▄▅▆▇█"[round((mean - min(means)) / span * 7)] for mean in means)


def panel(progress: Progress, history: History, width: int) -> Panel:
    """Return the panel for a console of `width` columns."""
    width = min(width, MAX_WIDTH)
    inner = width - 4
    hint = f"to stop: hpcrl stop {progress.run_dir}"
    if len(hint) > inner - 2:  # a command cut short would mislead
        hint = "to stop: hpcrl stop RUN_DIRECTORY"
    rows = [*_progress_rows(progress, inner), "", _return_row(progress, history, inner), "", _roles(progress)]
    return Panel(
        Group(*rows),
        title=Text.assemble(("hpcrl ", "bold cyan"), (progress.name, "bold")),
        title_align="left",
        subtitle=Text(hint, style="dim"),
        subtitle_align="right",
        border_style="cyan",
        width=width,
        padding=(0, 1),
    )


def _grid(*widths: int) -> Table:
    """Return an empty table whose first columns have these widths."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (_LABEL_WIDTH, *widths):
        table.add_column(width=width, no_wrap=True)
    return table


def _progress_rows(progress: Progress, width: int) -> list[Table]:
    elapsed = _labelled(duration(progress.wall_seconds), "elapsed")
    fraction = progress.fraction()
    if fraction is None:
        row = _grid()
        row.add_row("progress", _labelled(count(progress.total_frames), "frames, no end set"), elapsed)
        return [row]
    done, goal, unit = progress.total_frames, progress.total_frames_goal, "frames"
    if not goal or progress.global_update * goal > done * progress.total_updates_goal > 0:
        done, goal, unit = progress.global_update, progress.total_updates_goal, "updates"
    bar = ProgressBar(total=1.0, completed=fraction, complete_style="green", finished_style="green")
    bar_row = _grid(width - _LABEL_WIDTH - 10)
    bar_row.add_row("progress", bar, Text(f"{fraction:.1%}", style="bold green"))
    row = _grid()
    to_go = "" if math.isnan(progress.eta_seconds) else _labelled(duration(progress.eta_seconds), "to go")
    row.add_row("", _labelled(count(done), f"of {count(goal)} {unit}"), elapsed, to_go)
    return [bar_row, row]


def _return_row(progress: Progress, history: History, width: int) -> Table:
    row = _grid(9)
    row.add_row(
        "return",
        Text(number(progress.mean_return_100), style="bold yellow"),
        Text(history.sparkline(max(8, width - 55)), style="yellow"),
        Text("mean of the last 100 episodes", style="dim"),
    )
    return row


def _roles(progress: Progress) -> Table:
    received = progress.gradients_accepted + progress.gradients_dropped
    cells = {
        "actor": (
            (number(progress.frames_per_second), "frames/s"),
            (number(progress.steps_per_second), "steps/s"),
            (number(progress.epsilon), "epsilon"),
        ),
        "learner": (
            (number(progress.loss), "loss"),
            (number(progress.mean_q), "mean Q"),
            (percent(progress.replay_fill), "of replay"),
        ),
        "parameter_server": (
            (number(progress.updates_per_second), "updates/s"),
            (count(progress.global_update), "updates"),
            (number(progress.staleness_mean), "staleness"),
        ),
        "evaluator": (),
    }
    table = _grid(9)
    table.expand = True
    for _ in range(3):
        table.add_column(no_wrap=True, ratio=1)
    for kind, row in cells.items():
        alive, expected = progress.alive.get(kind, (0, 0))
        if expected:
            starting = "yellow" if progress.total_frames == 0 else "bold red"
            heard = Text(f"{alive}/{expected}", style=starting if alive < expected else "green")
            table.add_row(ROLE_NAMES[kind], heard, *(_labelled(*cell) for cell in row))
    table.add_row(
        "gradients",
        Text(percent(progress.gradients_accepted / received) if received else "-", style="bold"),
        _labelled(count(progress.gradients_accepted), "accepted"),
        _labelled(count(progress.gradients_dropped), "dropped"),
    )
    return table


def _labelled(value: str, label: str) -> Text:
    return Text.assemble((value, "bold"), (f" {label}", "dim"))


def _terminal_size(path: str) -> tuple[int, int]:
    """Return columns and rows of a terminal device; 80 and 24 where it does not say."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return 80, 24
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        columns, rows = 0, 0
    finally:
        os.close(descriptor)
    return columns or 80, rows or 24
