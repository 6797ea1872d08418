"""``hpcrl bench dqn``: steps per second of deep Q-learning on Pong, over what the same cores do in bare loops.

Ours is 1 parameter server and 2 bundles, and then the serial layout: whole jobs of ``hpcrl train``, each measured from
its run log while it learns steadily. The bound is bare loops (`hpcrl.bench._dqn_bound`), one process for each bundle,
which do the same work per update but share nothing: no parameters, gradients, replay, counters or log.
Ours and bound take turns, so that a change of the machine's speed meets both. GPUs are not used.

The bound of bundles counts an optimizer step and a publication for each update, since the servers share their cores;
``dqn.gorila.free_server`` holds the same rate against a bound without, as if servers cost nothing. In the serial layout
nobody reads what is published, so that nothing is. ``dqn.gorila.transport`` is the share of a bundle's time in which it
neither simulates, infers nor computes gradients, from one more run that is traced; ``dqn.gorila_1.transport`` that of a
bundle alone with its server, so that on two cores it never waits for one.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console

from hpcrl import bench
from hpcrl.analysis.trace import read_spans, shares, transport_share
from hpcrl.bench import _dqn_bound, _jobs
from hpcrl.bench._dqn_bound import BATCH_SIZE, PARTS, SIMULATORS, Variant
from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED, HpcrlError
from hpcrl.storage.runlog import read_runlog

INTENSITY = 8.0
PAIRS = 7
SEARCH_SECONDS = 1.0
TURNS = 3
"""in which the last candidates for the bound are compared"""
BOUND_SECONDS = 3.0
START_SECONDS = 90.0
"""A job may take this long to start and to end."""
WARM_UPDATES = 50
"""Global updates before a job is measured."""

CONFIG = """
[run]
name = "bench_dqn"
time_limit_seconds = {seconds}
[topology]
layout = "{layout}"
bundles = {bundles}
[env]
id = "ALE/Pong-v5"
protocol = "dopamine"
simulators = {simulators}
[network]
kind = "nature"
[replay]
learning_starts_steps = 1000
[exploration]
epsilon_start = 0.1  # from the first step on, the network is asked for nearly every action, as in the bound
epsilon_end = 0.1
[learning]
batch_size = {batch_size}
training_intensity = {intensity}
optimizer = "adagrad"
[log]
period_seconds = 1.0
display = "plain"
"""


class Job(NamedTuple):
    """One of the two jobs that are measured."""

    name: str
    """of its rows"""
    layout: str
    ranks: int
    bundles: int
    seconds: float
    """of training, start-up not counted"""
    prefix: str
    """of the rows of its bound's parts"""
    parts: tuple[str, ...]
    """of its bound"""


