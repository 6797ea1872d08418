"""Cores of this rank: how many it was given, how many threads it starts on them, and who else is pinned there."""

import os
from collections import defaultdict
from collections.abc import Mapping, MutableMapping, Sequence, Set
from typing import NamedTuple

from hpcrl.errors import MachineError
from hpcrl.launch.topology import Plan

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


def cores_of_simulators(rank_map: Plan, places: Sequence[Place]) -> dict[int, frozenset[int]]:
    """Cores that ranks keep to, beyond what the launcher said: one for each simulator, the others for all else.

    Only on nodes with simulators whose ranks may all run on the same cores, of which there are at least as many as
    ranks: anything else was decided by the launcher, or would make ranks wait for one another.
    """
    kept: dict[int, frozenset[int]] = {}
    crews = rank_map.crews()
    for node in {rank_map.ranks[rank].node for rank in crews}:
        ranks = [plan.rank for plan in rank_map.ranks if plan.node == node]
        simulators = [rank for plan in rank_map.ranks if plan.node == node for rank in crews.get(plan.rank, ())]
        cores = sorted(places[ranks[0]].affinity)
        if len({places[rank].affinity for rank in ranks}) > 1 or len(cores) < len(ranks):
            continue
        own = cores[len(cores) - len(simulators) :]
        kept |= dict.fromkeys(ranks, frozenset(cores) - frozenset(own))
        kept |= {rank: frozenset((core,)) for rank, core in zip(simulators, own, strict=True)}
    return kept


def pin(rank_map: Plan, places: Sequence[Place], rank: int) -> str:
    """Keep this rank to its cores, if it has any of its own; what was done, in words for the log."""
    kept = cores_of_simulators(rank_map, places)
    if rank in kept:
        os.sched_setaffinity(0, kept[rank])
    pinned = [simulator for crew in rank_map.crews().values() for simulator in crew if simulator in kept]
    return f"{len(pinned)} simulator ranks keep to a core each" if pinned else ""


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
