"""A checkpoint is complete and verified, or it is ignored; and it comes back exactly."""

import hashlib
import json
import os
import re

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcrl.errors import StorageError
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage import schema
from hpcrl.storage.statefile import flatten, read_state, write_state

OWNERS = ["parameter_server-0", "learner-0"]


def write(run_dir, global_update, value=None, absent=()):
    """Write a checkpoint in which every array is filled with `value`."""
    directory = checkpoints.begin(run_dir, global_update)
    for owner in OWNERS:
        array = np.full(1000, global_update if value is None else value, np.float32)
        path = checkpoints.state_path(directory, owner)
        write_state(path, owner.partition("-")[0], {"params": array}, {"version": global_update})
    return checkpoints.finish(directory, OWNERS, list(absent), {"total_frames": 4 * global_update})


def names(run_dir):
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


def step(global_update):
    return f"step-{global_update:012d}"


def test_round_trip_of_state(tmp_path):
    generator = np.random.default_rng(3)
    arrays = {
        "params": np.arange(5, dtype=np.float32),
        "optimizer": {"moment": {"first": np.ones((2, 3)), "empty": np.zeros((0, 4), np.uint8)}, "steps": 7},
        "flags": np.array([True, False]),
        "records": np.array([(1, 2.0)], dtype=[("action", "i4"), ("reward", "f4")]),
        "nan": np.float64("nan"),
    }
    attributes = {"rng": generator.bit_generator.state, "none": None, "text": "é" * 200_000, "n": np.int64(4)}
    write_state(tmp_path / "learner-0.h5", "learner", arrays, attributes)
    found, found_attributes = read_state(tmp_path / "learner-0.h5", "learner")
    expected = flatten(arrays)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
    assert found_attributes == attributes
    restored = np.random.default_rng(0)
    restored.bit_generator.state = found_attributes["rng"]
    assert restored.random() == generator.random()


nested = st.recursive(
    st.integers(-(2**63), 2**63 - 1).map(np.int64) | st.lists(st.floats(width=32)).map(np.float32),
    lambda children: st.dictionaries(st.text("abc", min_size=1, max_size=3), children, min_size=1, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=3), nested, max_size=3))
def test_flatten_loses_nothing(state):
    def unflatten(flat):
        nested = {}
        for name, array in flat.items():
            *parents, leaf = name.split("/")
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[leaf] = array
        return nested

    def equal(a, b):
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(equal(a[name], b[name]) for name in a)
        return np.array_equal(a, b, equal_nan=True)

    assert equal(unflatten(flatten(state)), state)


@pytest.mark.parametrize("value", [object(), "text", None, 2**70, [1, [2, 3]]])
def test_what_only_pickle_could_hold_is_refused_by_name(tmp_path, value):
    with pytest.raises((StorageError, ValueError), match="outer/inner|inhomogeneous"):
        write_state(tmp_path / "x.h5", "learner", {"outer": {"inner": value}}, {})
    assert not (tmp_path / "x.h5").exists()


def test_attribute_that_json_cannot_hold_is_refused_by_name(tmp_path):
    with pytest.raises(StorageError, match="'bad'"):
        write_state(tmp_path / "x.h5", "learner", {}, {"bad": object()})


def test_type_and_version_are_checked(tmp_path, monkeypatch):
    path = tmp_path / "learner-0.h5"
    write_state(path, "learner", {}, {})
    with pytest.raises(StorageError, match="expected .*'actor', found type 'learner'"):
        read_state(path, "actor")
    monkeypatch.setitem(schema.VERSIONS, "learner", 2)
    with pytest.raises(StorageError, match="expected 'learner' version 2, found version 1"):
        read_state(path, "learner")
    with pytest.raises(StorageError, match="unknown file type 'lerner'"):
        write_state(tmp_path / "y.h5", "lerner", {}, {})


def test_state_file_is_never_overwritten(tmp_path):
    path = tmp_path / "learner-0.h5"
    write_state(path, "learner", {"a": 1}, {})
    with pytest.raises(StorageError, match="learner-0.h5"):
        write_state(path, "learner", {"a": 2}, {})
    assert read_state(path, "learner")[0]["a"] == 1


def test_latest_is_the_newest_and_says_what_it_holds(tmp_path):
    assert checkpoints.latest(tmp_path) == (None, [])
    write(tmp_path, 100)
    write(tmp_path, 200, absent=["actor-3"])
    found, skipped = checkpoints.latest(tmp_path)
    assert (found.global_update, found.number, skipped) == (200, 2, [])
    assert found.path == checkpoints.checkpoint_dir(tmp_path, 200)
    assert (list(found.owners), found.absent, found.attributes) == (OWNERS, ("actor-3",), {"total_frames": 800})
    arrays, attributes = read_state(checkpoints.state_path(found.path, "learner-0"), "learner")
    assert arrays["params"][0] == 200
    assert attributes == {"version": 200}


def damage_flip(directory):
    path = checkpoints.state_path(directory, "learner-0")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_truncate(directory):
    os.truncate(checkpoints.state_path(directory, "learner-0"), 100)


def damage_lose(directory):
    checkpoints.state_path(directory, "parameter_server-0").unlink()


def damage_manifest(directory):
    os.truncate(directory / "manifest.json", 60)


def damage_no_manifest(directory):
    (directory / "manifest.json").unlink()


def damage_newer_version(directory):
    """Written by a later hpcrl, soundly: the checksum is right."""
    path = checkpoints.state_path(directory, "learner-0")
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 99
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest["files"]["learner-0"] = {
        "name": path.name,
        "bytes": path.stat().st_size,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }
    (directory / "manifest.json").write_text(json.dumps(manifest))