GORILA = Job("dqn.gorila", "bundled", ranks=3, bundles=2, seconds=14.0, prefix="dqn.part", parts=PARTS)
SERIAL = Job("dqn.serial", "serial", ranks=1, bundles=1, seconds=9.0, prefix="dqn.serial.part", parts=PARTS[:-1])
JOBS = GORILA, SERIAL
ONE_BUNDLE = GORILA._replace(name="dqn.gorila_1", ranks=2, bundles=1)
FREE_SERVER = GORILA._replace(name="dqn.gorila.free_server", parts=("simulation", "inference", "gradient"))


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about six minutes, ``quick`` (one pair) one.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        A job or a bare loop failed.
    StorageError
        ``json_path`` cannot be written.
    """
    console, launcher, pairs = Console(), _jobs.find_mpiexec(), 1 if quick else PAIRS
    if json_path is not None:
        bench.check_writable(json_path)
    header = bench.machine()
    rates: dict[str, list[float]] = {job.name: [] for job in JOBS}
    parts: dict[str, list[dict[str, float]]] = {job.name: [] for job in JOBS}
    with (
        BareLoops(max(job.bundles for job in JOBS)) as loops,
        tempfile.TemporaryDirectory(prefix="hpcrl-bench-") as tmp,
    ):
        choices = {job.name: fastest(loops, job.bundles) for job in JOBS}
        for pair in range(1, pairs + 1):
            for job in JOBS:
                rates[job.name].append(train(job, launcher, Path(tmp) / f"{job.name}-{pair}"))
                parts[job.name].append(loops.measure(choices[job.name], BOUND_SECONDS, job.bundles))
                ours, bound = rates[job.name][-1], bound_rate(job, parts[job.name][-1])
                console.print(f"{job.name} {pair}/{pairs}: {ours:,.0f} steps/s, bound {bound:,.0f}", highlight=False)
        rows, notes = [], []
        for job in (GORILA, ONE_BUNDLE):
            rows.append(bench.Row(f"{job.name}.transport", transport(job, launcher, Path(tmp) / job.name), "1"))
    for job in JOBS:
        rows += job_rows(job, rates[job.name], parts[job.name])
        notes += job_notes(job, rates[job.name], parts[job.name], choices[job.name])
    rows += bound_rows(FREE_SERVER, rates[GORILA.name], bench.medians(parts[GORILA.name]))
    bench.print_rows(rows, title="hpcrl bench dqn", header=header, notes=notes, console=console)
    if json_path is not None:
        bench.write_json(rows, json_path)


def bound_rate(job: Job, parts: Mapping[str, float]) -> float:
    """``processes x 4 / (t_simulation + t_inference + t_gradient + t_optimizer + t_publication)`` [steps/s].

    The times are those of one update, while all processes run: one step of 4 simulators, 4 greedy actions, one
    gradient of a batch of 32, AdaGrad's step and one copy of the parameters [seconds]; of the parts that the job has.
    """
    return job.bundles * SIMULATORS / sum(parts[part] for part in job.parts)


def job_rows(job: Job, rates: Sequence[float], parts: Sequence[Mapping[str, float]]) -> list[bench.Row]:
    """Rows of one job: itself, its bound, their ratio, and the parts of the bound; all of medians."""
    times = bench.medians(parts)
    rows = bound_rows(job, rates, times)
    return rows + [bench.Row(f"{job.prefix}.{part}", 1e3 * times[part], "ms") for part in job.parts]


def bound_rows(job: Job, rates: Sequence[float], times: Mapping[str, float]) -> list[bench.Row]:
    """The median rate, its bound and their ratio."""
    return bench.compared(job.name, statistics.median(rates), "steps/s", bound_rate(job, times))


def job_notes(
    job: Job, rates: Sequence[float], parts: Sequence[Mapping[str, float]], choice: Mapping[str, Variant]
) -> list[str]:
    """The bound's formula with its figures, how its parts were computed, and how much the pairs differ."""
    times, bounds = bench.medians(parts), [bound_rate(job, sample) for sample in parts]
    ratios = [rate / bound for rate, bound in zip(rates, bounds, strict=True)]
    return [
        f"{job.name}.bound = processes x {SIMULATORS} / ({' + '.join(f't_{part}' for part in job.parts)})",
        f"    = {job.bundles} x {SIMULATORS} / ({' + '.join(f'{1e3 * times[part]:.3f}' for part in job.parts)} ms)"
        f" = {bound_rate(job, times):,.0f} steps/s",
        "    fastest: " + "; ".join(f"{part} {_describe(part, choice[part])}" for part in job.parts),
        f"    {len(rates)} pairs: ours {min(rates):,.0f} to {max(rates):,.0f}, bound {min(bounds):,.0f} to "
        f"{max(bounds):,.0f} steps/s, ratio {min(ratios):.3f} to {max(ratios):.3f}",
    ]


def _describe(part: str, variant: Variant) -> str:
    threads = f"{variant.threads} thread{'s' if variant.threads > 1 else ''}"
    if part not in ("inference", "gradient"):
        return threads
    return f"{variant.precision} {variant.layout}, {threads}"


# Ours ---------------------------------------------------------------------------------------------------------------


def train(job: Job, launcher: Sequence[str], run_dir: Path) -> float:
    """Run a job to its time limit and return its steps per second.

    Raises
    ------
    HpcrlError
        It failed, or was too slow to be measured.
    """
    _run(job, launcher, run_dir)
    rate = steady_rate(read_runlog(run_dir, "progress"), job.seconds)
    shutil.rmtree(run_dir)
    return rate


def transport(job: Job, launcher: Sequence[str], run_dir: Path) -> float:
    """Run a job and return the share of its bundles' time that is not their work, while they learn steadily.

    Raises
    ------
    HpcrlError
        It failed.
    """
    _run(job, launcher, run_dir, "--set", "log.trace=true")
    spans, labels = read_spans(run_dir)
    steady = (spans["global_update"] >= WARM_UPDATES) & (spans["wall_seconds"] <= job.seconds)
    found = shares({name: column[steady] for name, column in spans.items()}, labels)
    return statistics.fmean(share for rank in found.values() if (share := transport_share(rank)) is not None)


