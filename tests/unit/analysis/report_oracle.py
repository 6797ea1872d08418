"""Every table that a report must have, worked out from the files with h5py alone, and a reader of the tables it has."""

import json
import re
import tomllib
from html.parser import HTMLParser
from importlib.resources import files
from itertools import combinations
from xml.etree import ElementTree

import h5py
import numpy as np

from hpcrl.analysis.statistics import bootstrap, probability_of_improvement

NAN = float("nan")
AXES = {
    "frames": ("total_frames", 1e6, "emulator frames [millions]"),
    "hours": ("wall_seconds", 3600.0, "training time [hours]"),
    "updates": ("global_update", 1e3, "global updates [thousands]"),
}
OVER_HOURS = {
    "speed": ("frames_per_second", "updates_per_second", "training_intensity"),
    "gradients": ("staleness_mean",),
    "training": (
        *("loss", "mean_q", "epsilon", "learning_rate", "effective_rate", "replay_fill", "replay_age_steps"),
        *("mean_priority", "samples_redrawn", "priorities_dropped", "policies.entropy", "policies.kl"),
        *("policies.value_loss", "policies.gradient_norm", "policies.explained_variance"),
    ),
}
FATES = ("applied", "applied by some shards", "dropped as too old", "dropped as outlier")


class Stored:
    """A run of one segment, as it lies on the disk."""

    def __init__(self, path):
        self.path, self.name = path, path.name
        sections = tomllib.loads((path / "config.toml").read_text())
        self.config = {f"{s}.{k}": v for s, keys in sections.items() for k, v in keys.items()}
        self.game = re.sub(r"ALE/|-v5", "", self.config["env.id"]).lower()
        with h5py.File(path / "runlog-000.h5") as file:
            self.layers = json.loads(file.attrs.get("layers", "[]"))
            self._tables = {
                table: {name: data[: int(group["committed_rows"][0])] for name, data in group.items()}
                for table, group in file.items()
            }
        # Rows that stand still in frames are written once more at a stop: the newest counts.
        progress = self._tables["progress"]
        kept = np.append(np.diff(progress["total_frames"]) > 0, True)[: len(progress["total_frames"])]
        self._tables["progress"] = {name: c[kept] for name, c in progress.items() if name != "committed_rows"}

    def __getitem__(self, column):
        table, _, name = column.partition(".")
        return self._tables[table][name]

    def last(self, name):
        return self[f"progress.{name}"][-1]


def stretch(runs, along):
    """The least of 1, 2, 5, 10, 20, ... that cuts the longest run into at most 100 pieces."""
    longest = max(run.last(AXES[along][0]) for run in runs)
    sizes = (step * 10.0**power for power in range(12) for step in (1, 2, 5))
    return next(size for size in sizes if size * 100 >= longest)


def means(run, column, clock, ends, of=None):
    """Mean of a column over each stretch that ends at ``ends``."""
    table = column.partition(".")[0]
    values, at = run[column], run[f"{table}.{clock}"]
    if of is not None:
        values, at = values[of(run)], at[of(run)]
    found, before = [], -np.inf
    for end in ends:
        inside = values[(at > before) & (at <= end) & ~np.isnan(values)]
        found.append(inside.mean() if len(inside) else NAN)
        before = end
    return np.array(found)


