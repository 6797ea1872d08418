"""Memory that this node has for the job, by every limit that applies, and whether a forecast fits."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from hpcrl.errors import MachineError
from hpcrl.launch.forecast import NodeForecast

MEGABYTE = 2**20
UNLIMITED = 2**60
"""cgroup v1 writes no limit as a number near 2^63."""


class Limit(NamedTuple):
    """One bound on what can still be allocated."""

    available_bytes: int
    source: str
    """where it comes from, for a message"""


def memory_limits(environ: Mapping[str, str], held_bytes: int = 0, root: Path = Path("/")) -> list[Limit]:
    """What each limit on the memory of this node leaves; none where nothing is known.

    Parameters
    ----------
    environ : mapping
        Slurm's variables: limits on the whole job, of which it holds something already.
    held_bytes : int
        What the job's ranks on this node hold.
    root : Path
        In place of ``/``, for tests.
    """
    limits = [*_machine(root), *_cgroup_v2(root), *_cgroup_v1(root)]
    if (per_node := _number(environ.get("SLURM_MEM_PER_NODE"))) > 0:
        limits.append(
            Limit(per_node * MEGABYTE - held_bytes, "SLURM_MEM_PER_NODE (sbatch --mem), less what ranks hold")
        )
    per_core, cores = _number(environ.get("SLURM_MEM_PER_CPU")), _number(environ.get("SLURM_CPUS_ON_NODE"))
    if per_core > 0 and cores > 0:
        source = "SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE (--mem-per-cpu), less what ranks hold"
        limits.append(Limit(per_core * cores * MEGABYTE - held_bytes, source))
    return limits


def shared_memory_limit(path: str = "/dev/shm") -> Limit | None:
    """Free bytes of the file system that windows inside a node live in; None where there is none."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return Limit(status.f_bavail * status.f_frsize, path)


def check_memory(node: NodeForecast, host: str, held_bytes: int, limits: list[Limit], shared: Limit | None) -> None:
    """Refuse a job that this node has no room for, before anything is allocated.

    Parameters
    ----------
    node : NodeForecast
    host : str
        Name of the node.
    held_bytes : int
        What the node's ranks hold already, which the forecast counts too.
    limits : list of Limit
        :func:`memory_limits`.
    shared : Limit or None
        :func:`shared_memory_limit`; not asked of a rank alone on its node, whose windows are its own memory.

    Raises
    ------
    MachineError
        The message has the bytes that are needed and available, and what to change.
    """
    faults, ranks = [], "1 rank" if node.ranks == 1 else f"{node.ranks} ranks"
    needed = node.memory_bytes - held_bytes
    tightest = min(limits, default=None)
    if tightest is not None and needed > tightest.available_bytes:
        faults.append(
            f"{_bytes(needed)} of memory for {ranks}, but {_bytes(tightest.available_bytes)} are available "
            f"({tightest.source}): lower replay.capacity_steps or the ranks per node, or ask for more memory"
        )
    if shared is not None and node.ranks > 1 and node.shared_bytes > shared.available_bytes:
        faults.append(
            f"{_bytes(node.shared_bytes)} in {shared.source} for windows, but {_bytes(shared.available_bytes)} are "
            f"free there: enlarge it (docker run --shm-size, mount -o remount,size=...), spread the servers over more "
            f"nodes, or lower server.slots"
        )
    if faults:
        raise MachineError("\n  ".join([f"node {node.node} ({host}) needs", *faults]))


def held_bytes() -> int:
    """Memory that this process has for itself: resident, and neither code nor windows."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
        return (resident - shared) * os.sysconf("SC_PAGE_SIZE")
    return 0


def _machine(root: Path) -> Iterator[Limit]:
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            yield Limit(_number(line.split()[1]) * 1024, "MemAvailable of this machine")


def _cgroup_v2(root: Path) -> Iterator[Limit]:
    for line in _lines(root / "proc/self/cgroup"):
        if not line.startswith("0::"):
            continue
        for group in _upwards(root / "sys/fs/cgroup", line[3:]):
            limit = _number(" ".join(_lines(group / "memory.max")))
            used = _number(" ".join(_lines(group / "memory.current")))
            if limit > 0:
                yield Limit(limit - used + _stat(group, "inactive_file"), f"memory.max of cgroup {group}")


def _cgroup_v1(root: Path) -> Iterator[Limit]:
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if "memory" not in controllers.split(","):
            continue
        for group in _upwards(root / "sys/fs/cgroup/memory", path):
            limit = _number(" ".join(_lines(group / "memory.limit_in_bytes")))
            used = _number(" ".join(_lines(group / "memory.usage_in_bytes")))
            if 0 < limit < UNLIMITED:
                yield Limit(
                    limit - used + _stat(group, "total_inactive_file"), f"memory.limit_in_bytes of cgroup {group}"
                )


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The cgroup and all above it: each may have a limit. In a container its own is often mounted at the top."""
    group = mount / path.strip().lstrip("/")
    while group != mount:
        yield group
        group = group.parent
    yield mount


def _stat(group: Path, name: str) -> int:
    """Cached file pages count as used, but the kernel gives them back before it refuses memory."""
    return next((_number(line.split()[1]) for line in _lines(group / "memory.stat") if line.startswith(name + " ")), 0)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(text: str | None) -> int:
    """The number in ``text``; 0 where there is none (cgroup's ``max``)."""
    text = (text or "").strip()
    return int(text) if text.isdigit() else 0


def _bytes(number: int) -> str:
    return f"{number / 1e9:.3g} GB ({number:,} bytes)"
