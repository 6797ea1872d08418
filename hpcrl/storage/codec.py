"""Compressing chunks of HDF5 datasets outside HDF5, whose one lock would otherwise hold up every other file."""

import ctypes
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

try:
    import hdf5plugin  # also lets h5py read what it compresses
except ImportError:
    hdf5plugin = None

LEVEL = 1
"""Of Zstd and of gzip: higher ones are several times slower and gain little on frames of games."""
GZIP_FILTER, ZSTD_FILTER = 1, 32015
"""Numbers under which The HDF Group lists them."""


class Codec(NamedTuple):
    """A way to compress."""

    name: str
    """``"zstd"`` or ``"gzip"``"""
    dataset_arguments: dict
    """What h5py's ``create_dataset`` is told, so that readers undo it."""
    compress: Callable[[np.ndarray], bytes | memoryview]
    """From a contiguous array to one chunk as it stands in the file; valid until the next call. Not for two threads.
    It holds neither HDF5's lock nor Python's."""


def best() -> Codec:
    """Zstd where hdf5plugin is installed, else gzip, which every HDF5 has."""
    return _zstd() or Codec(
        "gzip",
        {"compression": "gzip", "compression_opts": LEVEL},
        lambda data: zlib.compress(data.reshape(-1).view(np.uint8), LEVEL),
    )


def _zstd() -> Codec | None:
    """The compressor within hdf5plugin's filter, called directly."""
    if hdf5plugin is None:
        return None
    try:
        library = ctypes.CDLL(str(Path(hdf5plugin.PLUGIN_PATH) / "libh5zstd.so"))
        bound, compress, is_error = library.ZSTD_compressBound, library.ZSTD_compress, library.ZSTD_isError
    except (OSError, AttributeError):  # built in another way
        return None
    bound.restype, bound.argtypes = ctypes.c_size_t, [ctypes.c_size_t]
    compress.restype = ctypes.c_size_t
    compress.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    is_error.argtypes = [ctypes.c_size_t]
    out = np.empty(0, np.uint8)

    def compress_chunk(data: np.ndarray) -> memoryview:
        nonlocal out
        if out.nbytes < bound(data.nbytes):
            out = np.empty(bound(data.nbytes), np.uint8)
        size = compress(out.ctypes.data, out.nbytes, data.ctypes.data, data.nbytes, LEVEL)
        if is_error(size):
            raise RuntimeError(f"zstd could not compress {data.nbytes} bytes")
        return memoryview(out)[:size]

    return Codec("zstd", {"compression": ZSTD_FILTER, "compression_opts": (LEVEL,)}, compress_chunk)
