"""Learning curves from run logs, and the published ones beside them."""

import subprocess
import sys

import numpy as np
import pytest

from hpcrl.analysis import curves
from hpcrl.analysis.curves import Curve, compare, learning_curve, plot, published_agents, published_curve
from hpcrl.config import from_dict, to_toml
from hpcrl.storage import schema
from hpcrl.storage.runlog import RunLog


@pytest.fixture
def run_dir(tmp_path):
    """A run of Pong under the dopamine protocol: 2.5M frames, one episode of return -20 + k every 0.1M frames."""
    (tmp_path / "config.toml").write_text(to_toml(from_dict({"env": {"id": "ALE/Pong-v5", "protocol": "dopamine"}})))
    log = RunLog(tmp_path, {"seed": 1})
    for k in range(1, 26):
        row = {"wall_seconds": k, "total_frames": k * 100_000, "global_update": k}
        log.append("episodes", row | {"actor": 0, "simulator": 0, "episode_return": -20.0 + k, "length_steps": 1000})
        log.append("progress", dict.fromkeys(schema.TABLES["progress"], 0) | row)
    log.close()
    return tmp_path


def test_a_point_is_the_mean_of_the_episodes_that_ended_in_its_stretch(run_dir):
    curve = learning_curve(run_dir, 1_000_000)
    np.testing.assert_array_equal(curve.frames, [1_000_000, 2_000_000])  # the third million is not complete
    np.testing.assert_allclose(curve.mean, [-20 + np.mean(range(1, 11)), -20 + np.mean(range(11, 21))])


def test_a_stretch_without_an_episode_is_nan(run_dir):
    mean = learning_curve(run_dir, 50_000).mean
    assert np.isnan(mean[0])
    assert mean[1] == -19


def test_published_curve_is_the_table():
    curve = published_curve("pong", "DQN")
    assert dict(zip(curve.frames.tolist(), curve.mean.tolist(), strict=True))[5_000_000] == -15.36
    assert (curve.low <= curve.mean).all()
    assert (curve.mean <= curve.high).all()
    assert published_agents("no such game") == []


def test_compare_says_inside_or_outside_at_equal_frames():
    reference = Curve(*map(np.array, ([10, 20, 30], [0.0, 0.0, 0.0], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0])))
    mine = np.array([0.5, 2.0])
    rows = compare(Curve(np.array([10, 20]), mine, mine, mine), reference)
    assert [(frames, inside) for frames, *_, inside in rows] == [(10, True), (20, False)]


def test_plot_writes_a_picture_and_says_where_the_run_lies(run_dir, tmp_path):
    said = plot([run_dir], tmp_path / "curve.png", 250_000)
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert any("at 2M frames: -4.50, above the published spread of Dopamine DQN (" in line for line in said)


def test_analysis_needs_neither_mpi_nor_torch():
    code = f"import sys, {curves.__name__}; print([m for m in ('mpi4py', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
