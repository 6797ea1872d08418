"""``hpcrl bench soak``: an hour of mixed load, and whether the memory of any rank grows.

A server, two bundles and an evaluator learn Pong from a prioritised memory that the server holds for both; checkpoints,
evaluations, norms and spans are written all the while. The memory is full before the warm-up is over. MPI and its
launcher are chosen as in ``hpcrl bench transport``.
"""

import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hpcrl import bench
from hpcrl.bench import _jobs
from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED, HpcrlError
from hpcrl.storage.runlog import read_runlog

ROLES = ("server", "evaluator", "bundle_0", "bundle_1")
"""Of the ranks, in their order."""
MINUTES, PERIOD_SECONDS = 60.0, 10.0
WARM_SHARE = 0.25
"""Of the time, that memory may take to reach what it needs."""
LARGEST_RISE = 1.0
"""Of a rank's memory, that counts as flat [MB/min]"""
START_SECONDS = 120.0

CONFIG = """
[run]
name = "bench_soak"
time_limit_seconds = {seconds}
evaluation_period_updates = 500
evaluation_episodes = 1
[topology]
layout = "bundled"
bundles = 2
evaluators = 1
[env]
id = "ALE/Pong-v5"
simulators = 4
max_episode_frames = 4000
[network]
kind = "nature"
[replay]
place = "global"
sampling = "prioritized"
capacity_steps = 20000
learning_starts_steps = 1000
[learning]
optimizer = "adagrad"
[checkpoint]
period_seconds = 60.0
keep_last = 2
[log]
norms = 20
trace = true
display = "plain"
"""


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes an hour, ``quick`` a minute.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        The job failed, or the memory of a rank grew.
    StorageError
        ``json_path`` cannot be written.
    """
    seconds = 40.0 if quick else 60 * MINUTES
    with _jobs.measurement("hpcrl bench soak", json_path) as job:
        memory = soak(job.launcher, job.directory / "run", seconds, 1.0 if quick else PERIOD_SECONDS)
        rises = {role: rise(times, sizes) for role, (times, sizes) in memory.items()}
        job.rows.extend(bench.Row(f"soak.{role}.rise", value, "MB/min") for role, value in rises.items())
        job.rows.extend(bench.Row(f"soak.{role}.memory", sizes[-1], "MB") for role, (_, sizes) in memory.items())
        job.rows.extend(queue_rows(read_runlog(job.directory / "run", "progress")))
        job.notes.append(f"rise: least squares, without the first {100 * WARM_SHARE:.0f} % of {seconds:g} s")
    growing = [role for role, value in rises.items() if value > LARGEST_RISE]
    if growing and not quick:  # a minute is all warm-up
        raise HpcrlError(f"expected memory to rise by at most {LARGEST_RISE:g} MB/min, but not: {', '.join(growing)}")


def soak(
    launcher: Sequence[str], run_dir: Path, seconds: float, period: float
) -> dict[str, tuple[list[float], list[float]]]:
    """Train for so long; for each role the times at which its rank was looked at [s], and its resident memory [MB].

    Raises
    ------
    HpcrlError
        The job failed.
    """
    config, output = run_dir.with_suffix(".toml"), run_dir.with_suffix(".out")
    config.write_text(CONFIG.format(seconds=seconds))
    command = [*launcher, "-n", str(len(ROLES)), sys.executable, "-m", "hpcrl", "train", str(config)]
    memory: dict[str, tuple[list[float], list[float]]] = {role: ([], []) for role in ROLES}
    begin = time.monotonic()

    def look(launched: subprocess.Popen) -> None:
        for rank, megabytes in resident(launched.pid).items():
            times, sizes = memory[ROLES[rank]]
            times.append(time.monotonic() - begin)
            sizes.append(megabytes)

    codes = (EXIT_FINISHED, EXIT_STOPPED)
    limit = seconds + START_SECONDS
    _jobs.run([*command, "--run-dir", str(run_dir)], output, limit, codes, look=look, period_seconds=period)
    missing = [role for role, (times, _) in memory.items() if len(times) < 4]
    if missing:
        raise HpcrlError(f"expected to see the memory of all ranks, never or hardly saw: {', '.join(missing)}")
    return memory


def resident(launcher: int) -> dict[int, float]:
    """Resident memory of each rank below a launcher, by its number [MB]; without those that come or go just now."""
    parents, found = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
    for pid in parents:
        above = pid
        while above in parents and above != launcher:
            above = parents[above]
        if above != launcher:
            continue
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            continue
        rank = re.search(r"(?:^|\0)(?:PMI_RANK|OMPI_COMM_WORLD_RANK)=(\d+)", environment)
        size = re.search(r"VmRSS:\s+(\d+) kB", status)
        if rank and size:
            found[int(rank[1])] = int(size[1]) * 1024 / 1e6
    return found


def rise(times: Sequence[float], sizes: Sequence[float]) -> float:
    """Slope of what was seen after the warm-up [MB/min]."""
    at, size = np.array(times), np.array(sizes)
    warm = at >= at[0] + WARM_SHARE * (at[-1] - at[0])
    return float(60 * np.polyfit(at[warm], size[warm], 1)[0])


def queue_rows(progress: Mapping[str, np.ndarray]) -> list[bench.Row]:
    """Age of gradients and speed in the first and the last third of a run: neither is to get worse."""
    rows, third = [], max(1, len(progress["wall_seconds"]) // 3)
    for name, unit in (("staleness_mean", "updates"), ("updates_per_second", "updates/s")):
        values = progress[name]
        rows += [
            bench.Row(f"soak.{name}.first", float(np.nanmean(values[:third])), unit),
            bench.Row(f"soak.{name}.last", float(np.nanmean(values[-third:])), unit),
        ]
    return rows
