"""The part of the report that puts scores in relation to published ones."""

import itertools
from collections.abc import Sequence

import numpy as np

from hpcrl.analysis.charts import Series
from hpcrl.analysis.curves import AXES, default_stretch
from hpcrl.analysis.page import Figure, Number, Section, bars, folded, lines, table
from hpcrl.analysis.runs import Run, by_experiment, label
from hpcrl.analysis.scores import ScoreTable, human_normalised, normalise, tables
from hpcrl.analysis.scores import table as score_table
from hpcrl.analysis.statistics import AGGREGATES, bootstrap, probability_of_improvement

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the human score, for which the report tells when training reached them."""
NOOP_TABLES = [name for name in tables() if score_table(name).protocol == "noop"]
COMPARABLE = ("own", "noop")
"""Protocols of evaluations that may stand beside a table of no-op starts."""
EVALUATED_BY = {
    "own": "",
    "noop": " (no-op starts)",
    "human": " (surrogate human starts)",
    "sticky": " (sticky actions)",
    "saber": " (SABER)",
}


def scores_section(runs: Sequence[Run]) -> Section:
    """Evaluations, scores beside each table that has the game, aggregates over games, and times to reach."""
    pieces: list[str | list[Figure]] = [[_evaluations(runs)], _improvements(runs)]
    for scores in map(score_table, NOOP_TABLES):
        known = [run for run in runs if run.game in scores.games]
        if known:
            figures = [_of_human(scores, known), *([_of_dqn(scores, known)] if "dqn" in scores.scores else [])]
            pieces += [_beside(scores, known), _aggregates(scores, known), figures]
    pieces += _times([run for run in runs if run.game in score_table("gorila_noop").games])
    note = (
        "A score is the mean return of the last evaluation or, without one that begins as in training or with no-ops, "
        "of the last 100 training episodes. Tables are of no-op starts without sticky actions; the column protocol "
        "says how a run was trained. Human scores differ between tables and are never mixed. Intervals are of 95 %."
    )
    return Section("scores", "Scores", note, tuple(pieces))


def score_of(run: Run) -> tuple[float, str]:
    """The score of a run and what it is the mean of; NaN before the first episode."""
    evaluated, trained = run.tables["evaluations"]["mean_return"], run.tables["episodes"]["episode_return"]
    if len(evaluated) and _evaluation_protocol(run) in COMPARABLE:
        how = f"evaluation{EVALUATED_BY[_evaluation_protocol(run)]}"
        return float(evaluated[-1]), f"{how}, {run.tables['evaluations']['episodes'][-1]} episodes"
    last = trained[-100:]
    return (float(last.mean()), f"last {len(last)} training episodes") if len(last) else (float("nan"), "nothing yet")


def _evaluation_protocol(run: Run) -> str:
    return run.config.get("run.evaluation_protocol", "own")  # runs of older versions have no such key


def _evaluations(runs: Sequence[Run]) -> Figure:
    series = []
    for run in runs:
        rows = run.tables["evaluations"]
        mean, spread = rows["mean_return"], rows["std_return"] / np.sqrt(np.maximum(rows["episodes"], 1))
        name = run.name + EVALUATED_BY[_evaluation_protocol(run)]
        series.append(Series(name, rows["global_update"] / 1e3, mean, mean - spread, mean + spread))
    caption = "Evaluations, with the standard error over episodes"
    return lines("evaluations", caption, series, "global updates [thousands]", "evaluated return")


def _beside(scores: ScoreTable, runs: Sequence[Run]) -> str:
    """A row for each run."""
    players = list(scores.scores)
    heads = ("run", "game", "protocol", "mean of", "score", *players, "human-normalised [%]")
    rows = []
    for run in runs:
        score, of = score_of(run)
        published = (Number(scores.scores[player][run.game]) for player in players)
        share = Number(float(100 * human_normalised(scores, run.game, score)), ",.1f")
        rows.append([run.name, run.game, run.protocol, of, Number(score, ",.2f"), *published, share])
    return f"<h3>{scores.title}</h3><p>{scores.source}</p>" + table(f"scores-{scores.name}", heads, rows)


def _of_human(scores: ScoreTable, runs: Sequence[Run]) -> Figure:
    """Bars in percent of human, of runs and of the players of the table, as in figure 4 of the Gorila paper."""
    caption = f"Percent of the human score, {scores.title}"
    return _bars(scores, runs, f"normalised-{scores.name}", caption, reference="human", up="percent of human")


def _of_dqn(scores: ScoreTable, runs: Sequence[Run]) -> Figure:
    """Bars in percent of the DQN, as in its figure 3."""
    caption = f"Percent of the DQN's score, {scores.title}"
    return _bars(scores, runs, f"of-dqn-{scores.name}", caption, reference="dqn", up="percent of DQN")


def _bars(scores: ScoreTable, runs: Sequence[Run], name: str, caption: str, *, reference: str, up: str) -> Figure:
    """100 times the lead over random play by that of the reference, for each game."""
    games = sorted({run.game for run in runs})
    random, best = ([scores.scores[player][game] for game in games] for player in ("random", reference))
    places = np.arange(float(len(games)))
    series = []
    for members in _by_experiment_of_games(runs):
        means = [np.mean([score_of(run)[0] for run in members if run.game == game] or [np.nan]) for game in games]
        series.append(Series(label(members, "runs"), places, 100 * normalise(means, random, best)))
    for player in [name for name in scores.scores if name not in ("random", "human", reference)]:
        published = [scores.scores[player][game] for game in games]
        series.append(Series(player, places, 100 * normalise(published, random, best)))
    return bars(name, caption, series, "game", up, games)


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
    for members in _by_experiment_of_games(runs):
        each = _scores_by_game(members)
        if len(each) < 2 or len(set(map(len, each.values()))) > 1:
            continue
        normalised = np.array([human_normalised(scores, game, values) for game, values in each.items()]).T
        counts = (Number(len(each), "d"), Number(len(normalised), "d"))
        for name, statistic in AGGREGATES.items():
            interval = (Number(value, ",.3f") for value in bootstrap(statistic, normalised, resamples=2000))
            rows.append([label(members, "runs"), *counts, name, *interval])
    return table(f"aggregates-{scores.name}", heads, rows)


def _improvements(runs: Sequence[Run]) -> str:
    """How likely a run of one experiment is to be better than one of another, where both have the same games."""
    heads = ("experiment", "over", "games", "probability of improvement", "low", "high")
    rows = []
    found = [(label(members, "runs"), _scores_by_game(members)) for members in _by_experiment_of_games(runs)]
    for (name, one), (over, other) in itertools.combinations(found, 2):
        if one.keys() == other.keys() and all(len(set(map(len, scores.values()))) == 1 for scores in (one, other)):
            both = (np.array([scores[game] for game in one]).T for scores in (one, other))
            interval = (Number(value, ",.3f") for value in bootstrap(probability_of_improvement, *both, resamples=2000))
            rows.append([name, over, Number(len(one), "d"), *interval])
    return table("improvements", heads, rows)


def _scores_by_game(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Scores of the runs of each game; without those that have none yet."""
    found: dict[str, list[float]] = {}
    for run in runs:
        score, _ = score_of(run)
        if score == score:
            found.setdefault(run.game, []).append(score)
    return found


