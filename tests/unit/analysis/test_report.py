"""The report: every number in it is that of the files, and a browser shows it without complaint."""

import json
import re
import shutil
import subprocess
import sys
from html import escape, unescape
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from logged import log_run
from report_oracle import Stored, Tables, drawn_lines, expected_tables

from hpcrl.analysis import load
from hpcrl.analysis.charts import ticks
from hpcrl.analysis.figure_files import write_figures
from hpcrl.analysis.report import report, sections_of, write_report
from hpcrl.config import from_dict, to_toml
from hpcrl.errors import StorageError

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "0.1.0" / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A few seconds of catch, with everything in its log."""
    run_dir = tmp_path_factory.mktemp("trained") / "catch"
    keys = {
        **{"run.total_updates": 400, "run.evaluation_period_updates": 150, "run.evaluation_episodes": 6},
        **{"topology.evaluators": 1, "replay.sampling": "prioritized", "log.norms": 50, "log.period_seconds": 0.5},
        **{"learner.outlier_deviations": 2.0, "checkpoint.period_seconds": 1.0},
    }
    options = [part for key, value in keys.items() for part in ("--set", f"{key}={value}")]
    config = ROOT / "configs" / "catch_serial.toml"
    command = [sys.executable, "-m", "hpcrl", "train", config, "--run-dir", run_dir, *options]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    return load(run_dir)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs")
    logged = [log_run(directory / f"pong-{seed}", seed=seed, norms=True) for seed in (1, 2)]
    return [*logged, log_run(directory / "small", seed=3, bundles=1, rows=40, learning_rate=0.5)]


@pytest.fixture(scope="module")
def page(runs):
    return report(runs)


@pytest.fixture(scope="module")
def tables(page):
    return Tables(page)


@pytest.fixture(scope="module")
def expected(runs):
    one, two, small = (Stored(run.path) for run in runs)
    return expected_tables({"pong, 2 seeds": [one, two], "small": [small]})


def assert_same(found, expected):
    """Every table is one of those expected, and each of its cells the text or the number that it must be."""
    assert sorted(found) == sorted(expected)
    for name, rows in expected.items():
        assert [len(row) for row in found[name]] == [len(row) for row in rows], name
        for row, other in zip(found[name], rows, strict=True):
            for cell, value in zip(row, other, strict=True):
                same = cell == value if isinstance(value, str) else cell == pytest.approx(value, nan_ok=True)
                assert same, (name, row, other)


def test_every_number_of_every_table_is_that_of_the_files(tables, expected):
    assert_same(tables.rows, expected)
    assert len(expected) > 30
    for name in (
        "training-replay_age_steps",
        "training-mean_priority",
        "norms-distance",
        "gradients-dropped",
        "reached",
    ):
        assert f"{name}-numbers" in expected


def test_every_number_of_a_run_that_was_trained_is_that_of_its_files(trained):
    expected = expected_tables({trained.name: [Stored(trained.path)]})
    assert_same(Tables(report([trained])).rows, expected)
    assert {"norms-step-numbers", "evaluations-numbers", "gradients-table"} <= set(expected)
    for column in ("replay_age_steps", "mean_priority"):
        assert 0 < trained.last(column) < np.inf
    assert {row[1] for row in expected["norms-table"][1:]} == {"all", *trained.layers}
    assert len(trained.layers) == 3


def test_lines_are_drawn_where_their_numbers_are(page, tables):
    drawn = drawn_lines(page)
    assert len(drawn) >= 15
    for name, lines in drawn.items():
        head, *rows = tables.rows[f"{name}-numbers"]
        columns = [k for k, label in enumerate(head) if k and not re.search(", (low|high)$", label)]
        heights = np.array([row[1:] for row in rows])
        height, width = np.nanmax(heights) - np.nanmin(heights), rows[-1][0] - rows[0][0]
        assert len(lines) == len(columns)
        for line, k in zip(lines, columns, strict=True):
            points = [(row[0], row[k]) for row in rows if row[k] == row[k]]
            assert len(line) == len(points), name
            x, y = (np.array(column) for column in zip(*points, strict=True))
            found_x, found_y = (np.array(column) for column in zip(*line, strict=True))
            np.testing.assert_allclose(found_x, x, atol=0.01 * width, err_msg=name)
            np.testing.assert_allclose(found_y, y, atol=0.01 * max(height, 1e-9), err_msg=name)


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
    score = Stored(logged[0].path)["evaluations.mean_return"][-1]  # the same in all four
    expected = np.mean([(score + 20.7) / 30.0, (score - 1.7) / 30.1])
    assert found["mean"][head.index("value")] == pytest.approx(expected)


def test_evaluations_from_surrogate_starts_are_labelled_and_stand_beside_no_table(tmp_path):
    run = log_run(tmp_path / "pong", rows=40)
    file = tmp_path / "pong" / "config.toml"
    text = file.read_text()
    for key, value in (("protocol", "human"), ("starts", "starts.h5")):
        text = re.sub(f"evaluation_{key} = .*", f'evaluation_{key} = "{value}"', text)
    file.write_text(text)
    rows = Tables(report([load(run.path)])).rows
    assert rows["evaluations-numbers"][0][1] == "pong (surrogate human starts)"
    head, cells = rows["scores-gorila_noop"]
    returns = Stored(run.path)["episodes.episode_return"]
    assert cells[head.index("mean of")] == f"last {len(returns)} training episodes"
    assert cells[head.index("score")] == pytest.approx(returns.mean())


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


WIDTHS = {"desktop": 1280, "phone": 390}


def test_a_browser_shows_it_at_any_width_without_complaint(page, expected, tmp_path):
    """Nothing on its console, no scrolling sideways, every figure there, every number that of the files."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("no chromium or google-chrome is installed")
    frames = [
        f'<iframe style="width:{width}px;height:900px" srcdoc="{escape(page)}"></iframe>' for width in WIDTHS.values()
    ]
    look = """<script>onload = () => {
        const pages = [...document.querySelectorAll("iframe")].map(frame => frame.contentDocument.documentElement)
        const sizes = pages.map(page => [page.clientWidth, page.scrollWidth,
            [...page.querySelectorAll("figure svg")].map(svg => svg.getBoundingClientRect().width),
            [...page.querySelectorAll("figure")].map(figure => figure.id)])
        document.title = JSON.stringify(sizes)
        const shown = document.createElement("textarea")
        shown.textContent = pages[0].outerHTML
        document.body.replaceChildren(shown)
    }</script>"""
    (tmp_path / "frames.html").write_text(f"<title></title>{look}{''.join(frames)}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", f"file://{tmp_path / 'frames.html'}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert "CONSOLE" not in done.stderr, done.stderr
    figures = sorted(re.findall('<figure id="([^"]*)"', page))
    sizes = json.loads(unescape(re.search("<title>(.*?)</title>", done.stdout)[1]))
    for width, (inner, scrolled, pictures, there) in zip(WIDTHS.values(), sizes, strict=True):
        assert width - 20 <= inner <= width
        assert scrolled <= inner
        assert sorted(there) == figures
        assert len(pictures) == len(figures)
        assert min(pictures) > 250
    assert_same(Tables(unescape(re.search("<textarea>(.*)</textarea>", done.stdout, re.S)[1])).rows, expected)


def test_its_figures_are_files_too(runs, tmp_path):
    figures = {figure.name: figure for section in sections_of(runs) for figure in section.figures()}
    chosen = [figures[name] for name in ("learning-frames", "normalised-gorila_noop", "delays-small")]
    written = write_figures(chosen, tmp_path / "figures")
    assert sorted(path.name for path in written) == sorted(
        f"{figure.name}{suffix}" for figure in chosen for suffix in (".png", ".svg")
    )
    assert all(path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" for path in written if path.suffix == ".png")
    assert all(ElementTree.parse(path) for path in written if path.suffix == ".svg")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write .*file"):
        write_figures(chosen, tmp_path / "file")
