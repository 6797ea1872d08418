"""``hpcrl bench scale``: jobs from 1 server and 1 bundle to the paper's 31 servers and 100 bundles, on one machine.

The ranks are real: hpcrl's roles, windows, rings, optimizers, run log and checkpoints (`hpcrl.bench._scale_ranks`).
Only what a bundle computes is replaced by sleeps, so that ranks far above the cores can be run honestly. In the first
series the sleeps are as long as simulation, inference and gradient take on this machine, and bundles are added until
the cores are full; in the second they are so long that the cores stay about half idle whatever the number of ranks.

The bound is bundles over the time that one of them sleeps for an update: as if transport, servers and waiting took
nothing. MPI and its launcher are chosen as in ``hpcrl bench transport``.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl import bench
from hpcrl.analysis.scaling import Sample, errors, fit
from hpcrl.bench import _jobs
from hpcrl.bench._dqn_bound import Variant
from hpcrl.bench.dqn import SEARCH_SECONDS, BareLoops
from hpcrl.config import Config
from hpcrl.errors import HpcrlError
from hpcrl.storage.checkpoint import latest
from hpcrl.storage.runlog import read_runlog

PARAMETERS = 1_687_206
"""Of the Nature network with 6 actions."""
FULL = ((1, 1), (1, 2), (1, 4), (2, 8), (4, 16))
"""Servers and bundles of the series with sleeps as long as the work takes."""
IDLE = ((1, 1), (1, 4), (2, 8), (4, 16), (8, 32), (16, 64), (31, 100))
"""The same, with sleeps that leave cores idle."""
SMALL = ((1, 4), (4, 8))
"""The same, with a vector of an eighth of the length: what is due to bytes and what to messages."""
HELD_OUT = (("full", 1, 2), ("full", 2, 8), ("idle", 8, 32), ("idle", 31, 100))
"""Jobs that the cost model is tried on and not fitted to."""
JOBS = (
    *(("full", *ranks) for ranks in FULL),
    *(("idle", *ranks) for ranks in IDLE),
    *(("small", *ranks) for ranks in SMALL),
)
QUICK, QUICK_SECONDS = (("full", 1, 1), ("idle", 2, 3)), 2.0
IDLE_SHARE = 0.5
SECONDS, ROUNDS = 12.0, 10
"""Of training in each job; and sleeps of a bundle beside, so that all have made several updates before the end."""
CORES = len(os.sched_getaffinity(0))
WARM_SHARE = 0.1
"""Of that time, after the first update of the last server or learner, before anything is measured."""
LIMIT_SECONDS = 240.0
SLEEPS = {"simulate": "simulation", "infer": "inference", "gradient": "gradient"}
"""What sleeps, and the bare loop's name for it."""


