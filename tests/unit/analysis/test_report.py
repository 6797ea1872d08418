"""The report: every number in it is that of the files, and a browser shows it without complaint."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import h5py
import numpy as np
import pytest
from logged import log_run

from hpcrl.analysis import load
from hpcrl.analysis.charts import ticks
from hpcrl.analysis.report import report, write_report
from hpcrl.config import from_dict, to_toml
from hpcrl.errors import StorageError

GOLDEN = Path(__file__).parents[2] / "golden" / "0.1.0" / "run"


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


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    logged = [log_run(directory / f"pong-{seed}", seed=seed) for seed in (1, 2)]
    return [*logged, log_run(directory / "small", seed=3, bundles=1, rows=40, learning_rate=0.5)]


@pytest.fixture(scope="module")
def page(runs):
    return report(runs)


@pytest.fixture(scope="module")
def tables(page):
    return Tables(page)


def stored(run, table):
    """Columns of the only segment of a run, read with h5py alone."""
    with h5py.File(run.path / "runlog-000.h5") as file:
        count = int(file[table]["committed_rows"][0])
        return {name: data[:count] for name, data in file[table].items() if name != "committed_rows"}


def test_runs_table_has_the_numbers_of_the_files(runs, tables):
    head, *rows = tables.rows["runs-table"]
    assert len(rows) == 3
    for run, row in zip(runs, rows, strict=True):
        progress, episodes = stored(run, "progress"), stored(run, "episodes")
        cells = dict(zip(head, row, strict=True))
        assert cells["run"] == run.name
        assert cells["frames"] == progress["total_frames"][-1]
        assert cells["updates"] == progress["global_update"][-1]
        assert cells["hours"] == pytest.approx(progress["wall_seconds"][-1] / 3600)
        assert cells["frames/s"] == pytest.approx(progress["total_frames"][-1] / progress["wall_seconds"][-1])
        assert cells["episodes"] == len(episodes["episode_return"])
        assert cells["return, last 100"] == pytest.approx(episodes["episode_return"][-100:].mean())


def test_curve_numbers_are_means_of_the_stored_episodes(runs, tables):
    head, *rows = tables.rows["learning-frames-numbers"]
    assert head == ["total_frames", "pong, 2 seeds", "small"]
    stretch = rows[1][0] - rows[0][0]
    for end, both, alone in rows:
        means = []
        for run in runs:
            episodes = stored(run, "episodes")
            inside = (episodes["total_frames"] > end - stretch) & (episodes["total_frames"] <= end)
            means.append(episodes["episode_return"][inside].mean() if inside.any() else np.nan)
        assert both == pytest.approx(np.mean(means[:2]), nan_ok=True)
        assert alone == pytest.approx(means[2], nan_ok=True)


def test_gradients_are_shares_of_all_and_delays_of_those_sent(runs, tables):
    head, *rows = tables.rows["gradients-table"]
    assert [row[:2] for row in rows] == [
        ["pong-1", "0"],
        ["pong-1", "1"],
        ["pong-2", "0"],
        ["pong-2", "1"],
        ["small", "0"],
    ]
    columns = stored(runs[2], "gradients")
    cells = dict(zip(head, rows[4], strict=True))
    total = columns["count"].sum()
    assert cells["gradients"] == total
    for fate, name in enumerate(("applied", "applied by some shards", "dropped as too old", "dropped as outlier")):
        assert cells[name] == pytest.approx(columns["count"][columns["fate"] == fate].sum() / total)
    sent = columns["delay_updates"] >= 0
    mean = (columns["delay_updates"] * columns["count"])[sent].sum() / columns["count"][sent].sum()
    assert cells["mean delay [updates]"] == pytest.approx(mean)
    assert cells["greatest delay [updates]"] == 9


def test_rates_of_actors_and_learners_are_those_of_their_rows(runs, tables):
    rows = {(row[0], row[1]): row[2:] for row in tables.rows["roles"][1:]}
    seconds = stored(runs[1], "progress")["wall_seconds"][-1]
    episodes, gradients = stored(runs[1], "episodes"), stored(runs[1], "gradients")
    assert rows["pong-2", "actor 0"][:2] == [120, pytest.approx(episodes["length_steps"].sum() / seconds)]
    count = gradients["count"][gradients["learner"] == 1].sum()
    assert rows["pong-2", "learner 1"][2] == pytest.approx(count / seconds)


def test_scores_stand_beside_each_table_that_has_the_game(runs, tables):
    for name, human in (("gorila_noop", 9.3), ("atari57_noop", 14.6)):
        head, *rows = tables.rows[f"scores-{name}"]
        for run, row in zip(runs, rows, strict=True):
            cells = dict(zip(head, row, strict=True))
            score = stored(run, "evaluations")["mean_return"][-1]
            assert (cells["score"], cells["random"], cells["human"]) == (pytest.approx(score), -20.7, human)
            assert cells["human-normalised [%]"] == pytest.approx(100 * (score + 20.7) / (human + 20.7))


def test_times_to_reach_are_those_of_the_first_row_that_did(runs, tables):
    rows = {(row[0], row[1]): row[2:] for row in tables.rows["times"][1:]}
    progress = stored(runs[0], "progress")
    goal, hours, frames, updates = rows["pong-1", "50% of human"]
    first = int(np.argmax(progress["mean_return_100"] >= goal))
    assert goal == pytest.approx(-5.7)
    assert hours == pytest.approx(progress["wall_seconds"][first] / 3600)
    assert (frames, updates) == (progress["total_frames"][first] / 1e6, progress["global_update"][first])
    assert np.isnan(rows["small", "DQN"][1:]).all()


def test_differences_of_configurations_are_marked(tables):
    rows = {row[0]: row[1:] for row in tables.rows["configuration-table"][1:]}
    assert rows["topology.bundles"] == ["2", "2", "1"]
    assert rows["learning.learning_rate"] == ["0.01", "0.01", "0.5"]
    assert "run.seed" not in rows
    assert all(marks[1:] == ["", "", "differs"] for marks in tables.classes["configuration-table"][1:])


def test_seeds_of_two_games_are_aggregated(tmp_path):
    logged = [
        log_run(tmp_path / f"{game}-{seed}", seed=seed, game=game, rows=20)
        for game in ("Pong", "Breakout")
        for seed in (1, 2)
    ]
    head, *rows = Tables(report(logged)).rows["aggregates-gorila_noop"]
    found = {row[head.index("aggregate")]: row for row in rows}
    assert [found["mean"][head.index(name)] for name in ("games", "seeds")] == [2, 2]
    score = stored(logged[0], "evaluations")["mean_return"][-1]  # the same in all four
    expected = np.mean([(score + 20.7) / 30.0, (score - 1.7) / 30.1])
    assert found["mean"][head.index("value")] == pytest.approx(expected)


def test_the_page_needs_nothing_but_itself(page):
    assert "<script" not in page
    assert not re.search(r"""(src|href)=["'](?!#|data:)""", page)
    assert "@import" not in page
    assert "url(" not in page
    pictures = re.findall(r"<svg.*?</svg>", page, re.S)
    assert len(pictures) >= 15
    for picture in pictures:
        ElementTree.fromstring(picture)
        assert "nan" not in re.sub(r"<t(ext|itle).*?</t(ext|itle)>", "", picture)


