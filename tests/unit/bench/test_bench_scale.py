"""``hpcrl bench scale``: its rows, its stretched sleeps and its cost model; nothing is started."""

import dataclasses

import numpy as np
import pytest

from hpcrl.analysis.scaling import MEASURED, Cluster, predict
from hpcrl.bench import read_json, scale
from hpcrl.bench.scale import Found

FOUND = Found(
    servers=2,
    bundles=8,
    vector_bytes=4000,
    sleep_seconds=0.5,
    updates_per_second=12.0,
    cores=1.0,
    server_processor_seconds=4e-3,
    bundle_processor_seconds=6e-3,
    server_busy=0.2,
    pulls=np.array([1e-3, 2e-3, 3e-3]),
    pushes=np.array([2e-3]),
    delays=np.array([0, 1, 0, 3]),
    ready_seconds=2.5,
    start_seconds=3.0,
    stop_seconds=2.0,
    server_bytes=2e8,
    bundle_bytes=1e8,
    bundle_own_bytes=5e7,
)


def test_a_jobs_ratio_is_its_rate_over_that_of_bundles_that_only_compute():
    rows = {row.name: row for row in scale.figure_rows("idle", FOUND)}
    assert rows["scale.idle.2+8.bound"].value == 16.0
    assert rows["scale.idle.2+8"].ratio == rows["scale.idle.2+8.ratio"].value == 0.75
    assert rows["scale.idle.2+8.pull.p50"].value == 2.0
    assert rows["scale.idle.2+8.delay"].value == 2.5
    assert rows["scale.idle.2+8.cores"].value == 1.0 / scale.CORES


def test_sleeps_are_stretched_until_half_of_the_cores_is_idle_and_never_shortened():
    stretch = scale.stretched([FOUND], 4, 100, 0.01)
    rate = 100 / (stretch * 0.01)
    assert rate * (6e-3 + 2 * 4e-3) == pytest.approx(0.5 * scale.CORES)
    assert scale.stretched([FOUND], 1, 1, 100.0) == 1.0


def test_the_model_is_tried_on_jobs_that_it_was_not_fitted_to():
    found, costs = {}, dataclasses.replace(MEASURED, bundle_idle=0.0, server_idle=0.0)
    for series, servers, bundles in scale.JOBS:
        job = {"vector_bytes": 4 * scale.PARAMETERS // (8 if series == "small" else 1), "compute_seconds": 1.0}
        cluster = Cluster(scale.CORES)
        rate = predict(costs, cluster, servers=servers, bundles=bundles, **job, computes=False)
        nbytes = job["vector_bytes"]
        found[series, servers, bundles] = FOUND._replace(
            servers=servers,
            bundles=bundles,
            vector_bytes=nbytes,
            sleep_seconds=1.0,
            updates_per_second=rate.updates_per_second,
            bundle_processor_seconds=costs.bundle_update + costs.bundle_message * servers + costs.bundle_byte * nbytes,
            server_processor_seconds=servers * costs.server_gradient + costs.server_byte * nbytes,
        )
    rows = {row.name: row.value for row in scale.model_rows(found)[0]}
    assert {name for name in rows if name.startswith("scale.cost.")} == {f"scale.cost.{c}" for c in vars(costs)}
    ratios = [rows[f"scale.model.{series}.{s}+{b}.ratio"] for series, s, b in scale.HELD_OUT]
    assert ratios == pytest.approx([1.0] * len(ratios), abs=0.02)
    assert set(scale.HELD_OUT) < set(scale.JOBS)


def test_the_papers_shape_is_among_the_jobs():
    assert ("idle", 31, 100) in scale.JOBS


def test_run_measures_every_job_and_tries_the_model(tmp_path, monkeypatch):
    jobs = []

    def measure(launcher, directory, servers, bundles, sleeps, seconds, *, parameters):
        jobs.append((servers, bundles))
        sleep = sum(sleeps.values())
        rate = 0.5 * bundles / sleep
        return FOUND._replace(
            servers=servers, bundles=bundles, vector_bytes=4 * parameters, sleep_seconds=sleep, updates_per_second=rate
        )

    monkeypatch.setattr(scale, "measure", measure)
    monkeypatch.setattr(scale, "measured_sleeps", lambda: {"simulate": 1e-3, "infer": 2e-3, "gradient": 1e-2})
    scale.run(tmp_path / "rows.json")
    assert jobs == [job[1:] for job in scale.JOBS]
    names = {row.name for row in read_json(tmp_path / "rows.json")}
    assert {"scale.full.1+1.ratio", "scale.idle.31+100.start", "scale.cost.server_byte"} <= names
    assert {f"scale.model.{series}.{s}+{b}.ratio" for series, s, b in scale.HELD_OUT} <= names


def test_equal_jobs_do_not_meet_in_one_directory(tmp_path, monkeypatch):
    directories = []
    monkeypatch.setattr(scale._jobs, "figures", lambda *arguments: {"ranks": []})
    monkeypatch.setattr(scale, "read", lambda ranks, spec, begin, end: directories.append(spec["run_dir"]))
    for _ in range(2):
        scale.measure(["mpiexec"], tmp_path, 1, 1, {"simulate": 1e-3, "infer": 2e-3, "gradient": 1e-2})
    assert len(set(directories)) == 2
