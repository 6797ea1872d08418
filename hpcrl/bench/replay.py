"""``hpcrl bench replay``: adds and samples per second, over a bare numpy ring (local) and bare Puts and Gets (remote).

Remote jobs have one client and 1 or 2 hosts, which wait as servers do. The ranks (`hpcrl.bench._replay_ranks`) time
ours and the bare calls in turn. An add is one step of 4 simulators, a sample one minibatch of 32 transitions of 84x84
frames. What is bare moves the same bytes and makes the same parts of a batch of them, but looks neither at cursors nor
for the ends of episodes. Prioritised batches are drawn from a million slots, and their priorities set again, by one
core. MPI and its launcher are chosen as in ``hpcrl bench transport``.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpcrl import bench
from hpcrl.bench import _jobs

RANKS = "hpcrl.bench._replay_ranks"
HOSTS = (1, 2)
LIMIT_SECONDS = 120.0
RECORDS, TRANSITIONS = 4, 32
"""Records of an add, and transitions of a sample."""

Pairs = Sequence[tuple[float, float | None]]


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about a minute, ``quick`` (one host) less.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        A job failed.
    StorageError
        ``json_path`` cannot be written.
    """
    with _jobs.measurement("hpcrl bench replay", json_path) as job:
        local = _jobs.figures(job.launcher, 1, RANKS, ["local"], job.directory / "local.out", LIMIT_SECONDS)
        found = named(local)
        for hosts in HOSTS[:1] if quick else HOSTS:
            output = job.directory / f"{hosts}.out"
            figures = _jobs.figures(job.launcher, hosts + 1, RANKS, ["remote"], output, LIMIT_SECONDS)
            found |= named(figures, f".{hosts}server{'s' * (hosts > 1)}")
        for name, pairs in found.items():
            job.rows.extend(figure_rows(name, pairs))
            job.notes.append(spread(name, pairs))


def named(figures: Mapping[str, Pairs], suffix: str = "") -> dict[str, Pairs]:
    """``replay.add.remote.1server``, and so on."""
    return {f"replay.{figure}{suffix}": pairs for figure, pairs in figures.items()}


def figure_rows(name: str, pairs: Pairs) -> list[bench.Row]:
    """Rows of one figure: the medians of its pairs, as rates; prioritised batches have no bound."""
    ours = 1 / statistics.median(ours for ours, _ in pairs)
    if pairs[0][1] is None:
        return [bench.Row(name, ours, "batches/s")]
    bare = 1 / statistics.median(bare for _, bare in pairs)
    amount, unit = (RECORDS, "records/s") if ".add." in name else (TRANSITIONS, "transitions/s")
    return bench.compared(name, amount * ours, unit, amount * bare)


def spread(name: str, pairs: Pairs) -> str:
    """How much the pairs of a figure differ."""
    ours = sorted(1e6 * seconds for seconds, _ in pairs)
    text = f"{name}: {len(pairs)} pairs, ours {ours[0]:.4g} to {ours[-1]:.4g} us"
    ratios = sorted(bare / seconds for seconds, bare in pairs if bare is not None)
    return f"{text}, ratio {ratios[0]:.3f} to {ratios[-1]:.3f}" if ratios else text
