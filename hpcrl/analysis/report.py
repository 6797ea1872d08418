"""``hpcrl report``: runs as one HTML page that needs nothing but itself."""

import datetime
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hpcrl.analysis import charts
from hpcrl.analysis.charts import Series
from hpcrl.analysis.curves import AXES, default_stretch, experiment_curve, published_curve, references
from hpcrl.analysis.page import Number, columns_of_curves, figure, figures, page, section, table
from hpcrl.analysis.report_scores import scores_section
from hpcrl.analysis.runs import SEED_KEYS, Run, by_experiment, differences, label
from hpcrl.errors import StorageError

FATES = ("applied", "applied by some shards", "dropped as too old", "dropped as outlier")
"""By the number in the column ``fate`` of the table ``gradients``."""
HISTOGRAM_BARS = 30
RATES = {
    "frames_per_second": "frames/s, all actors",
    "updates_per_second": "updates/s",
    "training_intensity": "transitions trained per step acted",
    "staleness_mean": "mean delay of applied gradients [updates]",
}
INTERNALS = {
    "loss": "training loss",
    "mean_q": "mean value of actions",
    "epsilon": "epsilon",
    "learning_rate": "learning rate",
    "effective_rate": "effective learning rate",
    "replay_fill": "filled share of replay",
    "samples_redrawn": "samples drawn again so far",
    "priorities_dropped": "priorities that came too late so far",
    "policies.entropy": "entropy of the policy [nats]",
    "policies.kl": "KL from the acting policy [nats]",
    "policies.value_loss": "loss of the state values",
    "policies.gradient_norm": "norm of the gradient",
    "policies.explained_variance": "explained variance of the returns",
}
"""Columns of ``progress``, or of the table before the dot, and what they are called in the page."""


