"""Checkpoints: a directory that is either complete and verified, or ignored.

Order of writing: one owner makes ``step-N.tmp/`` (`begin`); every owner of state writes its own file there
(`write_state`, fsync); when all have, one owner writes the manifest with sizes and checksums, fsyncs it, renames the
directory and fsyncs its parent (`finish`). A kill at any point leaves the checkpoints before it untouched.
There is no pickle anywhere: loading a checkpoint can run no code.
"""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcrl.errors import StorageError
from hpcrl.storage import schema
from hpcrl.storage.fault import fault_point
from hpcrl.storage.hdf5 import fsync, storage_error
from hpcrl.storage.packs import StateFile, described_file, open_state, state_files
from hpcrl.storage.statefile import to_json


@dataclass(frozen=True)
class Checkpoint:
    """What the manifest of a checkpoint says."""

    path: Path
    global_update: int
    number: int
    """Counts the checkpoints of a run, from 1, over restarts; the greatest is the newest."""
    owners: tuple[str, ...]
    """Owners whose state is in it."""
    absent: tuple[str, ...]
    """Owners that should have written their state and did not."""
    attributes: dict
    """What `finish` was given: counters, seed and the like."""
    files: dict[str, dict]
    """For each owner: file name, bytes and sha256."""
    header: dict
    """See `schema.header`: format version, program version and date."""

    def file(self, owner: str) -> StateFile:
        """Where the state of an owner lies."""
        return described_file(self.path, owner, self.files[owner])


def checkpoint_dir(run_dir: Path, global_update: int) -> Path:
    """Return where the finished checkpoint of a global update lies."""
    return Path(run_dir) / schema.CHECKPOINTS_DIRECTORY / schema.CHECKPOINT_DIRECTORY.format(global_update)


def unfinished_dir(run_dir: Path, global_update: int) -> Path:
    """Return where a checkpoint lies while it is being written; every owner can work it out for itself."""
    return Path(f"{checkpoint_dir(run_dir, global_update)}{schema.UNFINISHED_SUFFIX}")


def state_path(directory: Path, owner: str) -> Path:
    """Return the state file of an owner, say ``"learner-0"``, in a checkpoint directory."""
    return Path(directory) / schema.STATE_FILE.format(owner)


def begin(run_dir: Path, global_update: int) -> Path:
    """Make the empty directory of a new checkpoint and return it; called by one owner, before any writes.

    Raises
    ------
    StorageError
        It cannot be made.
    """
    directory = unfinished_dir(run_dir, global_update)
    try:
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        fault_point("begun")
    except OSError as error:
        raise storage_error("create", directory, error) from error
    return directory


def discard(directory: Path) -> None:
    """Remove a checkpoint that could not be finished, so that it does not fill the disk."""
    shutil.rmtree(directory, ignore_errors=True)


def finish(directory: Path, owners: Sequence[str], absent: Sequence[str], attributes: Mapping) -> Checkpoint:
    """Verify that all is there, write the manifest, and give the checkpoint its final name.

    Parameters
    ----------
    directory
        As returned by `begin`; the global update is taken from its name.
    owners
        Owners that have written their state.
    absent
        Owners given up on.
    attributes
        What JSON can hold: counters, seed, and whatever else one may want to know without opening a file.

    Raises
    ------
    StorageError
        A file is missing, or the disk is full or faulty.
    """
    directory = Path(directory)
    final = directory.with_name(directory.name.removesuffix(schema.UNFINISHED_SUFFIX))
    fault_point("all_written")
    try:
        files = {owner: file.describe() for owner, file in state_files(directory, owners).items()}
        manifest = {
            **schema.header("manifest"),
            "global_update": int(re.fullmatch(schema.CHECKPOINT_PATTERN, final.name)[1]),
            "number": max((found.number for found in list_checkpoints(final.parents[1])[0]), default=0) + 1,
            "files": files,
            "absent": list(absent),
            "attributes": dict(attributes),
        }
        text = to_json(manifest, f"{directory}: manifest", indent=1)
        path = directory / schema.MANIFEST_FILE
        with open(path, "x") as stream:
            stream.write(text + "\n")
        fsync(path)
        fsync(directory)
        fault_point("manifest_written")
        _give_final_name(directory, final)
    except OSError as error:
        raise storage_error("finish", directory, error) from error
    return read_manifest(final)


