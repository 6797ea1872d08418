"""Files made to do harm when they are read: they are refused, and nothing outside them is opened."""

import json
import pickle

import h5py
import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.replay import local_lanes
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage.replay import Priorities, ReplayCut, ReplayFile
from hpcrl.storage.statefile import read_state, write_state


class Bomb:
    def __reduce__(self):
        return pytest.fail, ("a pickle was loaded",)


def soft_link(group, target):
    group["bad"] = h5py.SoftLink("/arrays/params")


def dangling_link(group, target):
    group["bad"] = h5py.SoftLink("/nothing")


def external_link(group, target):
    group["bad"] = h5py.ExternalLink(str(target), "/secret")


def external_storage(group, target):
    group.create_dataset("bad", shape=(10,), dtype="u1", external=[(str(target), 0, 10)])


def virtual_dataset(group, target):
    layout = h5py.VirtualLayout(shape=(10,), dtype="i8")
    layout[:] = h5py.VirtualSource(str(target), "secret", shape=(10,))
    group.create_virtual_dataset("bad", layout)


def texts(group, target):
    group["bad"] = ["os.system('true')"]


def pickled(group, target):
    group["bad"] = np.void(pickle.dumps(Bomb()))


def references(group, target):
    group.create_dataset("bad", data=np.array([group.ref], dtype=object), dtype=h5py.ref_dtype)


def ragged(group, target):
    group.create_dataset("bad", shape=(2,), dtype=h5py.vlen_dtype(np.int32))


def named_type(group, target):
    group["bad"] = np.dtype("f8")


def unknown_filter(group, target):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((10,))
    properties.set_filter(4242, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((10,))
    h5py.h5d.create(group.id, b"bad", h5py.h5t.STD_I64LE, space, dcpl=properties)


def enormous(group, target):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_LATE)
    h5py.h5d.create(group.id, b"bad", h5py.h5t.STD_I64LE, h5py.h5s.create_simple((2**50,)), dcpl=properties)


CRAFTED = [
    soft_link,
    dangling_link,
    external_link,
    external_storage,
    virtual_dataset,
    texts,
    pickled,
    references,
    ragged,
    named_type,
    unknown_filter,
    enormous,
]


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "target.h5"
    with h5py.File(path, "w") as file:
        file["secret"] = np.arange(10)
    return path


@pytest.mark.parametrize("craft", CRAFTED, ids=lambda craft: craft.__name__)
@pytest.mark.parametrize("where", ["arrays", "arrays/nested"])
def test_a_crafted_state_is_refused(tmp_path, target, craft, where):
    path = tmp_path / "learner-0.h5"
    write_state(path, "learner", {"params": np.zeros(3), "nested": {"more": 1}}, {})
    with h5py.File(path, "r+") as file:
        craft(file[where], target)
    with pytest.raises(StorageError, match="learner-0.h5.*bad"):
        read_state(path, "learner")


@pytest.mark.parametrize("name", ["arrays", "attributes"])
def test_a_group_that_is_a_link_is_refused(tmp_path, target, name):
    path = tmp_path / "learner-0.h5"
    write_state(path, "learner", {"params": np.zeros(3)}, {})
    with h5py.File(path, "r+") as file:
        del file[name]
        file[name] = h5py.ExternalLink(str(target), "/")
    with pytest.raises(StorageError, match=f"{name} in the file itself, found a link of kind ExternalLink"):
        read_state(path, "learner")


@pytest.mark.parametrize("value", [pickle.dumps(Bomb()), b"\x80", 7, "__import__('os')"])
def test_an_attribute_that_is_no_json_is_refused(tmp_path, value):
    path = tmp_path / "learner-0.h5"
    write_state(path, "learner", {}, {})
    with h5py.File(path, "r+") as file:
        file["attributes"].attrs["rng"] = np.void(value) if isinstance(value, bytes) else value
    with pytest.raises(StorageError, match="cannot read .*learner-0.h5"):
        read_state(path, "learner")


@pytest.mark.parametrize("craft", CRAFTED, ids=lambda craft: craft.__name__)
@pytest.mark.parametrize("name", ["records/frame", "records/action", "begin", "priority", "priority_low"])
def test_a_crafted_replay_is_refused(tmp_path, target, craft, name):
    path = tmp_path / "replay-0.h5"
    lanes = local_lanes(1, (3,), np.int32, capacity=20, stack=2, n_step=1)
    priorities = Priorities(np.zeros((1, 20)), np.zeros(1, np.int64), 1.0)
    ReplayCut(lanes.memory, lanes.cursors, capacity=20, stack=2, n_step=1, priorities=priorities).write(path)
    ReplayFile(path).close()
    with h5py.File(path, "r+") as file:
        craft(file, target)
        del file[name]
        file.move("bad", name)
    with pytest.raises(StorageError, match=f"replay-0.h5.*{name}"):
        ReplayFile(path)


def test_a_manifest_names_no_files_elsewhere(tmp_path):
    directory = checkpoints.begin(tmp_path, 1)
    write_state(checkpoints.state_path(directory, "learner-0"), "learner", {}, {})
    found = checkpoints.finish(directory, ["learner-0"], [], {})
    path = found.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"]["../../../etc/learner-0"] = manifest["files"].pop("learner-0")
    path.write_text(json.dumps(manifest))
    assert checkpoints.latest(tmp_path)[0] is None
    with pytest.raises(StorageError, match="expected the name of an owner"):
        checkpoints.read_manifest(found.path)