def write_report(runs: Sequence[Run], output: Path) -> None:
    """Write the report of runs.

    Raises
    ------
    StorageError
        The file cannot be written.
    """
    try:
        output.write_text(report(runs), encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {output}: {error.strerror}") from error


def report(runs: Sequence[Run]) -> str:
    """The page."""
    names = ", ".join(label(members) for members in by_experiment(runs))
    now = datetime.datetime.now().astimezone().isoformat(timespec="minutes")
    return page(
        f"hpcrl: {names}",
        f"Made from the files of {len(runs)} run{'s' if len(runs) > 1 else ''} at {now}. Frames are emulator frames, "
        "updates are gradients that the servers have applied, returns are raw and unclipped.",
        {
            "Runs": runs_section(runs),
            "Configuration": configuration_section(runs),
            "Learning": learning_section(runs),
            "Scores": scores_section(runs),
            "Speed": progress_section("speed", "Speed", runs, RATES, roles_table(runs)),
            "Gradients": gradients_section(runs),
            "Training": progress_section("training", "Inside training", runs, INTERNALS),
        },
    )


def runs_section(runs: Sequence[Run]) -> str:
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
    return section("runs", "Runs", "", table("runs-table", heads, rows), warning)


def configuration_section(runs: Sequence[Run]) -> str:
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
    return section(
        "configuration",
        "Configuration",
        note,
        table("configuration-table", ("key", *(r.name for r in runs)), rows, marked),
    )


def learning_section(runs: Sequence[Run]) -> str:
    """Training return along frames, time and updates."""
    pieces = []
    for along, axis in AXES.items():
        stretch = default_stretch(runs, along)
        curves = {label(members): experiment_curve(members, stretch, along) for members in by_experiment(runs)}
        series = [
            Series(name, curve.ends / axis.unit, curve.mean, curve.low, curve.high) for name, curve in curves.items()
        ]
        if along == "frames":
            series += _published(runs)
        numbers = {name: (curve.ends, curve.mean) for name, curve in curves.items()}
        chart = charts.lines(series, axis.label, "training return")
        folded = columns_of_curves(f"learning-{along}-numbers", axis.column, numbers)
        pieces.append(figure(f"learning-{along}", f"Training return over {along}", chart, folded))
    several = any(len(members) > 1 for members in by_experiment(runs))
    note = "Each point is the mean of the episodes that ended in a stretch of the axis." + (
        " Lines are means over seeds, bands go from the lowest to the highest seed." if several else ""
    )
    return section("learning", "Learning", note, figures(pieces))


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


def roles_table(runs: Sequence[Run]) -> str:
    """What each actor and each learner did in a second of the run's time."""
    rows = []
    for run in runs:
        seconds = run.last("wall_seconds") or float("nan")
        nothing = Number(float("nan"))
        episodes, gradients = run.tables["episodes"], run.tables["gradients"]
        for actor in np.unique(episodes["actor"]):
            steps = episodes["length_steps"][episodes["actor"] == actor]
            rates = (Number(int(len(steps)), ",d"), Number(float(steps.sum() / seconds), ",.2f"), nothing)
            rows.append([run.name, f"actor {actor}", *rates])
        for learner in np.unique(gradients["learner"]):
            count = gradients["count"][gradients["learner"] == learner].sum()
            rows.append([run.name, f"learner {learner}", nothing, nothing, Number(float(count / seconds), ",.2f")])
    heads = ("run", "role", "finished episodes", "steps/s in them", "gradients/s")
    return f"<details><summary>Actors and learners</summary>{table('roles', heads, rows)}</details>" if rows else ""


def progress_section(name: str, title: str, runs: Sequence[Run], columns: dict[str, str], *more: str) -> str:
    """Columns of ``progress``, or of another table, over hours; those that are 0 throughout are left out."""
    pieces, stretch = [], default_stretch(runs, "hours")
    for column, meaning in columns.items():
        series = []
        for members in by_experiment(runs):
            curve = experiment_curve(members, stretch, "hours", column)
            if np.nan_to_num(curve.mean).any():
                columns_of = (curve.ends / AXES["hours"].unit, curve.mean, curve.low, curve.high)
                series.append(Series(label(members), *columns_of))
        chart = charts.lines(series, AXES["hours"].label, meaning)
        pieces.append(figure(f"{name}-{column}", meaning[:1].upper() + meaning[1:], chart))
    return section(name, title, "Means over stretches of the time axis.", figures(pieces), *more)


def gradients_section(runs: Sequence[Run]) -> str:
    """What became of the gradients of each run and learner, and how old they were."""
    heads = ("run", "learner", "gradients", *FATES, "mean delay [updates]", "greatest delay [updates]")
    rows, pieces = [], []
    for run in runs:
        columns = run.tables["gradients"]
        for learner in np.unique(columns["learner"]):
            rows.append([run.name, str(learner), *_fates(columns, columns["learner"] == learner)])
        pieces.append(figure(f"delays-{run.name}", f"Delays of {run.name}", _delays(columns)))
    note = (
        "What became of the learners' gradients, in shares of all, and the age of those that were sent: the updates of "
        "shard 0 between the parameters that a gradient was computed at and its arrival."
    )
    return section("gradients", "Gradients", note, table("gradients-table", heads, rows), figures(pieces))


def _fates(columns: dict[str, np.ndarray], of: np.ndarray) -> list[Number]:
    fate, delay, count = (columns[name][of] for name in ("fate", "delay_updates", "count"))
    by_fate = np.bincount(fate, count, minlength=len(FATES))
    sent = delay >= 0
    mean = float(np.average(delay[sent], weights=count[sent])) if count[sent].sum() else float("nan")
    greatest = float(delay[sent].max()) if sent.any() else float("nan")
    shares = [Number(float(share), ".2%") for share in by_fate / max(count.sum(), 1)]
    return [Number(int(count.sum()), ",d"), *shares, Number(mean, ",.2f"), Number(greatest, ",.0f")]


def _delays(columns: dict[str, np.ndarray]) -> str:
    """Histogram of delays; when there are many, neighbours share a bar."""
    sent = columns["delay_updates"] >= 0
    fate, delay, count = (columns[name][sent] for name in ("fate", "delay_updates", "count"))
    if not len(delay):
        return ""
    width = int(delay.max()) // HISTOGRAM_BARS + 1
    places = np.arange(int(delay.max()) // width + 1)
    series = []
    for number, meaning in enumerate(FATES):
        counts = np.bincount(delay[fate == number] // width, count[fate == number], minlength=len(places))
        if counts.any():
            series.append(Series(meaning, places.astype(float), counts))
    unit = "updates" if width == 1 else f"{width} updates"
    return charts.bars(series, f"delay [{unit}]", "gradients")
