"""What a person sees of a run: a live panel on a terminal, plain lines in a batch log, a summary at the end.

A display has ``update(progress)`` and ``close(progress)``. Both are called from the monitor's writer thread; a terminal
that goes away ends the display, never the run.
"""

import contextlib
import math
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, TextIO

from hpcrl.storage import schema

_LAUNCHERS = ("mpiexec", "mpirun", "orterun", "prterun", "prun", "hydra_", "srun")
"""Names, or beginnings of names, of programs that pass the output of a rank on to their own."""
ROLE_NAMES = {
    "actor": "actors",
    "learner": "learners",
    "parameter_server": "servers",
    "simulator": "simulators",
    "evaluator": "evaluators",
}


@dataclass(frozen=True)
class Progress:
    """Where a run stands: a row of ``schema.TABLES["progress"]``, which gives the units, and what is shown besides."""

    wall_seconds: float = 0.0
    total_frames: int = 0
    total_steps: int = 0
    global_update: int = 0
    steps_per_second: float = math.nan
    frames_per_second: float = math.nan
    updates_per_second: float = math.nan
    epsilon: float = math.nan
    mean_return_100: float = math.nan
    staleness_mean: float = math.nan
    gradients_accepted: int = 0
    gradients_dropped: int = 0
    learning_rate: float = math.nan
    effective_rate: float = math.nan
    training_intensity: float = math.nan
    replay_fill: float = math.nan
    sampling_hidden: float = math.nan
    samples_redrawn: int = 0
    priorities_dropped: int = 0
    replay_age_steps: float = math.nan
    mean_priority: float = math.nan
    loss: float = math.nan
    mean_q: float = math.nan
    eta_seconds: float = math.nan
    """Time to the end of the run; NaN where it has none or it is not known yet."""
    alive: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each kind of role: how many give signs of life, and how many there are."""
    total_frames_goal: int = 0
    """Emulator frames after which the run ends; 0 for no such end."""
    total_updates_goal: int = 0
    """Global updates after which the run ends; 0 for no such end."""
    run_dir: str | Path = ""
    name: str = ""

    def fraction(self) -> float | None:
        """Return how much of the run is done, 0 to 1; None where it has no end."""
        parts = [
            done / goal
            for done, goal in (
                (self.total_frames, self.total_frames_goal),
                (self.global_update, self.total_updates_goal),
            )
            if goal
        ]
        return min(max(parts), 1.0) if parts else None

    def missing(self) -> list[str]:
        """Return ``"actors alive 3/4"`` for each kind of role of which some are silent."""
        return [
            f"{ROLE_NAMES[kind]} alive {alive}/{expected}"
            for kind, (alive, expected) in self.alive.items()
            if alive < expected
        ]


class PlainDisplay:
    """One line per period, for batch logs.

    Parameters
    ----------
    stream
        Where the lines go.
    period_seconds
        Least time between two lines.
    """

    def __init__(self, stream: TextIO, period_seconds: float):
        self._stream = stream
        self._period_seconds = period_seconds
        self._last = time.monotonic()

    def update(self, progress: Progress) -> None:
        """Print a line, if the last one is old enough."""
        now = time.monotonic()
        if now - self._last >= self._period_seconds:
            self._last = now
            write_line(line(progress), self._stream)

    def close(self, progress: Progress) -> None:
        """Print the summary; the rates in `progress` should be means over this start of the run."""
        write_line(summary(progress), self._stream)


def make_display(kind: str, period_seconds: float, stream: TextIO | None = None):
    """Make the display that suits where the output goes.

    Parameters
    ----------
    kind
        ``"rich"``, ``"plain"``, or ``"auto"``: rich where `stream`, or the launcher of this rank, writes to a terminal.
    period_seconds
        Least time between two plain lines.
    stream
        Standard output, if not given.

    Returns
    -------
    PlainDisplay or RichDisplay
    """
    stream = sys.stdout if stream is None else stream
    terminal = find_terminal(stream)
    able = (getattr(stream, "encoding", None) or "").lower().replace("-", "") == "utf8"
    able = able and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    if kind == "plain" or (kind == "auto" and (terminal is None or not able)):
        return PlainDisplay(stream, period_seconds)
    # Imported only where it is used: a job of many ranks reads few files when it starts.
    from rich.console import Console

    from hpcrl.roles.panel import RichDisplay

    console = Console(file=stream, force_terminal=True)
    if terminal is None:
        return RichDisplay(console, redirect_stderr=False)
    return RichDisplay(console, terminal.path, terminal.has_stderr)


class Terminal(NamedTuple):
    """A terminal at the end of this process's output."""

    path: str | None
    """Device to ask for its size; None where the stream itself can be asked."""
    has_stderr: bool
    """Whether stderr ends there too."""