def test_runs_without_anything_in_them_have_a_report_too(tmp_path):
    (tmp_path / "config.toml").write_text(to_toml(from_dict({"env": {"id": "catch"}})))
    page = report([load(tmp_path), load(GOLDEN)])
    assert len(Tables(page).rows["runs-table"]) == 3


def test_names_are_text_and_no_markup(tmp_path):
    run = log_run(tmp_path / "<b>&amp;'\"", rows=20)
    assert "<b>" not in report([run])


def test_a_place_that_cannot_be_written_is_a_clear_error(runs, tmp_path):
    with pytest.raises(StorageError, match="cannot write"):
        write_report(runs[:1], tmp_path / "absent" / "report.html")


def test_ticks_are_round_and_inside():
    np.testing.assert_allclose(ticks(0, 1), [0, 0.2, 0.4, 0.6, 0.8, 1.0])
    np.testing.assert_allclose(ticks(-21, 21, 5), [-20, -10, 0, 10, 20])
    np.testing.assert_allclose(ticks(3e6, 8e6, 5), [3e6, 4e6, 5e6, 6e6, 7e6, 8e6])


@pytest.mark.long
@pytest.mark.parametrize("width", [1280, 500])
def test_a_browser_shows_it_without_complaint_and_without_scrolling_sideways(page, tmp_path, width):
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium or google-chrome is installed")
    measure = (
        "<script>document.title = JSON.stringify([innerWidth, document.documentElement.scrollWidth,"
        "[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)])</script></body>"
    )
    (tmp_path / "page.html").write_text(page.replace("</body>", measure))
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900"]
    done = subprocess.run([*command, f"file://{tmp_path / 'page.html'}"], capture_output=True, text=True, timeout=180)
    assert "CONSOLE" not in done.stderr
    inner, scrolled, pictures = json.loads(re.search("<title>(.*?)</title>", done.stdout)[1])
    assert scrolled <= inner
    assert min(pictures) > 250