def _times(runs: Sequence[Run]) -> list[str | list[Figure]]:
    """When the mean of the last 100 training episodes reached shares of the human score, and the DQN's (figure 5)."""
    scores = score_table("gorila_noop")
    heads = ("run", "goal", "return", "hours", "frames [millions]", "updates")
    rows, hours = [], {}
    for run in runs:
        random, human = scores.scores["random"][run.game], scores.scores["human"][run.game]
        goals = {f"{share:.0%} of human": random + share * (human - random) for share in SHARES}
        goals["DQN"] = scores.scores["dqn"][run.game]
        for goal, value in goals.items():
            reached = _first(run, value)
            rows.append([run.name, goal, Number(value, ",.2f"), *reached])
            hours.setdefault(goal, []).append(reached[0].value)
    heading = f"<h3>Time to reach, {scores.title}</h3>" if rows else ""
    return [heading, [_reached(runs, hours)], folded("Each run and goal", table("times", heads, rows))]


def _reached(runs: Sequence[Run], hours: dict[str, list[float]]) -> Figure:
    """How many runs had reached each goal by each hour."""
    step = default_stretch(runs, "hours") / AXES["hours"].unit
    longest = max((run.last("wall_seconds") for run in runs), default=0) / AXES["hours"].unit
    at = step * np.arange(np.floor(longest / step) + 1)
    series = [
        Series(goal, at, (np.array(when) <= at[:, None]).sum(axis=1).astype(float)) for goal, when in hours.items()
    ]
    shown = [one for one in series if one.y.any()]
    return lines("reached", "Runs that have reached a goal", shown, AXES["hours"].label, "runs")


def _first(run: Run, goal: float) -> list[Number]:
    """Hours, millions of frames and updates of the first row that has reached a goal; NaN: none has."""
    progress = run.tables["progress"]
    reached = np.flatnonzero(progress["mean_return_100"] >= goal)
    if not len(reached):
        return [Number(float("nan"))] * 3
    hours, frames, updates = (progress[name][reached[0]] for name in ("wall_seconds", "total_frames", "global_update"))
    return [Number(float(hours) / 3600, ",.3f"), Number(float(frames) / 1e6, ",.3f"), Number(int(updates), ",d")]