def find_terminal(stream: TextIO) -> Terminal | None:
    """Find the terminal that a stream, or the standard output of a launcher above this process, writes to.

    Under mpiexec a rank's stdout is a pipe, yet what it writes may well end on a screen.
    """
    if stream.isatty():
        return Terminal(None, sys.stderr.isatty())
    if stream is not sys.stdout:
        return None
    try:
        pid = os.getppid()
        while pid > 1:
            command, parent = _process(pid)
            path = os.readlink(f"/proc/{pid}/fd/1") if command.startswith(_LAUNCHERS) else ""
            if path.startswith(("/dev/pts/", "/dev/tty")):
                return Terminal(path, os.readlink(f"/proc/{pid}/fd/2") == path)
            pid = parent
    except OSError:  # no /proc, or a process that is not ours
        pass
    return None


def line(progress: Progress) -> str:
    """Return one line of plain text, with units."""
    fraction = progress.fraction()
    done = "" if fraction is None else f" ({fraction:.1%})"
    to_go = "" if math.isnan(progress.eta_seconds) else f", {duration(progress.eta_seconds)} to go"
    parts = [
        f"{duration(progress.wall_seconds)}{done}{to_go}",
        f"{progress.total_frames:,} frames, {progress.global_update:,} updates",
        rates(progress),
        f"return {number(progress.mean_return_100)} (last 100), epsilon {number(progress.epsilon)}, "
        f"loss {number(progress.loss)}, mean Q {number(progress.mean_q)}",
        gradients(progress),
        f"replay {percent(progress.replay_fill)}",
    ]
    if progress.missing():
        parts.append(", ".join(progress.missing()))
    return " | ".join(parts)


def summary(progress: Progress) -> str:
    """Return what was reached, how fast, where the files are and how to go on, as a few lines of text."""
    reached = progress.fraction() == 1.0
    if reached:
        state, onward = "finished", "raise run.total_frames or run.total_updates, then run the same command again"
    else:
        state, onward = "stopped before its end", "run the same command again: it resumes from the newest checkpoint"
    if progress.fraction() is None:
        state = "stopped"
    files = f"{schema.CONFIG_FILE}, runlog-*.h5, {schema.EVENTS_FILE}, {schema.CHECKPOINTS_DIRECTORY}/"
    rows = {
        "reached": f"{progress.total_frames:,} frames, {progress.total_steps:,} steps, "
        f"{progress.global_update:,} updates in {duration(progress.wall_seconds)}",
        "rates": rates(progress),
        "return": f"{number(progress.mean_return_100)} (mean of the last 100 training episodes)",
        "gradients": gradients(progress).removeprefix("gradients "),
        "files": f"{progress.run_dir}: {files}",
        "go on": onward,
    }
    return "\n".join([f"hpcrl: run {progress.name} {state}", *(f"  {name:<10} {text}" for name, text in rows.items())])


def rates(progress: Progress) -> str:
    """Return the three rates with their units."""
    return (
        f"{number(progress.frames_per_second)} frames/s, {number(progress.steps_per_second)} steps/s, "
        f"{number(progress.updates_per_second)} updates/s"
    )


def gradients(progress: Progress) -> str:
    """Return what became of the gradients."""
    return (
        f"gradients {progress.gradients_accepted:,} accepted, "
        f"{progress.gradients_dropped:,} dropped, staleness {number(progress.staleness_mean)} updates"
    )


def number(value: float) -> str:
    """Return a number to about three digits; ``-`` for NaN."""
    if not math.isfinite(value):
        return "-"
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}" if size >= 0.001 else f"{value:.1e}"


def count(value: int) -> str:
    """Return a count, in millions (M) or billions (B) to three digits where it is large."""
    if value < 1e6:
        return f"{value:,}"
    scaled, unit = (value / 1e6, "M") if value < 999.5e6 else (value / 1e9, "B")
    places = 2 if scaled < 9.995 else 1 if scaled < 99.95 else 0
    return f"{scaled:,.{places}f} {unit}"


def percent(value: float) -> str:
    """Return a share as per cent."""
    return f"{value:.1%}" if math.isfinite(value) else "-"


def duration(seconds: float) -> str:
    """Return ``h:mm:ss``, or days and ``h:mm`` from one day on."""
    if not math.isfinite(seconds):
        return "-"
    days, rest = divmod(int(seconds), 86400)
    hours, minutes = rest // 3600, rest % 3600 // 60
    return f"{days} d {hours}:{minutes:02d}" if days else f"{hours}:{minutes:02d}:{rest % 60:02d}"


def write_line(text: str, stream: TextIO) -> None:
    """Print at once, and never mind a stream that has gone away."""
    with contextlib.suppress(OSError):
        print(text, file=stream, flush=True)


def _process(pid: int) -> tuple[str, int]:
    """Return the name and the parent of a process."""
    status = Path(f"/proc/{pid}/stat").read_text()
    command, _, rest = status.partition("(")[2].rpartition(")")
    return command, int(rest.split()[1])
