"""Learning curves from run logs, and the published ones beside them."""

import numpy as np
import pytest

from hpcrl.analysis import load
from hpcrl.analysis.curves import (
    Curve,
    compare,
    default_stretch,
    experiment_curve,
    learning_curve,
    plot,
    published_agents,
    published_curve,
)
from hpcrl.config import from_dict, to_toml
from hpcrl.errors import ConfigError
from hpcrl.storage import schema
from hpcrl.storage.runlog import RunLog


def make_run(run_dir, seed=1, offset=0.0, length=26):
    """A run of Pong under the dopamine protocol: one episode of return -20 + offset + k every 0.1M frames."""
    run_dir.mkdir(exist_ok=True)
    raw = {"run": {"seed": seed}, "env": {"id": "ALE/Pong-v5", "protocol": "dopamine"}}
    (run_dir / "config.toml").write_text(to_toml(from_dict(raw)))
    log = RunLog(run_dir, {"seed": seed})
    for k in range(1, length):
        row = {"wall_seconds": k, "total_frames": k * 100_000, "global_update": 10 * k}
        episode = {"actor": 0, "simulator": 0, "episode_return": -20.0 + k + offset, "length_steps": 1000}
        log.append("episodes", row | episode)
        log.append("progress", dict.fromkeys(schema.TABLES["progress"], 0) | row | {"loss": 1.0 / k})
    log.close()
    return load(run_dir)


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path / "run")


def test_a_point_is_the_mean_of_the_episodes_that_ended_in_its_stretch(run):
    curve = learning_curve(run, 1_000_000)
    np.testing.assert_array_equal(curve.ends, [1_000_000, 2_000_000])  # the third million is not complete
    np.testing.assert_allclose(curve.mean, [-20 + np.mean(range(1, 11)), -20 + np.mean(range(11, 21))])


def test_a_stretch_without_an_episode_is_nan(run):
    mean = learning_curve(run, 50_000).mean
    assert np.isnan(mean[0])
    assert mean[1] == -19


def test_curves_run_along_time_and_updates_and_show_any_column(run):
    np.testing.assert_allclose(learning_curve(run, 10, "hours").mean, [-14.5, -4.5])
    np.testing.assert_allclose(learning_curve(run, 100, "updates").mean, [-14.5, -4.5])
    np.testing.assert_allclose(learning_curve(run, 100, "updates", "loss").mean[0], np.mean(1 / np.arange(1, 11)))
    with pytest.raises(ConfigError, match="expected an axis"):
        learning_curve(run, 10, "days")
    with pytest.raises(ConfigError, match="expected return, table.column, or a column of progress"):
        learning_curve(run, 10, "hours", "reward")


def test_seeds_have_a_mean_and_a_range_as_far_as_the_shortest_goes(tmp_path):
    runs = [make_run(tmp_path / "1"), make_run(tmp_path / "2", seed=2, offset=4.0, length=16)]
    curve = experiment_curve(runs, 1_000_000)
    assert [*map(list, curve)] == [[1_000_000], [-12.5], [-14.5], [-10.5]]


def test_default_stretch_is_round_and_gives_up_to_100_points(run):
    assert default_stretch([run]) == 50_000
    assert default_stretch([run], "hours") == 1.0
    assert default_stretch([]) == 1.0


def test_published_curve_is_the_table():
    curve = published_curve("pong", "DQN")
    assert dict(zip(curve.ends.tolist(), curve.mean.tolist(), strict=True))[5_000_000] == -15.36
    assert (curve.low <= curve.mean).all()
    assert (curve.mean <= curve.high).all()
    assert published_agents("no such game") == []


def test_compare_says_inside_or_outside_at_equal_frames():
    reference = Curve(*map(np.array, ([10, 20, 30], [0.0, 0.0, 0.0], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0])))
    mine = np.array([0.5, 2.0])
    rows = compare(Curve(np.array([10, 20]), mine, mine, mine), reference)
    assert [(frames, inside) for frames, *_, inside in rows] == [(10, True), (20, False)]


def test_plot_writes_a_picture_and_says_where_the_run_lies(run, tmp_path):
    said = plot([run], tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert any("at 2M frames: -4.50, above the published spread of Dopamine DQN (" in line for line in said)


def test_plot_of_an_empty_run_is_a_picture_too(tmp_path):
    (tmp_path / "config.toml").write_text(to_toml(from_dict({"env": {"id": "catch"}})))
    assert plot([load(tmp_path)], tmp_path / "curve.svg", along="hours", quantity="loss") == []
    assert "<svg" in (tmp_path / "curve.svg").read_text()