def _run(job: Job, launcher: Sequence[str], run_dir: Path, *options: str) -> None:
    config, output = (run_dir.with_name(run_dir.name + suffix) for suffix in (".toml", ".out"))
    bundles = job.bundles if job.layout == "bundled" else 0
    fields = {**job._asdict(), "bundles": bundles, "simulators": SIMULATORS}
    config.write_text(CONFIG.format(**fields, batch_size=BATCH_SIZE, intensity=INTENSITY))
    command = [sys.executable, "-m", "hpcrl", "train", str(config), "--run-dir", str(run_dir), *options]
    if job.ranks > 1:
        command = [*launcher, "-n", str(job.ranks), *command]
    _jobs.run(command, output, job.seconds + START_SECONDS, codes=(EXIT_FINISHED, EXIT_STOPPED))


def steady_rate(progress: Mapping[str, np.ndarray], limit_seconds: float) -> float:
    """Steps per second of a run, from its log, between the end of its warm-up and its time limit.

    Raises
    ------
    HpcrlError
        The run did not get far enough, or trained less than the intensity that it was asked for.
    """
    # Rows go on while the last checkpoint is written, after the limit.
    steady = (progress["global_update"] >= WARM_UPDATES) & (progress["wall_seconds"] <= limit_seconds)
    if np.count_nonzero(steady) < 3:
        raise HpcrlError(
            f"expected at least 3 rows of progress between {WARM_UPDATES} updates and {limit_seconds:g} s, got "
            f"{np.count_nonzero(steady)}: this machine is too slow, or too busy, for a segment this short"
        )
    seconds, steps, updates = (
        float(np.ptp(progress[name][steady])) for name in ("wall_seconds", "total_steps", "global_update")
    )
    intensity = updates * BATCH_SIZE / steps
    if abs(intensity / INTENSITY - 1) > 0.1:
        raise HpcrlError(f"expected a training intensity of {INTENSITY:g}, got {intensity:.2f}: gradients were dropped")
    return steps / seconds


# Bound --------------------------------------------------------------------------------------------------------------


class BareLoops:
    """Processes that run bare loops when asked, and otherwise wait.

    Parameters
    ----------
    processes : int
    program : sequence of str
        Arguments of Python; empty: this benchmark's own, by path and with -P, so that nothing of hpcrl is imported.
    parts : sequence of str
        What a pass of its loop consists of.
    """

    def __init__(self, processes: int, program: Sequence[str] = (), parts: Sequence[str] = PARTS):
        self.parts, command = parts, [sys.executable, *(program or ("-P", _dqn_bound.__file__))]
        environment = {**_jobs.environment(), "THP_MEM_ALLOC_ENABLE": "1"}  # large pages, as ours have
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        self._processes = [subprocess.Popen(command, **pipes) for _ in range(processes)]

    def __enter__(self) -> "BareLoops":
        return self

    def __exit__(self, *_) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()

    def measure(self, choice: Mapping[str, Variant], seconds: float, processes: int) -> dict[str, float]:
        """Run the loop in some of the processes at once; return the seconds of each part, their mean.

        Raises
        ------
        HpcrlError
            One of them has died; its traceback is on stderr.
        """
        request = json.dumps({"choice": choice, "seconds": seconds}) + "\n"
        asked = self._processes[:processes]
        try:
            for process in asked:
                process.stdin.write(request)
                process.stdin.flush()
            answers = [json.loads(process.stdout.readline()) for process in asked]
        except (OSError, ValueError) as error:
            raise HpcrlError("a bare loop has failed; its traceback is above") from error
        return {part: statistics.fmean(answer[part] for answer in answers) for part in self.parts}


def fastest(
    loops: BareLoops, processes: int, precisions: Sequence[str] = ("float32", "bfloat16")
) -> dict[str, Variant]:
    """Try every precision, layout and number of threads; return the best variant for each part."""
    threads = sorted({1, 2, max(1, len(os.sched_getaffinity(0)) // processes)})
    variants = [Variant(*v) for v in product(precisions, ("contiguous", "channels_last"), threads)]
    times = {v: loops.measure(dict.fromkeys(loops.parts, v), SEARCH_SECONDS, processes) for v in variants}

    def best(among: Sequence[Variant]) -> dict[str, Variant]:
        return {part: min(among, key=lambda variant: times[variant][part]) for part in loops.parts}

    # Parts with different numbers of threads disturb each other, so the mixture must win as a whole, too.
    finalists = [best(variants), *(best([v for v in variants if v.threads == number]) for number in threads)]
    # In turns, so that what disturbs one of them for a second does not decide.
    found = [
        [sum(loops.measure(choice, SEARCH_SECONDS, processes).values()) for choice in finalists] for _ in range(TURNS)
    ]
    return finalists[int(np.min(found, axis=0).argmin())]
