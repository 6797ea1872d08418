"""``hpcrl bench learners``: updates per second of two synchronous learners, over two uncoupled ones at the same time.

Each learner has a core of its own, draws minibatches of 256 transitions of 84x84 frames from its own replay, computes
the gradient of the Nature DQN and applies RMSProp; coupled, both apply the average of their gradients. The same
processes do one and the other in turn. MPI and its launcher are chosen as in ``hpcrl bench transport``.
"""

import statistics
from pathlib import Path

from hpcrl import bench
from hpcrl.bench import _jobs

LEARNERS, BATCH, UPDATES, PAIRS = 2, 256, 4, 7
LIMIT_SECONDS = 300.0


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about two minutes, ``quick`` (small
    batches, two pairs) half a one.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        A job failed.
    StorageError
        ``json_path`` cannot be written.
    """
    size = {"batch": BATCH, "updates": UPDATES, "pairs": PAIRS}
    if quick:
        size = {"batch": 32, "updates": 1, "pairs": 2}
    title = f"hpcrl bench learners ({LEARNERS} learners, batch {size['batch']})"
    with _jobs.measurement(title, json_path) as job:
        for backend in ("mpi", "gloo"):
            found = measure(job.launcher, backend, job.directory, **size)
            job.rows.extend(figure_rows(backend, found))
            ratios = sorted(alone / together for together, alone in found)
            job.notes.append(f"learners.{backend}: {len(found)} pairs, ratio {ratios[0]:.3f} to {ratios[-1]:.3f}")


def measure(
    launcher: list[str], backend: str, directory: Path, *, batch: int, updates: int, pairs: int
) -> list[tuple[float, float]]:
    """Seconds of one update, coupled and uncoupled, for each pair."""
    arguments = [str(batch), str(updates), str(pairs), backend]
    output = directory / f"{backend}.out"
    return _jobs.figures(launcher, LEARNERS, "hpcrl.bench._learners_ranks", arguments, output, LIMIT_SECONDS)["pairs"]


def figure_rows(backend: str, pairs: list[tuple[float, float]]) -> list[bench.Row]:
    """The medians of the pairs, as updates per second of one learner."""
    together, alone = (statistics.median(side) for side in zip(*pairs, strict=True))
    return bench.compared(f"learners.{backend}", 1 / together, "updates/s", 1 / alone)
