"""The part of the report that puts scores in relation to published ones."""

from collections.abc import Sequence

import numpy as np

from hpcrl.analysis import charts
from hpcrl.analysis.charts import Series
from hpcrl.analysis.page import Number, figure, figures, section, table
from hpcrl.analysis.runs import Run, by_experiment, label
from hpcrl.analysis.scores import ScoreTable, human_normalised, tables
from hpcrl.analysis.scores import table as score_table
from hpcrl.analysis.statistics import AGGREGATES, bootstrap

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the human score, for which the report tells when training reached them."""
NOOP_TABLES = [name for name in tables() if score_table(name).protocol == "noop"]


def scores_section(runs: Sequence[Run]) -> str:
    """Evaluations, scores beside each table that has the game, aggregates over games, and times to reach."""
    pieces = [_evaluations(runs)]
    for name in NOOP_TABLES:
        pieces += [_beside(score_table(name), runs), _aggregates(score_table(name), runs)]
    pieces.append(_times(runs))
    note = (
        "A score is the mean return of the last evaluation or, without one, of the last 100 training episodes. Tables "
        "are of no-op starts without sticky actions; the column protocol says how a run was trained. Human scores "
        "differ between tables and are never mixed."
    )
    return section("scores", "Scores", note, *pieces)


def score_of(run: Run) -> tuple[float, str]:
    """The score of a run and what it is the mean of; NaN before the first episode."""
    evaluated, trained = run.tables["evaluations"]["mean_return"], run.tables["episodes"]["episode_return"]
    if len(evaluated):
        return float(evaluated[-1]), f"evaluation, {run.tables['evaluations']['episodes'][-1]} episodes"
    last = trained[-100:]
    return (float(last.mean()), f"last {len(last)} training episodes") if len(last) else (float("nan"), "nothing yet")


def _evaluations(runs: Sequence[Run]) -> str:
    series = []
    for run in runs:
        rows = run.tables["evaluations"]
        mean, spread = rows["mean_return"], rows["std_return"] / np.sqrt(np.maximum(rows["episodes"], 1))
        if len(mean):
            series.append(Series(run.name, rows["global_update"] / 1e3, mean, mean - spread, mean + spread))
    chart = charts.lines(series, "global updates [thousands]", "evaluated return")
    return figures([figure("evaluations", "Evaluations, with the standard error over episodes", chart)])


def _beside(scores: ScoreTable, runs: Sequence[Run]) -> str:
    """A row for each run whose game is in a table, and bars like the paper's figures 3 and 4."""
    known = [run for run in runs if run.game in scores.games]
    players = list(scores.scores)
    heads = ("run", "game", "protocol", "mean of", "score", *players, "human-normalised [%]")
    rows = []
    for run in known:
        score, of = score_of(run)
        published = (Number(scores.scores[player][run.game]) for player in players)
        share = Number(float(100 * human_normalised(scores, run.game, score)), ",.1f")
        rows.append([run.name, run.game, run.protocol, of, Number(score, ",.2f"), *published, share])
    caption = f"Human-normalised scores, {scores.title}"
    chart = figure(f"normalised-{scores.name}", caption, _normalised_bars(scores, known))
    if not rows:
        return ""
    return (
        f"<h3>{scores.title}</h3><p>{scores.source}</p>"
        + table(f"scores-{scores.name}", heads, rows)
        + figures([chart])
    )


def _normalised_bars(scores: ScoreTable, runs: Sequence[Run]) -> str:
    games = sorted({run.game for run in runs})
    series = []
    for members in _by_experiment_of_games(runs):
        means = [np.mean([score_of(run)[0] for run in members if run.game == game] or [np.nan]) for game in games]
        share = [100 * float(human_normalised(scores, game, mean)) for game, mean in zip(games, means, strict=True)]
        series.append(Series(label(members, "runs"), np.arange(float(len(games))), np.array(share)))
    for player in [name for name in scores.scores if name not in ("random", "human")]:
        share = [100 * float(human_normalised(scores, game, scores.scores[player][game])) for game in games]
        series.append(Series(player, np.arange(float(len(games))), np.array(share)))
    return charts.bars(series, "game", "percent of human", names=games) if games else ""


def _by_experiment_of_games(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs whose configurations differ in seed and game alone, together."""
    grouped: dict[tuple, list[Run]] = {}
    for members in by_experiment(runs):
        rest = {key: value for key, value in members[0].config.items() if not key.startswith(("run.", "env.id"))}
        grouped.setdefault(tuple(sorted((key, repr(value)) for key, value in rest.items())), []).extend(members)
    return list(grouped.values())


def _aggregates(scores: ScoreTable, runs: Sequence[Run]) -> str:
    """Over games, with 95 % intervals over seeds, where an experiment has every game as often."""
    heads = ("experiment", "games", "seeds", "aggregate", "value", "low", "high")
    rows = []
    for members in _by_experiment_of_games([run for run in runs if run.game in scores.games]):
        games = sorted({run.game for run in members})
        each = [[score_of(run)[0] for run in members if run.game == game] for game in games]
        if len(games) < 2 or len({len(values) for values in each}) > 1:
            continue
        normalised = np.array(
            [
                [float(human_normalised(scores, game, v)) for v in values]
                for game, values in zip(games, each, strict=True)
            ]
        ).T
        counts = (Number(len(games), "d"), Number(len(normalised), "d"))
        for name, statistic in AGGREGATES.items():
            interval = (Number(value, ",.3f") for value in bootstrap(statistic, normalised, resamples=2000))
            rows.append([label(members, "runs"), *counts, name, *interval])
    return table(f"aggregates-{scores.name}", heads, rows)


def _times(runs: Sequence[Run]) -> str:
    """When the mean of the last 100 training episodes reached shares of the human score, and the DQN's (figure 5)."""
    scores = score_table("gorila_noop")
    heads = ("run", "goal", "return", "hours", "frames [millions]", "updates")
    rows = []
    for run in runs:
        if run.game in scores.games:
            random, human = scores.scores["random"][run.game], scores.scores["human"][run.game]
            goals = {f"{share:.0%} of human": random + share * (human - random) for share in SHARES}
            goals["DQN"] = scores.scores["dqn"][run.game]
            for goal, value in goals.items():
                rows.append([run.name, goal, Number(value, ",.2f"), *_first(run, value)])
    if not rows:
        return ""
    return f"<details><summary>Time to reach, {scores.title}</summary>{table('times', heads, rows)}</details>"


def _first(run: Run, goal: float) -> list[Number]:
    """Hours, millions of frames and updates of the first row that has reached a goal; NaN: none has."""
    progress = run.tables["progress"]
    reached = np.flatnonzero(progress["mean_return_100"] >= goal)
    if not len(reached):
        return [Number(float("nan"))] * 3
    hours, frames, updates = (progress[name][reached[0]] for name in ("wall_seconds", "total_frames", "global_update"))
    return [Number(float(hours) / 3600, ",.3f"), Number(float(frames) / 1e6, ",.3f"), Number(int(updates), ",d")]
