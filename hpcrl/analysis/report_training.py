"""The parts of the report that look inside training: speed, gradients, replay, losses and norms."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hpcrl.analysis.charts import Series
from hpcrl.analysis.curves import AXES, default_stretch, experiment_curve
from hpcrl.analysis.page import Figure, Number, Section, bars, folded, lines, table
from hpcrl.analysis.runs import Run, by_experiment, label

FATES = ("applied", "applied by some shards", "dropped as too old", "dropped as outlier")
"""By the number in the column ``fate`` of the table ``gradients``."""
HISTOGRAM_BARS = 30
RATES = {
    "frames_per_second": "frames/s, all actors",
    "updates_per_second": "updates/s",
    "training_intensity": "transitions trained per step acted",
}
INTERNALS = {
    "loss": "training loss",
    "mean_q": "mean value of actions",
    "epsilon": "epsilon",
    "learning_rate": "learning rate",
    "effective_rate": "effective learning rate",
    "replay_fill": "filled share of replay",
    "replay_age_steps": "age of minibatches [steps]",
    "mean_priority": "mean priority in replay",
    "samples_redrawn": "samples drawn again so far",
    "priorities_dropped": "priorities that came too late so far",
    "policies.entropy": "entropy of the policy [nats]",
    "policies.kl": "KL from the acting policy [nats]",
    "policies.value_loss": "loss of the state values",
    "policies.gradient_norm": "norm of the gradient",
    "policies.explained_variance": "explained variance of the returns",
}
"""Columns of ``progress``, or of the table before the dot, and what they are called in the page."""
NORMS = {"parameters": "parameters", "distance": "distance from the start", "gradient": "gradient", "step": "step"}
ALL_LAYERS = -1
NOTHING = Number(float("nan"))


def speed_section(runs: Sequence[Run]) -> Section:
    """Rates over time, and what each role did in a second."""
    heads = ("run", "role", "finished episodes", "steps/s in them", "gradients/s")
    rows = [row for run in runs for row in _roles(run)]
    roles = folded("Actors, learners, servers and evaluators", table("roles", heads, rows))
    return Section("speed", "Speed", STRETCHES, (_over_hours("speed", runs, RATES), roles))


STRETCHES = "Means over stretches of the time axis."


def _over_hours(section: str, runs: Sequence[Run], columns: dict[str, str]) -> list[Figure]:
    """A figure for each column of ``progress``, or of another table; what is 0 throughout is left out."""
    figures, stretch = [], default_stretch(runs, "hours")
    for column, meaning in columns.items():
        series = []
        for members in by_experiment(runs):
            curve = experiment_curve(members, stretch, "hours", column)
            if np.nan_to_num(curve.mean).any():
                columns_of = (curve.ends / AXES["hours"].unit, curve.mean, curve.low, curve.high)
                series.append(Series(label(members), *columns_of))
        caption = meaning[:1].upper() + meaning[1:]
        figures.append(lines(f"{section}-{column}", caption, series, AXES["hours"].label, meaning))
    return figures


def _roles(run: Run) -> Iterator[list]:
    """What each actor, each learner, the servers and the evaluators did in a second of the run's time."""
    seconds = run.last("wall_seconds") or float("nan")
    episodes, gradients, evaluations = (run.tables[name] for name in ("episodes", "gradients", "evaluations"))
    for actor in np.unique(episodes["actor"]):
        steps = episodes["length_steps"][episodes["actor"] == actor]
        rates = (Number(int(len(steps)), ",d"), Number(float(steps.sum() / seconds), ",.2f"), NOTHING)
        yield [run.name, f"actor {actor}", *rates]
    for learner in np.unique(gradients["learner"]):
        count = gradients["count"][gradients["learner"] == learner].sum()
        yield [run.name, f"learner {learner}", NOTHING, NOTHING, Number(float(count / seconds), ",.2f")]
    if run.last("gradients_accepted"):
        rate = Number(run.last("gradients_accepted") / seconds, ",.2f")
        yield [run.name, "servers, each", NOTHING, NOTHING, rate]
    if played := int(evaluations["episodes"].sum()):
        yield [run.name, "evaluators", Number(played, ",d"), NOTHING, NOTHING]


