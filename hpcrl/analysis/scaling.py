"""What limits a job of parameter servers and bundles, and how many updates per second that leaves.

A closed queueing network, solved by mean value analysis (Reiser & Lavenberg 1980): bundles compute, then push a
gradient, wait for the servers, and pull; they meet at the servers, at the cores that ranks share and at the network of
the servers' nodes. What each visit costs is fitted to ``hpcrl bench scale``. Arithmetic only.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.errors import StorageError

PULL_ROUNDS, PUSH_ROUNDS, LOOK_ROUNDS = 3, 2, 1
"""Round trips of a pull, of a push, and of a look whether it was consumed; towards all servers at once."""


@dataclass(frozen=True)
class Costs:
    """What moving and applying one gradient takes of a processor [s], and what waiting does [share of a core]."""

    bundle_update: float
    """a bundle's own, for each update"""
    bundle_message: float
    """and for each server"""
    bundle_byte: float
    """and for each byte of the vector, pushed and pulled"""
    server_gradient: float
    """a server's, for each gradient"""
    server_byte: float
    """and for each byte of its shard: optimizer and publication"""
    bundle_idle: float
    """of a bundle that waits"""
    server_idle: float
    """of a server that waits"""
    delay: float = 0.0
    """what an update waits beside all that: sleeps of those that wait for each other [s]"""


class Sample(NamedTuple):
    """A job that was measured."""

    servers: int
    bundles: int
    vector_bytes: int
    compute_seconds: float
    """of a bundle for one update; slept, so that it took no core"""
    cores: int
    updates_per_second: float
    bundle_cores: float
    """processor seconds per second of all bundles"""
    server_cores: float
    """and of all servers"""


@dataclass(frozen=True)
class Cluster:
    """Where a job runs; nodes are alike, and ranks spread evenly over them."""

    cores: int
    """of all nodes"""
    nodes: int = 1
    latency_seconds: float = 2e-6
    """of a round trip between two nodes"""
    bytes_per_second: float = 12.5e9
    """of a node's network, each way"""


class Prediction(NamedTuple):
    """What a job should reach."""

    updates_per_second: float
    bottleneck: str
    """``bundles`` (they compute nearly all the time), ``servers``, ``cores`` or ``network``"""
    busy: dict[str, float]
    """share of the time that each of these is in use, 0 to 1"""


ALIKE = 0.03
"""Rates that differ by less are the same to whoever chooses the number of servers."""

MEASURED = Costs(
    bundle_update=1.0e-3,
    bundle_message=7e-5,
    bundle_byte=3.7e-10,
    server_gradient=1.3e-4,
    server_byte=5.0e-10,
    bundle_idle=0.0017,
    server_idle=0.031,
    delay=1e-3,
)
"""On a core of an Intel Xeon (Sapphire Rapids) with MPICH 5.0.2 and AdaGrad, while other work shared its caches:
without, what is due to bytes takes about 0.6 of that (``hpcrl bench transport``). Put together by hand
(docs/scaling.md); ``bench scale`` fits those of any machine."""


def fit(samples: Sequence[Sample]) -> Costs:
    """Costs by least squares of relative errors, none of them negative; samples should differ in all that they have."""
    rate = np.array([s.updates_per_second for s in samples])
    servers = np.array([float(s.servers) for s in samples])
    bundles = np.array([float(s.bundles) for s in samples])
    nbytes = np.array([float(s.vector_bytes) for s in samples])
    update, message, byte, idle = _nonnegative(
        [rate, rate * servers, rate * nbytes, bundles], np.array([s.bundle_cores for s in samples])
    )
    gradient, shard_byte, server_idle = _nonnegative(
        [rate * servers, rate * nbytes, servers], np.array([s.server_cores for s in samples])
    )
    costs = Costs(update, message, byte, gradient, shard_byte, idle, server_idle)
    # What is left of a round in jobs whose cores were not full: sleeps.
    left = [
        s.bundles / s.updates_per_second - s.bundles / _of(costs, s).updates_per_second
        for s in samples
        if s.bundle_cores + s.server_cores < 0.7 * s.cores
    ]
    return Costs(**{**vars(costs), "delay": max(0.0, float(np.median(left))) if left else 0.0})


def read_costs(path: Path) -> Costs:
    """Costs of another machine, from the figures that ``hpcrl bench scale --json`` wrote.

    Raises
    ------
    StorageError
        The file cannot be read, or they are not among its figures.
    """
    prefix = "scale.cost."
    try:
        values = {row["name"]: row["value"] for row in json.loads(path.read_text())}
        return Costs(**{name.removeprefix(prefix): v for name, v in values.items() if name.startswith(prefix)})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{path}: expected the figures of hpcrl bench scale, with its costs: {error}") from error


