"""Packs: what is in them is read as if each file were one of its own, and a tar program makes those of it."""

import os
import subprocess

import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage.checkpoint import state_path
from hpcrl.storage.packs import StateFile, described_file, open_state, pack, state_files
from hpcrl.storage.statefile import read_state, write_state

OWNERS = ("actor-0", "actor-12")


@pytest.fixture
def packed(tmp_path):
    """A directory with a pack of two actors' states, and what they were as files of their own."""
    (tmp_path / "made").mkdir()
    files = [state_path(tmp_path / "made", owner) for owner in OWNERS]
    for number, path in enumerate(files):
        write_state(path, "actor", {"values": np.arange(100_000) + number}, {"number": number})
    whole = {path.name: path.read_bytes() for path in files}
    pack(files, tmp_path / "node-0.tar")
    assert not list((tmp_path / "made").iterdir())
    return tmp_path, whole


def test_states_are_read_from_it(packed):
    directory, whole = packed
    for number, (owner, file) in enumerate(state_files(directory, OWNERS).items()):
        arrays, attributes = read_state(file, "actor")
        assert (arrays["values"] == np.arange(100_000) + number).all()
        assert attributes == {"number": number}
        with file.open() as stream:
            assert stream.read() == whole[file.name]
        assert described_file(directory, owner, file.describe()) == file
    absent = state_files(directory, ("actor-3",))["actor-3"]
    assert not absent.packed
    with pytest.raises(StorageError, match=r"cannot read .*actor-3.h5"):
        read_state(absent, "actor")


def test_a_tar_program_makes_files_of_it(packed):
    directory, whole = packed
    subprocess.run(["tar", "-xf", "node-0.tar"], cwd=directory, check=True)
    assert {name: (directory / name).read_bytes() for name in whole} == whole


def test_a_part_of_a_file_ends_where_it_ends(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(100)))
    with StateFile(tmp_path / "file", "part", 10, 20).open() as part:
        assert part.seek(0, os.SEEK_END) == 20
        assert part.read(5) == b""
        part.seek(15)
        buffer = bytearray(10)
        assert part.readinto(buffer) == 5
        assert buffer[:5] == bytes(range(25, 30))
        part.seek(-2, os.SEEK_CUR)
        assert (part.read(), part.tell()) == (bytes([28, 29]), 20)


def test_a_pack_that_cannot_be_made_leaves_the_files(tmp_path):
    write_state(tmp_path / "actor-0.h5", "actor", {}, {})
    with pytest.raises(StorageError, match="cannot write"):
        pack([tmp_path / "actor-0.h5", tmp_path / "actor-1.h5"], tmp_path / "node-0.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["actor-0.h5"]
    (tmp_path / "node-1.tar").write_bytes(b"there")
    with pytest.raises(StorageError, match="cannot write"):
        pack([tmp_path / "actor-0.h5"], tmp_path / "node-1.tar")
    assert (tmp_path / "node-1.tar").read_bytes() == b"there"


@pytest.mark.parametrize("name", ["../node-0.tar", "/etc/passwd", "node-0.tar/x", 3])
def test_a_manifest_cannot_name_another_file(tmp_path, name):
    with pytest.raises(StorageError, match="expected the name of a pack"):
        described_file(tmp_path, "actor-0", {"pack": name, "offset": 0, "bytes": 1})


def test_what_is_no_file_in_a_pack_is_not_read(tmp_path):
    (tmp_path / "actor-0.h5").symlink_to("/etc/passwd")
    subprocess.run(["tar", "-cf", "node-0.tar", "actor-0.h5"], cwd=tmp_path, check=True)
    (tmp_path / "actor-0.h5").unlink()
    assert not state_files(tmp_path, ("actor-0",))["actor-0"].packed
    (tmp_path / "node-1.tar").write_bytes(b"no pack")
    with pytest.raises(StorageError, match="node-1.tar"):
        state_files(tmp_path, ())


def test_a_checkpoint_whose_pack_is_damaged_is_skipped(tmp_path):
    for update in (1, 2):
        directory = checkpoints.begin(tmp_path, update)
        made = tmp_path / "actor-0.h5"
        write_state(made, "actor", {"values": np.arange(10)}, {})
        pack([made], directory / "node-0.tar")
        finished = checkpoints.finish(directory, ["actor-0"], [], {})
    with open_state(finished.file("actor-0")) as file:
        assert (file["arrays/values"][:] == np.arange(10)).all()
    os.truncate(finished.path / "node-0.tar", 1000)
    found, skipped = checkpoints.latest(tmp_path)
    assert found.global_update == 1
    assert [path for path, _ in skipped] == [finished.path]