def gradients_section(runs: Sequence[Run]) -> Section:
    """What became of the gradients of each run and learner, and how old they were."""
    heads = ("run", "learner", "gradients", *FATES, "mean delay [updates]", "greatest delay [updates]")
    rows, figures = [], [_drop_rates(runs)]
    figures += _over_hours("gradients", runs, {"staleness_mean": "mean delay where applied [updates]"})
    for run in runs:
        columns = run.tables["gradients"]
        for learner in np.unique(columns["learner"]):
            rows.append([run.name, str(learner), *_fates(columns, columns["learner"] == learner)])
        figures.append(_delays(run))
    note = (
        "What became of the learners' gradients, in shares of all, and the age of those that were sent: the updates of "
        "shard 0 between the parameters that a gradient was computed at and its arrival."
    )
    return Section("gradients", "Gradients", note, (table("gradients-table", heads, rows), figures))


def _fates(columns: dict[str, np.ndarray], of: np.ndarray) -> list[Number]:
    fate, delay, count = (columns[name][of] for name in ("fate", "delay_updates", "count"))
    by_fate = np.bincount(fate, count, minlength=len(FATES))
    sent = delay >= 0
    mean = float(np.average(delay[sent], weights=count[sent])) if count[sent].sum() else float("nan")
    greatest = float(delay[sent].max()) if sent.any() else float("nan")
    shares = [Number(float(share), ".2%") for share in by_fate / max(count.sum(), 1)]
    return [Number(int(count.sum()), ",d"), *shares, Number(mean, ",.2f"), Number(greatest, ",.0f")]


def _drop_rates(runs: Sequence[Run]) -> Figure:
    """Share of the gradients of each period between two checkpoints that nobody applied."""
    series = []
    for run in runs:
        rows = run.tables["gradients"]
        ends, place = np.unique(rows["wall_seconds"], return_inverse=True)
        total = np.bincount(place, rows["count"], minlength=len(ends))
        dropped = np.bincount(place, rows["count"] * (rows["fate"] >= 2), minlength=len(ends))
        if dropped.any():
            series.append(Series(run.name, ends / AXES["hours"].unit, 100 * dropped / total))
    caption = "Dropped gradients, too old or of an outlying loss"
    return lines("gradients-dropped", caption, series, AXES["hours"].label, "percent of gradients")


def _delays(run: Run) -> Figure:
    """Histogram of delays; when there are many, neighbours share a bar."""
    columns = run.tables["gradients"]
    sent = columns["delay_updates"] >= 0
    fate, delay, count = (columns[name][sent] for name in ("fate", "delay_updates", "count"))
    longest = int(delay.max(initial=0))
    width = longest // HISTOGRAM_BARS + 1
    places = np.arange(longest // width + 1)
    series = []
    for number, meaning in enumerate(FATES):
        counts = np.bincount(delay[fate == number] // width, count[fate == number], minlength=len(places))
        if counts.any():
            series.append(Series(meaning, places.astype(float), counts.astype(float)))
    unit = "updates" if width == 1 else f"{width} updates"
    return bars(f"delays-{run.name}", f"Delays of {run.name}", series, f"delay [{unit}]", "gradients")


def training_section(runs: Sequence[Run]) -> Section:
    """Losses, values, schedules, replay and policies over time."""
    return Section("training", "Inside training", STRETCHES, (_over_hours("training", runs, INTERNALS),))


def norms_section(runs: Sequence[Run]) -> Section:
    """Norms of all parameters over updates, and the last ones of each layer; of runs with ``log.norms``."""
    logged = [run for run in runs if len(run.tables["norms"]["layer"])]
    whole = [replace(run, tables={**run.tables, "norms": _of_layer(run, ALL_LAYERS)}) for run in logged]
    figures, stretch = [], default_stretch(logged, "updates")
    for column, meaning in NORMS.items():
        series = []
        for members in by_experiment(whole):
            curve = experiment_curve(members, stretch, "updates", f"norms.{column}")
            columns = (curve.ends / AXES["updates"].unit, curve.mean, curve.low, curve.high)
            series.append(Series(label(members), *columns))
        figures.append(lines(f"norms-{column}", f"Norm of the {meaning}", series, AXES["updates"].label, meaning))
    rows = []
    for run in logged:
        for layer in np.unique(run.tables["norms"]["layer"]):
            last = {name: values[-1] for name, values in _of_layer(run, layer).items()}
            name = "all" if layer == ALL_LAYERS else run.layers[layer]
            rows.append([run.name, name, *(Number(float(last[column]), ",.4g") for column in NORMS)])
    by_layer = folded("The last norms of each layer", table("norms-table", ("run", "layer", *NORMS), rows))
    note = "As Accelerated Methods (appendix D) follows them; a step goes from one gradient of a learner to its next."
    return Section("norms", "Norms", note, (figures, by_layer))


def _of_layer(run: Run, layer: int) -> dict[str, np.ndarray]:
    rows = run.tables["norms"]
    return {name: values[rows["layer"] == layer] for name, values in rows.items()}
