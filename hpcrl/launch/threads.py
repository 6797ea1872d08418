"""Cores of this rank: how many it was given, how many threads it starts on them, and who else is pinned there."""

import os
from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence, Set
from typing import NamedTuple

from hpcrl.errors import MachineError

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Place(NamedTuple):
    """Where one rank runs."""

    node: int
    """numbered from 0, in the order of the lowest ranks"""
    host: str
    affinity: frozenset[int]
    """cores that the rank may run on"""
    cores_given: int
    """of these, what the launcher meant for this rank"""
    machine_cores: int
    gpus: int
    """GPUs that the rank sees"""


def cores_given(affinity: Set[int], environ: Mapping[str, str]) -> int:
    """Cores that the launcher gave to one rank: those it may run on, and no more than srun's ``--cpus-per-task``."""
    per_task = environ.get("SLURM_CPUS_PER_TASK", "")
    return min(len(affinity), int(per_task)) if per_task.isdigit() and int(per_task) else len(affinity)


def limit_threads(threads: int, environ: MutableMapping[str, str]) -> int:
    """Size the thread pools that NumPy and torch make when they are loaded; what the user has said stays.

    Returns
    -------
    int
        The number of threads that holds.

    Raises
    ------
    MachineError
        ``OMP_NUM_THREADS`` is no number.
    """
    for variable in THREAD_VARIABLES:
        environ.setdefault(variable, str(threads))
    said = environ["OMP_NUM_THREADS"].split(",")[0].strip()  # a list has one number for each level of nesting
    if not said.isdigit() or not int(said):
        raise MachineError(f"OMP_NUM_THREADS: expected a number of threads, got {environ['OMP_NUM_THREADS']!r}")
    return int(said)


def crowded(places: Sequence[Place]) -> list[str]:
    """Say which ranks are pinned to the same few cores; a rank that may run on all of its machine is not pinned.

    Returns
    -------
    list of str
        One text for each set of cores that more ranks are pinned to than it has cores.
    """
    groups: dict[tuple[int, tuple[int, ...]], list[int]] = defaultdict(list)
    for rank, place in enumerate(places):
        if len(place.affinity) < place.machine_cores:
            groups[place.node, tuple(sorted(place.affinity))].append(rank)
    return [
        f"ranks {', '.join(map(str, ranks))} of node {node} are all pinned to core"
        f"{'' if len(cores) == 1 else 's'} {', '.join(map(str, cores))}"
        for (node, cores), ranks in groups.items()
        if len(ranks) > len(cores)
    ]


def visible_gpus() -> int:
    """GPUs that this process may use, counted by the driver and without torch, which would size its pools too early."""
    import ctypes

    if not os.path.exists("/proc/driver/nvidia/version"):
        return 0
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    # No context is made: only torch makes one, on the ranks that compute there.
    return count.value if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0 else 0