class Found(NamedTuple):
    """What came of one job."""

    servers: int
    bundles: int
    vector_bytes: int
    sleep_seconds: float
    """of a bundle for one update"""
    updates_per_second: float
    cores: float
    """processor seconds per second of all ranks"""
    server_processor_seconds: float
    """per update, of all servers"""
    bundle_processor_seconds: float
    """per update, of a bundle"""
    server_busy: float
    """greatest share of a core that a server used"""
    pulls: np.ndarray
    """float64 ``[N]`` seconds of each pull that brought something"""
    pushes: np.ndarray
    """float64 ``[M]`` seconds of each push"""
    delays: np.ndarray
    """int64 ``[D]`` gradients by delay at shard 0 [updates]"""
    ready_seconds: float
    """from the launcher's start until the last rank begins with its roles"""
    start_seconds: float
    """and to the first update of the last learner"""
    stop_seconds: float
    """from the end of training, through the last checkpoint, to the end of the launcher"""
    server_bytes: float
    bundle_bytes: float
    """resident, mean of the ranks"""
    bundle_own_bytes: float
    """of these, shared with no other process"""

    @property
    def bound(self) -> float:
        """Updates per second if nothing took time but the bundles' sleeps."""
        return self.bundles / self.sleep_seconds


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about ten minutes,
    ``quick`` half a one.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        A job failed.
    StorageError
        ``json_path`` cannot be written.
    """
    with _jobs.measurement("hpcrl bench scale", json_path) as job:
        sleeps = dict.fromkeys(SLEEPS, 5e-3) if quick else measured_sleeps()
        text = ", ".join(f"{name} {1e3 * seconds:.2f} ms" for name, seconds in sleeps.items())
        job.notes.append(
            f"a bundle sleeps for each update: {text}; {SECONDS:g} s and {ROUNDS} such sleeps of training in each job"
        )
        job.notes.append("scale.*.bound = bundles / (t_simulate + t_infer + t_gradient)")
        found: dict[tuple[str, int, int], Found] = {}
        for series, servers, bundles in QUICK if quick else JOBS:
            stretch = (
                stretched(list(found.values()), servers, bundles, sum(sleeps.values())) if series != "full" else 1.0
            )
            longer = {name: stretch * length for name, length in sleeps.items()}
            length = PARAMETERS // 8 if series == "small" else PARAMETERS
            seconds = QUICK_SECONDS if quick else SECONDS
            one = measure(job.launcher, job.directory, servers, bundles, longer, seconds, parameters=length)
            found[series, servers, bundles] = one
            job.rows.extend(figure_rows(series, one))
            job.console.print(summary(series, one), highlight=False)
        if not quick:
            rows, notes = model_rows(found)
            job.rows.extend(rows)
            job.notes.extend(notes)


def measured_sleeps() -> dict[str, float]:
    """Seconds that simulation, inference and gradient of an update take on one core, in the faster precision."""
    with BareLoops(1) as loops:
        variants = [Variant(precision, "contiguous", 1) for precision in ("float32", "bfloat16")]
        times = [loops.measure(dict.fromkeys(loops.parts, v), SEARCH_SECONDS, 1) for v in variants]
    return {name: min(t[part] for t in times) for name, part in SLEEPS.items()}


def stretched(found: Sequence[Found], servers: int, bundles: int, sleep_seconds: float) -> float:
    """How many times longer bundles must sleep, at least once, so that ``IDLE_SHARE`` of the cores is not used.

    Processor time per update is taken from the largest job so far, and its servers' part to grow with their number.
    """
    last = found[-1]
    processor = last.bundle_processor_seconds + last.server_processor_seconds * max(1.0, servers / last.servers)
    rate = (1 - IDLE_SHARE) * CORES / processor
    return max(1.0, bundles / rate / sleep_seconds)


def measure(
    launcher: Sequence[str],
    directory: Path,
    servers: int,
    bundles: int,
    sleeps: Mapping[str, float],
    seconds: float = SECONDS,
    *,
    parameters: int = PARAMETERS,
) -> Found:
    """Run one job and read what it found.

    Raises
    ------
    HpcrlError
        It failed, left no checkpoint, or was too short.
    """
    run_dir = Path(tempfile.mkdtemp(prefix=f"{servers}+{bundles}-", dir=directory))  # two series may have equal jobs
    seconds += ROUNDS * sum(sleeps.values())
    spec = specification(servers, bundles, parameters, sleeps, seconds, run_dir)
    begin = time.time()
    ranks = _jobs.figures(
        launcher,
        servers + bundles,
        "hpcrl.bench._scale_ranks",
        [json.dumps(spec)],
        run_dir.with_suffix(".out"),
        seconds + LIMIT_SECONDS,
    )["ranks"]
    return read(ranks, spec, begin, time.time())


def specification(
    servers: int, bundles: int, parameters: int, sleeps: Mapping[str, float], seconds: float, run_dir: Path
) -> dict:
    """What the ranks are told: what a job has by default, where it matters here."""
    config = Config()
    return {
        "servers": servers,
        "bundles": bundles,
        "parameters": parameters,
        "sleeps": dict(sleeps),
        "seconds": seconds,
        "warm_seconds": WARM_SHARE * seconds,
        "run_dir": str(run_dir),
        "optimizer": "adagrad",
        "slots": config.server.slots,
        "pipeline": config.learner.pipeline,
        "sync_period": config.actor.sync_period_steps,
        "target_period": config.learning.target_period_updates,
        "report_period_seconds": config.actor.report_period_seconds,
        "heartbeat_seconds": config.run.heartbeat_seconds,
        "stall_seconds": config.run.stall_seconds,
        "idle_sleep_seconds": config.server.idle_sleep_seconds,
    }


def read(ranks: Sequence[Mapping], spec: Mapping, begin: float, end: float) -> Found:
    """Make figures of what the ranks found, and of the run log; the job was started and had ended at these times."""
    run_dir, servers, bundles = Path(spec["run_dir"]), spec["servers"], spec["bundles"]
    if latest(run_dir)[0] is None:
        raise HpcrlError(f"{servers} servers and {bundles} bundles: expected a checkpoint at the end, got none")
    held = {True: [r for r in ranks if r["server"]], False: [r for r in ranks if not r["server"]]}
    seconds = ranks[0]["seconds"]
    updates = held[True][0]["activities"].get("apply", [0, 0.0])[0]
    if seconds <= 0 or not updates:
        raise HpcrlError(f"{servers} servers and {bundles} bundles: expected updates within the time, got none")
    processor = {s: sum(r["processor_seconds"] for r in held[s]) for s in held}
    gradients = read_runlog(run_dir, "gradients")
    sent = gradients["delay_updates"] >= 0
    return Found(
        servers=servers,
        bundles=bundles,
        vector_bytes=4 * spec["parameters"],
        sleep_seconds=sum(spec["sleeps"].values()),
        updates_per_second=updates / seconds,
        cores=sum(processor.values()) / seconds,
        server_processor_seconds=processor[True] / updates,
        bundle_processor_seconds=processor[False] / updates,
        server_busy=max(r["processor_seconds"] for r in held[True]) / seconds,
        pulls=np.concatenate([r["pull_seconds"] for r in held[False]]),
        pushes=np.concatenate([r["push_seconds"] for r in held[False]]),
        delays=np.bincount(gradients["delay_updates"][sent], gradients["count"][sent], bundles).astype(np.int64),
        ready_seconds=max(r["ready"] for r in ranks) - begin,
        start_seconds=max(r["first"] for r in held[False]) - begin,
        stop_seconds=end - min(r["stopped"] for r in ranks),
        server_bytes=float(np.mean([r["resident_bytes"] for r in held[True]])),
        bundle_bytes=float(np.mean([r["resident_bytes"] for r in held[False]])),
        bundle_own_bytes=float(np.mean([r["own_bytes"] for r in held[False]])),
    )


def figure_rows(series: str, found: Found) -> Iterator[bench.Row]:
    """Rows of one job; its ratio is its efficiency."""
    name = f"scale.{series}.{found.servers}+{found.bundles}"
    yield from bench.compared(name, found.updates_per_second, "updates/s", found.bound)
    yield bench.Row(f"{name}.cores", found.cores / CORES, "1")
    yield bench.Row(f"{name}.server", found.server_busy, "1")
    for what, seconds in (("pull", found.pulls), ("push", found.pushes)):
        for q in (50, 99):
            yield bench.Row(f"{name}.{what}.p{q}", 1e3 * float(np.percentile(seconds, q)) if len(seconds) else 0, "ms")
    yield bench.Row(f"{name}.delay", mean_delay(found.delays), "updates")
    yield bench.Row(f"{name}.sleep", 1e3 * found.sleep_seconds, "ms")
    yield bench.Row(f"{name}.work.server", 1e3 * found.server_processor_seconds, "ms")
    yield bench.Row(f"{name}.work.bundle", 1e3 * found.bundle_processor_seconds, "ms")
    yield bench.Row(f"{name}.ready", found.ready_seconds, "s")
    yield bench.Row(f"{name}.start", found.start_seconds, "s")
    yield bench.Row(f"{name}.stop", found.stop_seconds, "s")
    yield bench.Row(f"{name}.memory.server", found.server_bytes / 1e6, "MB")
    yield bench.Row(f"{name}.memory.bundle", found.bundle_bytes / 1e6, "MB")
    yield bench.Row(f"{name}.memory.bundle.own", found.bundle_own_bytes / 1e6, "MB")


def mean_delay(delays: np.ndarray) -> float:
    """Mean of a histogram; 0 where it is empty."""
    return float(np.arange(len(delays)) @ delays / max(1, delays.sum()))


def summary(series: str, found: Found) -> str:
    """One line on the terminal, with the histogram of delays."""
    shown = np.flatnonzero(delays := found.delays)
    text = " ".join(f"{delay}:{delays[delay]}" for delay in shown[:: max(1, len(shown) // 12)])
    return (
        f"{series} {found.servers}+{found.bundles}: {found.updates_per_second:.1f} of {found.bound:.1f} updates/s "
        f"({found.updates_per_second / found.bound:.2f}), cores {found.cores / CORES:.2f}, "
        f"ready {found.ready_seconds:.1f} s, "
        f"start {found.start_seconds:.1f} s, stop {found.stop_seconds:.1f} s, delays (updates:gradients) {text}"
    )


# The cost model -----------------------------------------------------------------------------------------------------


def sample(found: Found) -> Sample:
    """A job as the cost model sees it."""
    return Sample(
        servers=found.servers,
        bundles=found.bundles,
        vector_bytes=found.vector_bytes,
        compute_seconds=found.sleep_seconds,
        cores=CORES,
        updates_per_second=found.updates_per_second,
        bundle_cores=found.bundle_processor_seconds * found.updates_per_second,
        server_cores=found.server_processor_seconds * found.updates_per_second,
    )


def model_rows(found: Mapping[tuple[str, int, int], Found]) -> tuple[list[bench.Row], list[str]]:
    """The model's costs, fitted to all jobs but those of `HELD_OUT`, and what it says of these."""
    costs = fit([sample(one) for name, one in found.items() if name not in HELD_OUT])
    rows = [
        bench.Row(f"scale.cost.{name}", value, "s" if "idle" not in name else "1")
        for name, value in vars(costs).items()
    ]
    notes = ["scale.model.* = what the cost model (docs/scaling.md), not fitted to that job, predicts; bound: measured"]
    for name in HELD_OUT:
        one = found[name]
        predicted = (1 + errors(costs, [sample(one)])[0]) * one.updates_per_second
        series, servers, bundles = name
        rows += bench.compared(
            f"scale.model.{series}.{servers}+{bundles}", predicted, "updates/s", one.updates_per_second
        )
    return rows, notes