def curves(groups, column, along, *, drop_zeros=False, of=None):
    """The table under a figure of curves: head and rows; None where the figure is not there."""
    clock, unit, label = AXES[along]
    size, columns = stretch([run for runs in groups.values() for run in runs], along), {}
    for name, runs in groups.items():
        shortest = min(int(run.last(clock) // size) for run in runs)
        ends = size * np.arange(1, shortest + 1)
        each = np.array([means(run, column, clock, ends, of) for run in runs])
        if not np.isfinite(each.mean(axis=0)).any() or (drop_zeros and not np.nan_to_num(each.mean(axis=0)).any()):
            continue
        columns[name] = dict(zip(ends / unit, each.mean(axis=0), strict=True))
        if np.nanmax(np.ptp(each, axis=0)) > 0:  # seeds that are all alike have no band
            columns[f"{name}, low"] = dict(zip(ends / unit, each.min(axis=0), strict=True))
            columns[f"{name}, high"] = dict(zip(ends / unit, each.max(axis=0), strict=True))
    return columns and as_table(label, columns)


def as_table(label, columns):
    places = sorted({x for column in columns.values() for x in column})
    return [[label, *columns], *([x, *(column.get(x, NAN) for column in columns.values())] for x in places)]


def expected_tables(groups):
    """Id to rows, head first, of each table in the report of some experiments (name to runs of one seed each)."""
    runs = [run for members in groups.values() for run in members]
    found = {"runs-table": runs_table(runs), "configuration-table": configuration(runs)}
    for along in AXES:
        found[f"learning-{along}-numbers"] = curves(groups, "episodes.episode_return", along)
    for section, names in OVER_HOURS.items():
        for name in names:
            column = name if "." in name else f"progress.{name}"
            found[f"{section}-{name}-numbers"] = curves(groups, column, "hours", drop_zeros=True)
    found |= gradients(runs) | scores(groups, runs) | norms(groups)
    return {name: rows for name, rows in found.items() if rows and len(rows) > 1}


def runs_table(runs):
    head = ["run", "environment", "protocol", "seed", "layout", "starts", "frames", "updates", "hours", "frames/s"]
    rows = [[*head, "episodes", "return, last 100"]]
    for run in runs:
        seconds, returns = run.last("wall_seconds"), run["episodes.episode_return"]
        about = (run.config[key] for key in ("env.id", "env.protocol", "run.seed", "topology.layout"))
        reached = (run.last("total_frames"), run.last("global_update"), seconds / 3600)
        rows.append([run.name, *map(str, about), 1.0, *reached, run.last("total_frames") / seconds])
        rows[-1] += [len(returns), returns[-100:].mean()]
    return rows


def configuration(runs):
    keys = [key for key in runs[0].config if key not in ("run.seed", "run.name", "run.dir")]
    values = {key: [run.config[key] for run in runs] for key in keys}
    differing = {key: row for key, row in values.items() if any(value != row[0] for value in row)}
    return [["key", *(run.name for run in runs)], *([key, *map(str, row)] for key, row in differing.items())]


def gradients(runs):
    """What became of gradients, and what each role did."""
    heads = ["run", "learner", "gradients", *FATES, "mean delay [updates]", "greatest delay [updates]"]
    table, roles, dropped, found = [heads], [], {}, {}
    for run in runs:
        seconds = run.last("wall_seconds")
        fate, delay, count, who, when = (
            run[f"gradients.{name}"] for name in ("fate", "delay_updates", "count", "learner", "wall_seconds")
        )
        for actor in sorted(set(run["episodes.actor"].tolist())):
            steps = run["episodes.length_steps"][run["episodes.actor"] == actor]
            roles.append([run.name, f"actor {actor}", len(steps), steps.sum() / seconds, NAN])
        for learner in sorted(set(who.tolist())):
            mine, sent = who == learner, (who == learner) & (delay >= 0)
            total = count[mine].sum()
            shares = [count[mine & (fate == number)].sum() / total for number in range(4)]
            mean = (delay * count)[sent].sum() / count[sent].sum()
            table.append([run.name, str(learner), total, *shares, mean, delay[sent].max()])
            roles.append([run.name, f"learner {learner}", NAN, NAN, total / seconds])
        if run.last("gradients_accepted"):
            roles.append([run.name, "servers, each", NAN, NAN, run.last("gradients_accepted") / seconds])
        if played := run["evaluations.episodes"].sum():
            roles.append([run.name, "evaluators", played, NAN, NAN])
        rates = {
            t / 3600: 100 * count[(when == t) & (fate > 1)].sum() / count[when == t].sum() for t in sorted(set(when))
        }
        if any(rates.values()):
            dropped[run.name] = rates
        histogram = {
            name: {float(d): count[(fate == number) & (delay == d)].sum() for d in range(delay.max() + 1)}
            for number, name in enumerate(FATES)
        }
        histogram = {name: bars for name, bars in histogram.items() if any(bars.values())}
        found[f"delays-{run.name}-numbers"] = as_table("delay [updates]", histogram)
    role_heads = ["run", "role", "finished episodes", "steps/s in them", "gradients/s"]
    found |= {"gradients-table": table, "roles": [role_heads, *roles]}
    return found | {"gradients-dropped-numbers": as_table(AXES["hours"][2], dropped)}


def scores(groups, runs):
    shipped = json.loads(files("hpcrl.analysis").joinpath("data/score_tables.json").read_text())
    evaluated, found = {}, {}
    for run in runs:
        mean, std, count, update = (
            run[f"evaluations.{name}"] for name in ("mean_return", "std_return", "episodes", "global_update")
        )
        spread = std / np.sqrt(count)
        parts = {run.name: mean, f"{run.name}, low": mean - spread, f"{run.name}, high": mean + spread}
        evaluated |= {name: dict(zip(update / 1e3, ys, strict=True)) for name, ys in parts.items() if len(ys)}
        if len(mean) and not spread.any():
            del evaluated[f"{run.name}, low"], evaluated[f"{run.name}, high"]
    found["evaluations-numbers"] = as_table(AXES["updates"][2], evaluated)
    found["improvements"] = improvements(groups)
    for name in ("gorila_noop", "atari57_noop"):
        table = shipped[name]["scores"]
        known = [run for run in runs if run.game in table["random"]]
        found[f"scores-{name}"] = beside(table, known)
        for figure, reference in ((f"normalised-{name}", "human"), (f"of-dqn-{name}", "dqn")):
            if reference in table and known:
                found[f"{figure}-numbers"] = in_percent(table, groups, reference)
    return found | times(shipped["gorila_noop"]["scores"], [run for run in runs if run.game == "pong"])


def improvements(groups):
    rows = [["experiment", "over", "games", "probability of improvement", "low", "high"]]
    for (name, one), (over, other) in combinations(groups.items(), 2):
        pair = [np.array([[run["evaluations.mean_return"][-1]] for run in runs]) for runs in (one, other)]
        wins = [(a > b) + (a == b) / 2 for a in pair[0][:, 0] for b in pair[1][:, 0]]
        interval = bootstrap(probability_of_improvement, *pair, resamples=2000)
        rows.append([name.replace("seeds", "runs"), over.replace("seeds", "runs"), 1, np.mean(wins), *interval[1:]])
    return rows


def beside(table, runs):
    rows = [["run", "game", "protocol", "mean of", "score", *table, "human-normalised [%]"]]
    for run in runs:
        score, count = run["evaluations.mean_return"][-1], run["evaluations.episodes"][-1]
        of = f"evaluation, {count} episodes"
        random, human = table["random"][run.game], table["human"][run.game]
        share = 100 * (score - random) / (human - random)
        rows.append([run.name, run.game, run.config["env.protocol"], of, score, *(p[run.game] for p in table.values())])
        rows[-1].append(share)
    return rows


def in_percent(table, groups, reference):
    """For one game, as all runs of the test are of: Pong."""
    random, best = table["random"]["pong"], table[reference]["pong"]
    lead = {
        name.replace("seeds", "runs"): np.mean([run["evaluations.mean_return"][-1] for run in members])
        for name, members in groups.items()
        if members[0].game == "pong"
    }
    lead |= {player: row["pong"] for player, row in table.items() if player not in ("random", "human", reference)}
    return [["game", *lead], ["pong", *(100 * (score - random) / (best - random) for score in lead.values())]]


def times(table, runs):
    rows, when = [["run", "goal", "return", "hours", "frames [millions]", "updates"]], {}
    random, human = table["random"]["pong"], table["human"]["pong"]
    goals = {f"{share} % of human": random + share / 100 * (human - random) for share in (25, 50, 75, 100)}
    for run in runs:
        for goal, value in {**goals, "DQN": table["dqn"]["pong"]}.items():
            goal = goal.replace(" %", "%")
            reached = np.flatnonzero(run["progress.mean_return_100"] >= value)
            clocks = [NAN] * 3
            if len(reached):
                clocks = [
                    run[f"progress.{name}"][reached[0]] for name in ("wall_seconds", "total_frames", "global_update")
                ]
                clocks = [clocks[0] / 3600, clocks[1] / 1e6, clocks[2]]
            rows.append([run.name, goal, value, *clocks])
            when.setdefault(goal, []).append(clocks[0])
    if not runs:
        return {}
    size = stretch(runs, "hours") / 3600
    at = size * np.arange(int(np.floor(max(run.last("wall_seconds") for run in runs) / 3600 / size)) + 1)
    counts = {goal: {x: float(sum(hours <= x for hours in all_hours)) for x in at} for goal, all_hours in when.items()}
    counts = {goal: column for goal, column in counts.items() if any(column.values())}
    return {"times": rows, "reached-numbers": as_table(AXES["hours"][2], counts)}


def norms(groups):
    groups = {name: runs for name, runs in groups.items() if len(runs[0]["norms.layer"])}
    found, rows = {}, [["run", "layer", "parameters", "distance", "gradient", "step"]]
    if not groups:
        return {}
    for column in rows[0][2:]:
        whole = curves(groups, f"norms.{column}", "updates", of=lambda run: run["norms.layer"] == -1)
        found[f"norms-{column}-numbers"] = whole
    for run in (run for runs in groups.values() for run in runs):
        for layer in sorted(set(run["norms.layer"].tolist())):
            last = [run[f"norms.{column}"][run["norms.layer"] == layer][-1] for column in rows[0][2:]]
            rows.append([run.name, "all" if layer < 0 else run.layers[layer], *last])
    return found | {"norms-table": rows}


class Tables(HTMLParser):
    """Cells of every table by its id; ``float`` where a cell has a ``data-value``; and which cells are marked."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.classes, self._cell, self._value = {}, {}, None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "table":
            self._name = attributes["id"]
            self.rows[self._name], self.classes[self._name] = [], []
        elif tag == "tr":
            self.rows[self._name].append([])
            self.classes[self._name].append([])
        elif tag in ("td", "th"):
            self._cell, self._value = "", attributes.get("data-value")
            self.classes[self._name][-1].append(attributes.get("class", ""))

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.rows[self._name][-1].append(self._cell if self._value is None else float(self._value))
            self._cell = None


SIZES = {"G": 1e9, "M": 1e6, "k": 1e3}


def drawn_lines(page):
    """For each chart of lines in a page, by its figure: a list of points (x, y) of each line, read off its axes."""
    found = {}
    for name, chart in re.findall(r'<figure id="([^"]*)">.*?(<svg.*?</svg>)', page, re.S):
        picture = ElementTree.fromstring(chart)
        paths = [path.get("d") for path in picture.iter("path")]
        if not paths:  # a chart of bars
            continue
        ticks = [(t.attrib, _number(t.text)) for t in picture.iter("text") if t.get("class") == "tick"]
        x = [(float(a["x"]), value) for a, value in ticks if a["text-anchor"] == "middle"]
        y = [(float(a["y"]), value) for a, value in ticks if a["text-anchor"] == "end"]
        if len(x) > 1 and len(y) > 1:
            points = [re.findall(r"[ML](\S+?) ([-\d.]+)", path) for path in paths]
            found[name] = [[(_read(x, float(a)), _read(y, float(b))) for a, b in line] for line in points]
    return found


def _number(text):
    return float(text[:-1]) * SIZES[text[-1]] if text[-1] in SIZES else float(text)


def _read(ticks, place):
    (at, low), (other, high) = ticks[0], ticks[-1]
    return low + (place - at) / (other - at) * (high - low)