def _nonnegative(columns: Sequence[np.ndarray], values: np.ndarray) -> list[float]:
    """Least squares of relative errors; a coefficient that comes out negative is 0."""
    matrix, kept = np.stack(columns, axis=1) / values[:, None], list(range(len(columns)))
    while True:
        found = np.linalg.lstsq(matrix[:, kept], np.ones(len(values)), rcond=None)[0]
        if (found >= 0).all():
            return [float(found[kept.index(k)]) if k in kept else 0.0 for k in range(len(columns))]
        kept.pop(int(found.argmin()))


def _of(costs: Costs, sample: Sample) -> Prediction:
    return predict(
        costs,
        Cluster(sample.cores),
        servers=sample.servers,
        bundles=sample.bundles,
        vector_bytes=sample.vector_bytes,
        compute_seconds=sample.compute_seconds,
        computes=False,
    )


def errors(costs: Costs, samples: Iterable[Sample]) -> list[float]:
    """Predicted over measured updates per second, minus 1, of each sample."""
    return [_of(costs, sample).updates_per_second / sample.updates_per_second - 1 for sample in samples]


def predict(
    costs: Costs,
    cluster: Cluster,
    *,
    servers: int,
    bundles: int,
    vector_bytes: int,
    compute_seconds: float,
    computes: bool = True,
    updates_per_push: int = 1,
    compression: float = 1.0,
) -> Prediction:
    """Updates per second of a job, and what limits it.

    Parameters
    ----------
    compute_seconds
        Of a bundle for one update: acting and gradient, on a core of its own.
    computes
        Whether that takes a core; not where it is slept or done by a GPU.
    updates_per_push
        Local updates of a bundle for each gradient that it pushes. [updates]
    compression
        Bytes of the vector over bytes that are moved.
    """
    moved = vector_bytes / compression
    bundle = costs.bundle_update + costs.bundle_message * servers + costs.bundle_byte * moved
    server = costs.server_gradient + costs.server_byte * vector_bytes / servers
    compute = compute_seconds * updates_per_push
    between = (cluster.nodes - 1) / cluster.nodes  # part of all transfers that leave a node
    wire = moved / min(servers, cluster.nodes) * between / cluster.bytes_per_second  # of a server's node, each way
    rounds = (PULL_ROUNDS + PUSH_ROUNDS + LOOK_ROUNDS) * cluster.latency_seconds * (cluster.nodes > 1)
    idle = bundles * costs.bundle_idle + servers * costs.server_idle
    cores = max(cluster.cores - idle, 0.1 * cluster.cores)
    work = bundle + server * servers + compute * computes
    demands = {"servers": server, "network": wire, "network, back": wire, "cores": work / cores}
    think = compute + bundle + costs.delay + rounds
    rounds_per_second = _mean_value_analysis(bundles, think, demands)
    busy = {name: rounds_per_second * demand for name, demand in demands.items()}
    del busy["network, back"]
    busy["bundles"] = rounds_per_second * compute / bundles
    return Prediction(rounds_per_second * updates_per_push, max(busy, key=busy.get), busy)


def _mean_value_analysis(customers: int, think: float, demands: dict[str, float]) -> float:
    """Rounds per second of so many customers, who think and then queue at every station.

    Cores are looked at for waiting alone: what is done there is part of the thinking and of the other stations.
    """
    queue = dict.fromkeys(demands, 0.0)
    rate = 0.0
    for present in range(1, customers + 1):
        times = {
            name: demand * (queue[name] if name == "cores" else 1 + queue[name]) for name, demand in demands.items()
        }
        rate = present / (think + sum(times.values()))
        queue = {name: rate * (times[name] + (demands[name] if name == "cores" else 0.0)) for name in demands}
    return rate


def best_servers(costs: Costs, cluster: Cluster, ranks: int, **job) -> tuple[int, Prediction]:
    """Number of servers, of all ranks, with which a job reaches most, and what that is.

    Of several that come within `ALIKE` the fewest; above 20 not every number is tried. Arguments are those of
    :func:`predict`, but ``servers`` and ``bundles``.
    """
    tried = sorted({*range(1, 21), *(round(20 * 1.05**k) for k in range(1, 150))})
    found = {
        servers: predict(costs, cluster, servers=servers, bundles=ranks - servers, **job)
        for servers in tried
        if servers <= max(1, ranks // 2)
    }
    most = max(p.updates_per_second for p in found.values())
    servers = next(s for s, p in found.items() if p.updates_per_second >= (1 - ALIKE) * most)
    return servers, found[servers]
