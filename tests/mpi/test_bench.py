"""The ranks of ``hpcrl bench transport``, on a vector that is too small to say anything about speed."""

import pytest
from launching import ROOT, mpiexec

from hpcrl.bench import transport
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
