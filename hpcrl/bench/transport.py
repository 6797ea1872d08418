"""``hpcrl bench transport``: pulls, pushes, updates, rings and counters, over the bare calls that move the same bytes.

Each job has one client and 1, 2 or 4 servers, which wait as those of a training job do; its ranks
(`hpcrl.bench._transport_ranks`) time ours and the bare calls in turn, over the same windows. MPI's own settings are
taken from the environment (with MPICH ``MPIR_CVAR_NOLOCAL=1 UCX_TLS=tcp,self`` measures TCP inside one machine), and
``HPCRL_MPIEXEC`` names another launcher, as in ``HPCRL_MPIEXEC="mpiexec -hosts a,b"``.
"""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from hpcrl import bench
from hpcrl.bench import _jobs

VECTORS = {"nature": 1_687_206, "100m": 100_000_000}
"""parameters: the Nature network with 6 actions, and a large one"""
SERVERS = (1, 2, 4)
RANKS = "hpcrl.bench._transport_ranks"
LIMIT_SECONDS = 300.0
"""for one job"""

Pairs = Sequence[tuple[float, float]]


class Figure(NamedTuple):
    """What the seconds of one call mean."""

    unit: str
    bound: str
    """formula"""
    per_byte: bool = False


TRANSFER = "bytes / t(a bare {} for each server, then a Flush of each)"
FIGURES = {
    "pull": Figure("GB/s", TRANSFER.format("Get"), per_byte=True),
    "push": Figure("GB/s", TRANSFER.format("Put"), per_byte=True),
    "update": Figure("updates/s", "1 / (t(the fastest of torch's optimizer steps, one thread) + t(one copy))"),
    "ring": Figure("records/s", "records / t(a bare Put of the same bytes and a Flush, for each batch)"),
    "counter": Figure("additions/s", "1 / t(a bare Fetch_and_op and a Flush)"),
}


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes one to three minutes, ``quick`` (one
    server, the smaller vector) seconds.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        A job failed.
    StorageError
        ``json_path`` cannot be written.
    """
    with _jobs.measurement("hpcrl bench transport", json_path) as job:
        job.notes.extend(notes())
        for vector, parameters in list(VECTORS.items())[: 1 if quick else None]:
            for servers in SERVERS[:1] if quick else SERVERS:
                job.console.print(f"{vector}: {parameters:,} float32 over {servers} servers", highlight=False)
                alone = ["update"] if servers == 1 else []
                small = ["ring", "counter"] if alone and vector == "nature" else []
                parts = ["pull", "push", *alone, *small]
                for figure, pairs in measure(job.launcher, parameters, servers, parts, job.directory).items():
                    name = row_name(figure, vector, servers)
                    job.rows.extend(figure_rows(name, figure, pairs, parameters))
                    job.notes.append(spread(name, pairs))


def measure(
    launcher: Sequence[str], parameters: int, servers: int, parts: Sequence[str], directory: Path
) -> dict[str, Pairs]:
    """Run ``parts`` of `hpcrl.bench._transport_ranks` as one job.

    Returns
    -------
    dict
        Seconds of ours and of the bare calls in each pair, by figure.

    Raises
    ------
    HpcrlError
        It failed.
    """
    output = directory / f"{parameters}-{servers}.out"
    return _jobs.figures(launcher, servers + 1, RANKS, [str(parameters), *parts], output, LIMIT_SECONDS)


def row_name(figure: str, vector: str, servers: int) -> str:
    """``pull.nature.2servers``, ``update.nature.adam``, ``ring.batches``."""
    kind, _, which = figure.partition(".")
    if kind in ("pull", "push"):
        return f"{kind}.{vector}.{servers}server{'s' * (servers > 1)}"
    return f"update.{vector}.{which}" if kind == "update" else figure


def figure_rows(name: str, figure: str, pairs: Pairs, parameters: int) -> list[bench.Row]:
    """Rows of one figure: the medians of its pairs, as rates."""
    unit, _, per_byte = FIGURES[figure.partition(".")[0]]
    amount = 4 * parameters / 1e9 if per_byte else 1.0
    ours, bare = (amount / statistics.median(times) for times in zip(*pairs, strict=True))
    return bench.compared(name, ours, unit, bare)


def notes() -> list[str]:
    """The bounds' formulas."""
    return [f"{kind}.*.bound = {figure.bound} [{figure.unit}]" for kind, figure in FIGURES.items()]


def spread(name: str, pairs: Pairs) -> str:
    """How much the pairs of a figure differ."""
    ratios = sorted(bare / ours for ours, bare in pairs)
    ours = sorted(1e3 * seconds for seconds, _ in pairs)
    milliseconds = f"{ours[0]:.4g} to {ours[-1]:.4g} ms"
    return f"{name}: {len(pairs)} pairs, ours {milliseconds}, ratio {ratios[0]:.3f} to {ratios[-1]:.3f}"
