"""docs/hdf5.md says what is in the files of a run: it agrees with the code, and the code with the files."""

import fnmatch
import json
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from hpcrl.storage import schema
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.states import REPLAY, STATES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "hdf5.md").read_text().splitlines()
CONFIG = ROOT / "tests" / "golden" / "everything.toml"
ROLLOUTS = [
    "secondary.batch_size=0",
    "learning.algorithm=ppo",
    "policy.horizon_steps=40",
    "learner.outlier_deviations=0.0",
]
"""What makes of that a run without replay; at its end, a rollout is learned from."""


def tables():
    """The rows of all tables of the page, as one list for each heading."""
    found, heading = {}, ""
    for line in PAGE:
        if line.startswith("#"):
            heading = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith("|---"):
            found.setdefault(heading, []).append(line)
    return found


def test_versions_are_those_of_the_page():
    rows = {row.split(" | ")[0].strip("| `"): row.split(" | ")[1] for row in tables()["The files of a run"]}
    assert {name: rows.get(name) for name in schema.VERSIONS} == {n: str(v) for n, v in schema.VERSIONS.items()}


@pytest.mark.parametrize("name", schema.TABLES)
def test_tables_of_the_run_log_are_those_of_the_page(name):
    expected = [f"| `{column}` | {c.dtype} | {c.unit} | {c.meaning} |" for column, c in schema.TABLES[name].items()]
    assert tables()[f"Table `{name}`"][1:] == expected


@pytest.mark.parametrize("name", [*STATES, "replay"])
def test_arrays_of_a_checkpoint_are_those_of_the_page(name):
    arrays = REPLAY if name == "replay" else STATES[name]
    heading = f"Replay files: `{name}-K.h5`" if name == "replay" else f"`{name}-K.h5`"
    rows = [f"| `{array}` | {a.dtype} | {a.shape} | {a.unit} | {a.meaning} |" for array, a in arrays.items()]
    assert [row for row in tables()[heading] if row.count(" | ") == 4][1:] == rows


@pytest.fixture(scope="module")
def run_dirs(tmp_path_factory):
    """Short runs of everything in one process: from a replay memory, and from rollouts."""
    directory = tmp_path_factory.mktemp("run")
    for name, further in (("dqn", []), ("ppo", ROLLOUTS)):
        command = [sys.executable, "-m", "hpcrl", "train", CONFIG, "--run-dir", directory / name]
        command += [f"--set={key}" for key in ("run.total_updates=60", *further)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=ROOT, check=False)
        assert done.returncode == 0, done.stderr
    return [directory / "dqn", directory / "ppo"]


@pytest.fixture(scope="module")
def run_dir(run_dirs):
    return run_dirs[0]


def datasets(file):
    found = {}
    file.visititems(lambda name, item: found.update({name: item}) if isinstance(item, h5py.Dataset) else None)
    return found


def has_shape(dataset, shape):
    """Whether a dataset has as many dimensions as a shape in words, or at least those before its dots."""
    dimensions = [word for word in shape.strip("[]").split(", ") if word]
    if dimensions[-1:] == ["..."]:
        return dataset.ndim >= len(dimensions) - 1
    return shape == "any" or dataset.ndim == len(dimensions)


def misfits(found, arrays):
    """Datasets that the schema does not know, or knows as something else."""
    wrong = []
    for name, dataset in found.items():
        dtype = "record" if dataset.dtype.names else str(dataset.dtype)
        known = [array for pattern, array in arrays.items() if fnmatch.fnmatch(name, pattern)]
        known = [array for array in known if array.dtype in ("any", dtype)]
        if not any(has_shape(dataset, shape) for array in known for shape in array.shape.split(" or ")):
            wrong.append(f"{name} {dtype} {dataset.shape}")
    return wrong


def test_checkpoints_hold_what_the_schema_says_and_nothing_else(run_dirs):
    names: dict[str, list[str]] = {}
    for checkpoint in (latest(run_dir)[0] for run_dir in run_dirs):
        for owner, file in checkpoint.files.items():
            kind = owner.rpartition("-")[0]
            with h5py.File(checkpoint.path / file["name"]) as h5:
                assert h5.attrs["file_type"] == kind
                found = datasets(h5 if kind == "replay" else h5[schema.ARRAYS_GROUP])
                assert misfits(found, REPLAY if kind == "replay" else STATES[kind]) == []
                names.setdefault(kind, []).extend(found)
    for kind, found in names.items():
        patterns = REPLAY if kind == "replay" else STATES[kind]
        assert [pattern for pattern in patterns if not fnmatch.filter(found, pattern)] == []
    assert names.keys() >= STATES.keys()


def test_the_run_log_and_the_manifest_hold_what_the_page_says(run_dir):
    with h5py.File(run_dir / "runlog-000.h5", "r", swmr=True) as file:
        for table, columns in schema.TABLES.items():
            assert file[table].keys() == {*columns, schema.COMMITTED_ROWS}
            for name, column in columns.items():
                assert file[table][name].dtype == column.dtype
                assert dict(file[table][name].attrs) == {"unit": column.unit, "meaning": column.meaning}
        attributes = "\n".join(PAGE)
        assert all(f"`{name}`" in attributes for name in file.attrs)
    manifest = json.loads((latest(run_dir)[0].path / schema.MANIFEST_FILE).read_text())
    rows = " ".join(tables()["Checkpoint: `checkpoints/step-NNNNNNNNNNNN/`"] + tables()["The files of a run"])
    assert all(f"`{name}`" in rows for name in manifest)


def test_files_end_where_their_content_does(run_dir):
    """Space that was reserved against a full disk is given back."""
    for path in [run_dir / "runlog-000.h5", *latest(run_dir)[0].path.glob("*.h5")]:
        with h5py.File(path, "r") as file:
            assert path.stat().st_size <= file.id.get_filesize()