def damage_newer_manifest(directory):
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 99}))


def damage_foreign_manifest(directory):
    (directory / "manifest.json").write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        damage_flip,
        damage_truncate,
        damage_lose,
        damage_newer_version,
        damage_manifest,
        damage_no_manifest,
        damage_newer_manifest,
        damage_foreign_manifest,
    ],
    ids=lambda damage: damage.__name__,
)
def test_latest_falls_back_and_says_what_it_skipped(tmp_path, damage):
    write(tmp_path, 100)
    newest = write(tmp_path, 200)
    damage(newest.path)
    found, skipped = checkpoints.latest(tmp_path)
    assert found.global_update == 100
    assert [path for path, _ in skipped] == [newest.path]
    assert all(reason for _, reason in skipped)


@pytest.mark.parametrize(
    ("damage", "what"),
    [
        (damage_flip, "expected sha256 [0-9a-f]{64}, found"),
        (damage_truncate, r"expected bytes \d+, found 100"),
        (damage_lose, "cannot read .*parameter_server-0.h5: No such file"),
        (damage_newer_version, "expected 'learner' version 1, found version 99, written by hpcrl .* read it with that"),
        (damage_newer_manifest, "manifest.json: expected 'manifest' version .*, found version 99"),
    ],
)
def test_the_reason_says_what_is_wrong(tmp_path, damage, what):
    damage(write(tmp_path, 100).path)
    _, ((_, reason),) = checkpoints.latest(tmp_path)
    assert re.search(what, reason), reason


def test_after_falling_back_the_newly_written_is_the_newest(tmp_path):
    write(tmp_path, 100)
    damage_flip(write(tmp_path, 200).path)
    write(tmp_path, 150)
    assert checkpoints.latest(tmp_path)[0].global_update == 150
    checkpoints.prune(tmp_path, keep_last=1, keep_every=0)
    assert names(tmp_path) == [step(150)]


@pytest.mark.parametrize("point", ["state_files", "fsync", "_give_final_name", "to_json"])
def test_a_kill_while_finishing_leaves_the_one_before(tmp_path, monkeypatch, point):
    class Killed(BaseException):
        pass

    def kill(*_, **__):
        raise Killed

    write(tmp_path, 100)
    directory = checkpoints.begin(tmp_path, 200)
    for owner in OWNERS:
        write_state(checkpoints.state_path(directory, owner), owner.partition("-")[0], {}, {})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, point, kill)
        with pytest.raises(Killed):
            checkpoints.finish(directory, OWNERS, [], {})
    assert checkpoints.latest(tmp_path)[0].global_update == 100
    assert checkpoints.clean(tmp_path) == [directory]
    assert names(tmp_path) == [step(100)]
    assert write(tmp_path, 200).number == 2


def test_finishing_without_an_owners_file_names_it(tmp_path):
    directory = checkpoints.begin(tmp_path, 1)
    with pytest.raises(StorageError, match="step-000000000001.tmp"):
        checkpoints.finish(directory, ["learner-0"], [], {})
    checkpoints.discard(directory)
    assert names(tmp_path) == []


def test_beginning_again_removes_the_failed_attempt(tmp_path):
    directory = checkpoints.begin(tmp_path, 1)
    (directory / "junk").write_text("x")
    assert checkpoints.begin(tmp_path, 1) == directory == checkpoints.unfinished_dir(tmp_path, 1)
    assert list(directory.iterdir()) == []


def test_the_same_update_again_replaces(tmp_path):
    write(tmp_path, 0, value=1.0)
    again = write(tmp_path, 0, value=2.0)
    assert names(tmp_path) == [step(0)]
    assert again.number == 2
    path = checkpoints.state_path(checkpoints.latest(tmp_path)[0].path, "learner-0")
    assert read_state(path, "learner")[0]["params"][0] == 2.0


def test_a_kill_between_the_two_renames_is_undone(tmp_path):
    done = write(tmp_path, 5)
    done.path.rename(done.path.with_name(step(5) + ".old"))
    assert checkpoints.clean(tmp_path) == []
    assert checkpoints.latest(tmp_path)[0].global_update == 5


def test_prune_keeps_the_last_and_every_mth(tmp_path):
    for global_update in range(10, 110, 10):
        write(tmp_path, global_update)
        checkpoints.prune(tmp_path, keep_last=2, keep_every=4)
    assert names(tmp_path) == [step(update) for update in (40, 80, 90, 100)]
    assert checkpoints.prune(tmp_path, keep_last=1, keep_every=0) == [
        checkpoints.checkpoint_dir(tmp_path, update) for update in (40, 80, 90)
    ]


def test_prune_never_removes_all(tmp_path):
    write(tmp_path, 1)
    assert checkpoints.prune(tmp_path, keep_last=0, keep_every=0) == []


def test_manifest_is_readable_text_without_hpcrl(tmp_path):
    manifest = json.loads((write(tmp_path, 7).path / "manifest.json").read_text())
    assert manifest["file_type"] == "manifest"
    assert manifest["version"] == schema.VERSIONS["manifest"]
    assert manifest["files"]["learner-0"]["bytes"] > 4000
    assert len(manifest["files"]["learner-0"]["sha256"]) == 64


def test_unwritable_directory_is_a_storage_error(tmp_path):
    (tmp_path / "checkpoints").write_text("a file in the way")
    with pytest.raises(StorageError, match="checkpoints/step-000000000001.tmp"):
        checkpoints.begin(tmp_path, 1)
    with pytest.raises(StorageError, match="nowhere/learner-0.h5: No such file"):
        write_state(tmp_path / "nowhere" / "learner-0.h5", "learner", {}, {})