def read_manifest(directory: Path) -> Checkpoint:
    """Read a manifest, without looking at the files that it lists.

    Raises
    ------
    StorageError
        It is missing, damaged or of another version.
    """
    path = Path(directory) / schema.MANIFEST_FILE
    try:
        manifest = json.loads(path.read_text())
        schema.check_header(manifest, "manifest", path)
        for owner in manifest["files"]:
            if not re.fullmatch(schema.OWNER_PATTERN, owner):
                raise StorageError(f"{path}: expected the name of an owner, say learner-0, found {owner!r}")
            described_file(Path(directory), owner, manifest["files"][owner])
        return Checkpoint(
            path=Path(directory),
            global_update=manifest["global_update"],
            number=manifest["number"],
            owners=tuple(manifest["files"]),
            absent=tuple(manifest["absent"]),
            attributes=manifest["attributes"],
            files=manifest["files"],
            header={name: manifest[name] for name in schema.header("manifest")},
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise storage_error("read", path, error) from error


def latest(run_dir: Path) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """Find the newest checkpoint whose every file has the size and checksum that its manifest says.

    All its bytes are read, so call it on one rank.

    Returns
    -------
    checkpoint
        None where there is no sound one.
    skipped
        (directory, reason) of each damaged one that was passed over.
    """
    found, skipped = list_checkpoints(run_dir)
    for checkpoint in reversed(found):
        fault = find_fault(checkpoint)
        if fault is None:
            return checkpoint, skipped
        skipped.append((checkpoint.path, fault))
    return None, skipped


def list_checkpoints(run_dir: Path) -> tuple[list[Checkpoint], list[tuple[Path, str]]]:
    """Return the checkpoints whose manifest can be read, oldest first, and (directory, reason) of the others."""
    found, damaged = [], []
    for path in sorted((Path(run_dir) / schema.CHECKPOINTS_DIRECTORY).glob("step-*")):
        if not re.fullmatch(schema.CHECKPOINT_PATTERN, path.name):
            continue
        try:
            found.append(read_manifest(path))
        except StorageError as error:
            damaged.append((path, str(error)))
    # By order of writing, not by update: a run that fell back to an older checkpoint writes lower updates again.
    return sorted(found, key=lambda checkpoint: checkpoint.number), damaged


def find_fault(checkpoint: Checkpoint) -> str | None:
    """Compare the size and checksum of every file with the manifest, and its version with ours; return what differs.

    All bytes are read.
    """
    for owner, expected in checkpoint.files.items():
        file = checkpoint.file(owner)
        try:
            found = file.describe()
        except OSError as error:
            return str(storage_error("read", file, error))
        if found != expected:
            what = "bytes" if found["bytes"] != expected["bytes"] else "sha256"
            return f"{found['name']}: expected {what} {expected[what]}, found {found[what]}"
        try:
            _check_version(file, owner.rpartition("-")[0])
        except StorageError as error:
            return str(error)
    return None


def _check_version(where: StateFile, file_type: str) -> None:
    try:
        with open_state(where) as file:
            schema.check_header(file.attrs, file_type, where)
    except (OSError, RuntimeError, KeyError) as error:
        raise storage_error("read", where, error) from error


def prune(run_dir: Path, keep_last: int, keep_every: int, best: Path | None = None) -> list[Path]:
    """Remove old checkpoints: all but the best, the newest `keep_last` and, where not 0, every `keep_every`-th ever
    written.

    Damaged directories older than those kept go too.

    Returns
    -------
    list
        Directories removed.

    Raises
    ------
    StorageError
        One cannot be removed.
    """
    found, damaged = list_checkpoints(run_dir)
    last = found[-max(1, keep_last) :]
    forever = [checkpoint for checkpoint in found if keep_every and checkpoint.number % keep_every == 0]
    kept = {checkpoint.path for checkpoint in last + forever} | {best}
    removed = [checkpoint.path for checkpoint in found if checkpoint.path not in kept]
    removed += [path for path, _ in damaged if last and path.name < last[0].path.name]
    for path in removed:
        _remove(path)
    fault_point("pruned")
    return removed


def clean(run_dir: Path) -> list[Path]:
    """Remove what a killed run left unfinished; called once, by one rank, before the run writes anything.

    Returns
    -------
    list
        Directories removed.

    Raises
    ------
    StorageError
        One cannot be removed.
    """
    directory = Path(run_dir) / schema.CHECKPOINTS_DIRECTORY
    removed = []
    for path in sorted(directory.glob(f"*{schema.REPLACED_SUFFIX}")):
        final = path.with_name(path.name.removesuffix(schema.REPLACED_SUFFIX))
        if final.exists():
            removed.append(path)
        else:  # killed between the two renames of _give_final_name
            path.rename(final)
    removed += sorted(directory.glob(f"*{schema.UNFINISHED_SUFFIX}"))
    for path in removed:
        _remove(path)
    return removed


def _give_final_name(directory: Path, final: Path) -> None:
    if final.exists():  # the same update once more, say after a restart that trained nothing
        replaced = final.with_name(final.name + schema.REPLACED_SUFFIX)
        final.rename(replaced)
        fault_point("replaced")
        directory.rename(final)
        fsync(final.parent)
        discard(replaced)
    else:
        directory.rename(final)
        fault_point("renamed")
        fsync(final.parent)


def _remove(path: Path) -> None:
    try:
        # Renamed first, so that a half-removed checkpoint can never be mistaken for a damaged one.
        if path.suffix not in (schema.UNFINISHED_SUFFIX, schema.REPLACED_SUFFIX):
            path = path.rename(path.with_name(path.name + schema.UNFINISHED_SUFFIX))
            fault_point("pruning")
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    except OSError as error:
        raise storage_error("remove", path, error) from error
