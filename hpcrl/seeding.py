"""Random streams derived from (seed, role, index), never from a rank number."""

import zlib

import numpy as np

_WORD = 2**64


def seed_sequence(seed: int, role: str, index: int, start: int = 0) -> np.random.SeedSequence:
    """Seed sequence of one member of a role.

    The stream depends on what a rank does, not on which rank does it, so that a run keeps its streams when its rank
    map changes. Streams of different roles and indices are independent (``SeedSequence`` spawning; ``seed + rank``
    would overlap between runs with neighbouring seeds).

    Parameters
    ----------
    seed : int
        ``run.seed`` of the configuration.
    role : str
        What the stream is for, for example ``"actor"``.
    index : int
        Index within the role.
    start : int
        Number of the checkpoint that this start of the run goes on from, 0 for none: what cannot be restored must not
        draw the numbers of the first start once more.
    """
    key = (zlib.crc32(role.encode()), index, *([start] if start else []))
    return np.random.SeedSequence(entropy=seed, spawn_key=key)


def generator(seed: int, role: str, index: int, start: int = 0) -> np.random.Generator:
    """NumPy generator on :func:`seed_sequence`."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, role, index, start)))


def generator_state(rng: np.random.Generator) -> np.ndarray:
    """State of a generator on PCG64 as uint64 ``[6]``."""
    bits = rng.bit_generator.state
    words = [word for name in ("state", "inc") for word in divmod(bits["state"][name], _WORD)]
    return np.array([*words, bits["has_uint32"], bits["uinteger"]], np.uint64)


def restore_generator(rng: np.random.Generator, words: np.ndarray) -> None:
    """Put back what :func:`generator_state` gave."""
    high, low, high_inc, low_inc, has_uint32, uinteger = (int(word) for word in words)
    rng.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": high * _WORD + low, "inc": high_inc * _WORD + low_inc},
        "has_uint32": has_uint32,
        "uinteger": uinteger,
    }


def torch_seed(seed: int, role: str, index: int) -> int:
    """63-bit seed for ``torch.manual_seed``."""
    return int(seed_sequence(seed, role, index).generate_state(1, np.uint64)[0] >> 1)
