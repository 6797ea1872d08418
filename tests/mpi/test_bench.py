"""The ranks of ``hpcrl bench transport`` and ``scale``, on vectors that are too small to say anything about speed."""

import pytest
from launching import ROOT, mpiexec

from hpcrl.bench import scale, transport
from hpcrl.bench._updates import OPTIMIZERS

pytestmark = pytest.mark.one_mpi


@pytest.mark.parametrize(
    ("servers", "parts"), [(1, ["pull", "push", "update", "ring", "counter"]), (2, ["pull", "push"])]
)
def test_every_figure_comes_in_pairs(servers, parts, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    figures = transport.measure([mpiexec()], 1000, servers, parts, tmp_path)
    names = {"update": [f"update.{name}" for name in OPTIMIZERS], "ring": ["ring.batches", "ring.singles"]}
    assert list(figures) == [name for part in parts for name in names.get(part, [part])]
    for name, pairs in figures.items():
        assert len(pairs) >= 7, name
        assert all(ours > 0 and bare > 0 for ours, bare in pairs), name


def test_a_job_of_bench_scale_trains_counts_and_leaves_a_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    sleeps = {"simulate": 1e-3, "infer": 1e-3, "gradient": 3e-3}
    found = scale.measure([mpiexec()], tmp_path, 1, 2, sleeps, 5.0, parameters=5000)
    assert 0 < found.updates_per_second < found.bound == 400
    assert found.delays.sum() > 0  # from the run log: gradients that were applied, by delay
    assert found.pulls.size
    assert found.pushes.size
    assert found.cores > 0
    assert found.bundle_own_bytes < found.bundle_bytes < found.server_bytes  # a bundle has not loaded torch
