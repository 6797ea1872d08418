"""``hpcrl report``: runs as one HTML page that needs nothing but itself."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcrl.analysis.charts import Series
from hpcrl.analysis.curves import AXES, default_stretch, experiment_curve, published_curve, references
from hpcrl.analysis.page import Number, Section, lines, page, table
from hpcrl.analysis.report_scores import scores_section
from hpcrl.analysis.report_training import gradients_section, norms_section, speed_section, training_section
from hpcrl.analysis.runs import SEED_KEYS, Run, by_experiment, differences, label
from hpcrl.errors import StorageError


def write_report(runs: Sequence[Run], output: Path, figures: Path | None = None) -> None:
    """Write the report of runs and, into a directory, its figures as PNG and SVG files, which needs matplotlib.

    Raises
    ------
    StorageError
        A file cannot be written.
    """
    sections = sections_of(runs)
    try:
        output.write_text(_page(runs, sections), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}") from error
    if figures:
        from hpcrl.analysis.figure_files import write_figures

        write_figures([figure for section in sections for figure in section.figures()], figures)


def report(runs: Sequence[Run]) -> str:
    """The page."""
    return _page(runs, sections_of(runs))


def _page(runs: Sequence[Run], sections: Sequence[Section]) -> str:
    names = "; ".join(label(members) for members in by_experiment(runs))
    now = datetime.datetime.now().astimezone().isoformat(timespec="minutes")
    return page(
        f"hpcrl: {names}",
        f"Made from the files of {len(runs)} run{'s' if len(runs) > 1 else ''} at {now}. Frames are emulator frames, "
        "updates are gradients that the servers have applied, returns are raw and unclipped.",
        sections,
    )


def sections_of(runs: Sequence[Run]) -> list[Section]:
    """All sections of the page."""
    return [
        runs_section(runs),
        configuration_section(runs),
        learning_section(runs),
        scores_section(runs),
        speed_section(runs),
        gradients_section(runs),
        training_section(runs),
        norms_section(runs),
    ]


def runs_section(runs: Sequence[Run]) -> Section:
    """A row for each run, and what of its files cannot be read."""
    heads = (
        *("run", "environment", "protocol", "seed", "layout", "starts", "frames", "updates", "hours", "frames/s"),
        *("episodes", "return, last 100"),
    )
    rows = []
    for run in runs:
        seconds = run.last("wall_seconds")
        returns = run.tables["episodes"]["episode_return"]
        rows.append(
            [
                *(run.name, run.config["env.id"], run.protocol, str(run.config.get("run.seed", ""))),
                *(str(run.config.get("topology.layout", "")), Number(run.starts, ",d")),
                *(Number(run.last("total_frames"), ",d"), Number(run.last("global_update"), ",d")),
                Number(seconds / 3600, ",.3f"),
                Number(run.last("total_frames") / seconds if seconds else float("nan"), ",.1f"),
                Number(len(returns), ",d"),
                Number(float(returns[-100:].mean()) if len(returns) else float("nan"), ",.2f"),
            ]
        )
    damaged = [(run.name, path.name, why) for run in runs for path, why in run.damaged]
    warning = table("damaged", ("run", "left out", "why"), damaged)
    return Section("runs", "Runs", "", (table("runs-table", heads, rows), warning))


def configuration_section(runs: Sequence[Run]) -> Section:
    """Keys in which the runs differ; a value that the first run does not have is marked."""
    found = {key: values for key, values in differences(runs).items() if key not in SEED_KEYS}
    rows = [[key, *("unset" if value is None else str(value) for value in values)] for key, values in found.items()]
    marked = {
        (row, 1 + number): "differs"
        for row, values in enumerate(found.values())
        for number, value in enumerate(values)
        if value != values[0]
    }
    note = (
        "What differs between the runs, but for seeds, names and directories; marked where it is not as in the first."
    )
    values = table("configuration-table", ("key", *(r.name for r in runs)), rows, marked)
    return Section("configuration", "Configuration", note, (values,))


def learning_section(runs: Sequence[Run]) -> Section:
    """Training return along frames, time and updates."""
    figures = []
    for along, axis in AXES.items():
        stretch = default_stretch(runs, along)
        curves = [(label(members), experiment_curve(members, stretch, along)) for members in by_experiment(runs)]
        series = [Series(name, curve.ends / axis.unit, curve.mean, curve.low, curve.high) for name, curve in curves]
        if along == "frames":
            series += _published(runs)
        figures.append(
            lines(f"learning-{along}", f"Training return over {along}", series, axis.label, "training return")
        )
    several = any(len(members) > 1 for members in by_experiment(runs))
    note = "Each point is the mean of the episodes that ended in a stretch of the axis." + (
        " Lines are means over seeds, bands go from the lowest to the highest seed." if several else ""
    )
    return Section("learning", "Learning", note, (figures,))


def _published(runs: Sequence[Run]) -> list[Series]:
    """Dopamine's curves, as far as the runs go and one point on."""
    longest = max(run.last("total_frames") for run in runs)
    found = []
    for game, agent in references(runs):
        curve = published_curve(game, agent)
        shown = slice(np.searchsorted(curve.ends, longest) + 1)
        columns = (curve.ends[shown] / AXES["frames"].unit, curve.mean[shown], curve.low[shown], curve.high[shown])
        found.append(Series(f"Dopamine {agent} on {game}, range of 5 seeds", *columns, published=True))
    return found
