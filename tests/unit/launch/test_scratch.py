"""The scratch directory: filled in on each node, of this job alone, removed at the end."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from hpcrl.config import from_dict
from hpcrl.errors import ConfigError, StorageError
from hpcrl.launch.train import make_scratch


def run_config(scratch_dir):
    return from_dict({"run": {"name": "a", "scratch_dir": scratch_dir}}).run


def test_every_job_has_one_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "local"))
    run = run_config("$SLURM_TMPDIR/{name}")
    assert run.scratch_dir == "$SLURM_TMPDIR/{name}"  # as it stands in the run's config.toml, for whoever resumes it
    with ExitStack() as held:
        first, second = make_scratch(run, held), make_scratch(run, held)
        assert first.parent == second.parent == tmp_path / "local" / "a"
        assert first != second
        (first / "left").touch()
    assert not list((tmp_path / "local" / "a").iterdir())


def test_a_place_that_is_none_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_TMPDIR", raising=False)
    run = run_config("$SLURM_TMPDIR/x")  # fine on a login node, which has none
    with ExitStack() as held:
        with pytest.raises(ConfigError, match=r"run.scratch_dir: expected a path whose variables are all set"):
            make_scratch(run, held)
        (tmp_path / "file").touch()
        with pytest.raises(StorageError, match="run.scratch_dir: cannot write"):
            make_scratch(run_config(str(Path(tmp_path / "file" / "x"))), held)
