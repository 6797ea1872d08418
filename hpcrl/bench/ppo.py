"""``hpcrl bench ppo``: steps per second of PPO on Pong, over what the same cores do in bare loops.

Ours is a whole job of ``hpcrl train``, with 8 simulators, rollouts of 128 steps, 4 epochs of 4 minibatches and Nature's
network, measured from its run log, once in float32 and once in the fastest precision: on one rank, and on as many as
there are cores, which share simulators and minibatches and average their gradients. The bound is bare loops
(`hpcrl.bench._ppo_bound`) in as many processes, which do the same work with nothing around it and share nothing. Ours
and bound take turns, so that a change of the machine's speed meets both. GPUs are not used.
"""

import math
import os
import shutil
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from hpcrl import bench
from hpcrl.bench import _jobs
from hpcrl.bench._dqn_bound import Variant
from hpcrl.bench._ppo_bound import EPOCHS, HORIZON, MINIBATCHES, PARTS, SIMULATORS
from hpcrl.bench.dqn import START_SECONDS, BareLoops, fastest
from hpcrl.bench.sampler import hours
from hpcrl.errors import EXIT_FINISHED, EXIT_STOPPED, HpcrlError
from hpcrl.networks import resolve_precision
from hpcrl.storage.runlog import read_runlog

PAIRS = 7
JOB_SECONDS = 11.0
"""of training, start-up not counted; longer where `JOB_ROLLOUTS` take longer"""
JOB_ROLLOUTS = 8
BOUND_SECONDS = 4.0
PRECISIONS = {"ppo": ("float32", "bfloat16"), "ppo.float32": ("float32",)}
"""Rows, and the precisions that job and bound may choose from, where the processor multiplies both."""
RANKS = sorted({1, math.gcd(SIMULATORS, len(os.sched_getaffinity(0)))})

CONFIG = f"""
[run]
name = "bench_ppo"
[topology]
layout = "sampler_learner"
[env]
id = "ALE/Pong-v5"
protocol = "nature"
simulators = {{simulators}}
[network]
kind = "nature"
[policy]
horizon_steps = {HORIZON}
epochs = {EPOCHS}
minibatches = {MINIBATCHES}
clip = 0.1
[learning]
algorithm = "ppo"
update = "allreduce"
[log]
period_seconds = 0.1
display = "plain"
"""


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about 15 minutes, ``quick`` (one pair) three.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        A job or a bare loop failed.
    StorageError
        ``json_path`` cannot be written.
    """
    with _jobs.measurement("hpcrl bench ppo", json_path) as job:
        rows = precisions_here()
        if len(rows) < len(PRECISIONS):
            job.notes.append("float32 alone: this processor does not multiply bfloat16")
        for ranks in RANKS:
            with BareLoops(ranks, ("-m", "hpcrl.bench._ppo_bound", str(ranks)), PARTS) as loops:
                for name, precisions in rows.items():
                    measure(job, loops, name if ranks == 1 else f"{name}.ranks_{ranks}", ranks, precisions, quick)
        job.notes.append(
            "bound = 8 x 32 / (t_simulation + t_inference + t_gradient + t_optimizer), t of 32 steps, 4 gradients"
        )


def precisions_here() -> dict[str, tuple[str, ...]]:
    """`PRECISIONS`, or their one row that is left where a job computes in float32 anyhow."""
    if resolve_precision("auto", "nature", "cpu") == torch.float32:
        return {"ppo": ("float32",)}
    return PRECISIONS


def measure(
    job: _jobs.Measurement, loops: BareLoops, name: str, ranks: int, precisions: Sequence[str], quick: bool
) -> None:
    """Add the rows and notes of jobs on so many ranks, in one of these precisions."""
    choice, rates, parts, pairs = fastest(loops, ranks, precisions), [], [], 1 if quick else PAIRS
    for pair in range(1, pairs + 1):
        parts.append(loops.measure(choice, BOUND_SECONDS, ranks))
        bound = bound_rate(parts[-1])
        seconds = max(JOB_SECONDS, JOB_ROLLOUTS * SIMULATORS * HORIZON / bound)
        rates.append(train(job.launcher, ranks, precisions, job.directory / f"{name}-{pair}", seconds))
        job.console.print(f"{name} {pair}/{pairs}: {rates[-1]:,.0f} steps/s, bound {bound:,.0f}", highlight=False)
    times = bench.medians(parts)
    job.rows.extend(bench.compared(name, statistics.median(rates), "steps/s", bound_rate(times)))
    job.rows.append(hours(name, statistics.median(rates)))
    job.rows.extend(bench.Row(f"{name}.part.{part}", 1e3 * times[part], "ms") for part in PARTS)
    job.notes.append(describe(name, rates, parts, choice))


def bound_rate(parts: Mapping[str, float]) -> float:
    """Steps per second of loops in which a part of `hpcrl.bench._ppo_bound.PARTS` takes so many seconds of a pass.

    Of all processes together: however many there are, a pass of theirs is that of `SIMULATORS` simulators.
    """
    return SIMULATORS * HORIZON / EPOCHS / sum(parts.values())


def describe(
    name: str, rates: Sequence[float], parts: Sequence[Mapping[str, float]], choice: Mapping[str, Variant]
) -> str:
    """How the bound was computed, and how much the pairs differ."""
    ratios = [rate / bound_rate(sample) for rate, sample in zip(rates, parts, strict=True)]
    fastest_are = "; ".join(f"{part} {v.precision} {v.layout}, {v.threads} threads" for part, v in choice.items())
    return f"{name}: ratio {min(ratios):.3f} to {max(ratios):.3f}; fastest: {fastest_are}"


def train(launcher: Sequence[str], ranks: int, precisions: Sequence[str], run_dir: Path, seconds: float) -> float:
    """Run a job on some ranks for so many seconds and return its steps per second.

    Raises
    ------
    HpcrlError
        It failed, or was too slow to be measured.
    """
    config, output = (run_dir.with_name(run_dir.name + suffix) for suffix in (".toml", ".out"))
    config.write_text(CONFIG.format(simulators=SIMULATORS // ranks))
    precision = "auto" if len(precisions) > 1 else precisions[0]
    command = [sys.executable, "-m", "hpcrl", "train", str(config), "--run-dir", str(run_dir)]
    command += ["--set", f"run.time_limit_seconds={seconds}", "--set", f"network.precision={precision}"]
    if ranks > 1:
        command = [*launcher, "-n", str(ranks), *command]
    _jobs.run(command, output, seconds + START_SECONDS, codes=(EXIT_FINISHED, EXIT_STOPPED))
    rate = steady_rate(read_runlog(run_dir, "progress"), EPOCHS * MINIBATCHES)
    shutil.rmtree(run_dir)
    return rate


def steady_rate(progress: Mapping[str, np.ndarray], updates_per_rollout: int) -> float:
    """Steps per second of a run, from its log, between the ends of its first and its last whole rollout.

    The log keeps the newest row of those with the same frames. So the first row with all updates of a rollout is that
    of the moment before the next one begins.

    Raises
    ------
    HpcrlError
        The run did not get far enough.
    """
    updates, ends = progress["global_update"], []
    for count in range(updates_per_rollout, int(updates.max(initial=0)) + 1, updates_per_rollout):
        ends += np.flatnonzero(updates == count)[:1].tolist()
    if len(ends) < 4:
        raise HpcrlError(f"expected at least 4 rollouts, got {len(ends)}: this machine is too slow, or too busy")
    steps, seconds = (float(np.ptp(progress[name][ends])) for name in ("total_steps", "wall_seconds"))
    return steps / seconds
