"""Random streams derived from (seed, role, index), never from a rank number."""

import zlib

import numpy as np


def seed_sequence(seed: int, role: str, index: int) -> np.random.SeedSequence:
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
    """
    return np.random.SeedSequence(entropy=seed, spawn_key=(zlib.crc32(role.encode()), index))


def generator(seed: int, role: str, index: int) -> np.random.Generator:
    """NumPy generator on :func:`seed_sequence`."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, role, index)))


def torch_seed(seed: int, role: str, index: int) -> int:
    """63-bit seed for ``torch.manual_seed``."""
    return int(seed_sequence(seed, role, index).generate_state(1, np.uint64)[0] >> 1)
