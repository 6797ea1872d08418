"""The state of one owner in a checkpoint: arrays and attributes in one HDF5 file, without pickle."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.storage import schema
from hpcrl.storage.fault import fault_point
from hpcrl.storage.hdf5 import (
    NewFile,
    fsync,
    plain_datasets,
    plain_group,
    release_space,
    reserve_space,
    storage_error,
)
from hpcrl.storage.packs import StateFile, open_state


def write_state(path: Path, file_type: str, arrays: Mapping, attributes: Mapping) -> None:
    """Write the state of one owner and fsync it.

    Parameters
    ----------
    path
        ``state_path(directory, owner)``; it must not exist.
    file_type
        A key of ``schema.VERSIONS``.
    arrays
        Arrays and numbers of any shape; nested mappings are flattened with ``/`` in the keys.
    attributes
        What JSON can hold: numbers of any size, texts, lists and mappings (a NumPy generator's state, for one).

    Raises
    ------
    StorageError
        The disk is full or faulty, or a value is of a kind that only pickle could hold. The file is removed.
    """
    path = Path(path)
    flat = flatten(arrays)
    texts = {name: to_json(value, f"{path}: attribute {name!r}") for name, value in attributes.items()}
    created = False
    try:
        with NewFile(path) as file:
            created = True
            fault_point("state_opened")
            sizes = [array.nbytes + 4096 for array in flat.values()] + [4 * len(text) + 512 for text in texts.values()]
            reserve_space(file, sum(sizes) + 65536)
            file.attrs.update(schema.header(file_type))
            group = file.create_group(schema.ARRAYS_GROUP)
            for name, array in flat.items():
                group.create_dataset(name, data=array)
            file.create_group(schema.ATTRIBUTES_GROUP).attrs.update(texts)
        release_space(path)
        fsync(path)
        fault_point("state_written")
    except (OSError, RuntimeError) as error:
        if created:
            path.unlink(missing_ok=True)
        raise storage_error("write", path, error) from error


def read_state(path: Path | StateFile, file_type: str) -> tuple[dict[str, np.ndarray], dict]:
    """Read what `write_state` wrote.

    Returns
    -------
    arrays
        Flat, with ``/`` in the keys of what was nested; numbers are 0-d arrays.
    attributes
        As they were given.

    Raises
    ------
    StorageError
        The file is missing, damaged, or of another type or version.
    """
    try:
        with open_state(path) as file:
            schema.check_header(file.attrs, file_type, path)
            arrays = {
                name: np.asarray(dataset[()])
                for name, dataset in plain_datasets(plain_group(file, schema.ARRAYS_GROUP))
            }
            texts = plain_group(file, schema.ATTRIBUTES_GROUP).attrs
            attributes = {name: json.loads(text) for name, text in texts.items()}
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise storage_error("read", path, error) from error
    return arrays, attributes


def flatten(nested: Mapping, prefix: str = "") -> dict[str, np.ndarray]:
    """Flatten nested mappings of arrays into one, with ``/`` in the keys; empty mappings vanish.

    Raises
    ------
    StorageError
        A value is neither a mapping nor an array of numbers.
    """
    flat = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{name}/")
            continue
        array = np.asarray(value)
        if array.dtype.kind not in "biufc" and array.dtype.names is None:
            raise StorageError(
                f"state {prefix + str(name)!r}: expected numbers, got {type(value).__name__} of dtype {array.dtype}; "
                "put texts and the like into the attributes"
            )
        flat[f"{prefix}{name}"] = array
    return flat


def to_json(value, where: str, **options) -> str:
    """JSON of ``value``, which may hold NumPy's numbers and arrays, and paths; ``where`` is for the error."""
    try:
        return json.dumps(value, default=_plain, **options)
    except (TypeError, ValueError) as error:
        raise StorageError(f"{where} cannot be stored: {error}; put arrays of numbers into the arrays") from error


def _plain(value):
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} is no number, text, list or mapping")
