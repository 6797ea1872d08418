"""``hpcrl bench sampler``: steps per second of the batched sampler on Pong, over the bare vector environment.

With random actions the bound is ale-py's own vector environment, stepped with random actions on all threads. With
inference (Nature's network, the fastest precision) it is what one gets by doing one after the other,
``1 / (1 / simulation + 1 / inference)`` of both alone on all threads; two groups of simulators, of which one runs while
the actions of the other are chosen, may exceed it. Ours divides the threads as a job does. All take turns in one
process.

Then two ranks, a core each, sample side by side, meeting after every five steps or never; and slow simulators on ranks
of their own are stacked or not, whose bound is what the mean time of a step allows. GPUs are not used.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv

from hpcrl import bench
from hpcrl.algorithms.policy_gradient import Categorical, Decision, SampledPolicy
from hpcrl.bench import _jobs
from hpcrl.bench._dqn_bound import keep_freed_memory
from hpcrl.envs import make_env
from hpcrl.networks import Replica, make_policy_network, resolve_precision
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler, share_threads

SIMULATORS = (8, 32, 128)
ROLLOUT_STEPS = 256
"""of all simulators together"""
PAIRS = 7
SECONDS = 0.5
RANKS = 2
STRAGGLERS = ((1, 1), (16, 1), (16, 2), (32, 2))
"""simulators on each of `STRAGGLER_RANKS` ranks, and their groups"""
STRAGGLER_RANKS = 4
STRAGGLER_SECONDS = 4.0
LIMIT_SECONDS = 120.0


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about three minutes, ``quick`` (a few
    simulators, one turn) less than one.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        A job failed.
    StorageError
        ``json_path`` cannot be written.
    """
    keep_freed_memory()
    threads = len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    with _jobs.measurement("hpcrl bench sampler", json_path) as job:
        simulators_tried, stragglers = (SIMULATORS[:1], STRAGGLERS[:1]) if quick else (SIMULATORS, STRAGGLERS)
        turns = (1, 0.2) if quick else (PAIRS, SECONDS)
        for simulators in simulators_tried:
            job.rows.extend(measure(simulators, threads, *turns))
        for simulators in simulators_tried:
            job.rows.extend(measure_ranks(job, simulators, *turns))
        for stacked, groups in stragglers:
            job.rows.extend(measure_stragglers(job, stacked, groups))
        job.notes.append(
            f"{threads} threads; medians of {PAIRS} turns of {SECONDS:g} s, rollouts of {ROLLOUT_STEPS} steps"
        )
        job.notes.append(
            f"ranks_{RANKS}: a core each, rollouts of 5 steps; stragglers: {STRAGGLER_RANKS} simulator ranks"
        )
        job.notes.append("hours per 50M steps are extrapolated from these seconds, without learning")


def measure_ranks(job: _jobs.Measurement, simulators: int, pairs: int, seconds: float) -> Iterator[bench.Row]:
    """Rows of so many simulators on two ranks that meet, or do not."""
    arguments = [str(simulators), str(seconds), str(pairs)]
    output = job.directory / f"ranks-{simulators}.out"
    found = _jobs.figures(job.launcher, RANKS, "hpcrl.bench._sampler_ranks", arguments, output, LIMIT_SECONDS)
    median = bench.medians(found["samples"])
    for mode in ("barrier", "free"):
        name = f"sampler.{simulators}.ranks_{RANKS}.{mode}"
        yield bench.Row(name, median[mode], "steps/s")
        yield bench.Row(f"{name}.of_inference_free", 100 * median[mode] / median["inference_free"], "%")
        yield hours(name, median[mode])


def measure_stragglers(job: _jobs.Measurement, stacked: int, groups: int) -> list[bench.Row]:
    """Rows of slow simulators, so many on each of some ranks."""
    name = f"sampler.stragglers.stacked_{stacked}.groups_{groups}"
    arguments = [str(stacked), str(groups), str(STRAGGLER_SECONDS)]
    found = _jobs.figures(
        job.launcher,
        1 + STRAGGLER_RANKS,
        "hpcrl.bench._straggler_ranks",
        arguments,
        job.directory / f"{name}.out",
        LIMIT_SECONDS,
    )
    rate, step_seconds = found["figures"]
    return bench.compared(name, rate, "steps/s", STRAGGLER_RANKS / step_seconds)


def hours(name: str, rate: float) -> bench.Row:
    """How long 50 million steps would take at a rate."""
    return bench.Row(f"{name}.hours_per_50M_steps", 50e6 / rate / 3600, "h, extrapolated")


def measure(simulators: int, threads: int, pairs: int = PAIRS, seconds: float = SECONDS) -> list[bench.Row]:
    """Rows of so many simulators: random actions, then inference in one group and in two."""
    samplers = {}
    for groups in (1, 2):
        policies = {"random": RandomPolicy(6), "inference": nature_policy(share_threads(threads, groups).choosing)}
        for name, policy in policies.items():
            samplers[f"{name}.{groups}"] = make_sampler(simulators, groups, threads, policy)
    work: dict[str, Callable[[], int]] = {name: lambda s=sampler: fill(s) for name, sampler in samplers.items()}
    work["simulation"] = bare_simulation(simulators, threads)
    # Alone, passes may have all of torch's threads: none is in a simulator's way.
    work["inference"] = bare_inference(nature_policy(), simulators)
    samples = [{name: rate(do, seconds) for name, do in work.items()} for _ in range(pairs)]
    for sampler in samplers.values():
        for group in sampler.groups:
            group.env.close()
    median = bench.medians(samples)
    both = 1 / (1 / median["simulation"] + 1 / median["inference"])
    rows, name = [], f"sampler.{simulators}"
    for groups in (1, 2):
        rows += bench.compared(
            f"{name}.random.groups_{groups}", median[f"random.{groups}"], "steps/s", median["simulation"]
        )
        rows += bench.compared(f"{name}.inference.groups_{groups}", median[f"inference.{groups}"], "steps/s", both)
        share = median[f"inference.{groups}"] / median["simulation"]
        rows.append(bench.Row(f"{name}.inference.groups_{groups}.of_inference_free", 100 * share, "%"))
        rows.append(hours(f"{name}.inference.groups_{groups}", median[f"inference.{groups}"]))
    return rows


class RandomPolicy:
    """Actions without a network."""

    def __init__(self, num_actions: int):
        self.num_actions, self.rng = num_actions, np.random.default_rng(0)

    def decide(self, observation: np.ndarray) -> Decision:
        """Uniform actions."""
        zeros = np.zeros(len(observation), np.float32)
        return Decision(self.rng.integers(self.num_actions, size=len(observation)), zeros, zeros)

    def value(self, observation: np.ndarray) -> np.ndarray:
        """Nothing."""
        return np.zeros(len(observation), np.float32)


def nature_policy(threads: int = 0) -> SampledPolicy:
    """A policy of Nature's network in the fastest precision, made as a job makes it."""
    dtype = resolve_precision("auto", "nature", "cpu")
    network = make_policy_network("nature", (), (4, 84, 84), 6, np.uint8)
    replica = Replica(network, None, 1, frozen_dtype=dtype)
    return SampledPolicy(replica, Categorical(6), np.random.default_rng(0), dtype, threads)


def make_sampler(simulators: int, groups: int, threads: int, policy, *, horizon: int = 0) -> Sampler:
    """Our sampler on Pong; rollouts have ``horizon`` steps of each simulator, or `ROLLOUT_STEPS` in all."""
    seeds = np.random.SeedSequence(0).spawn(groups)
    each = share_threads(threads, groups).simulating
    envs = [make_env(simulators // groups, seed, id="ALE/Pong-v5", stack=4, threads=each) for seed in seeds]
    for env in envs:
        env.reset()
    rollout = Rollout(
        horizon or ROLLOUT_STEPS // simulators,
        simulators,
        observation_shape=(4, 84, 84),
        observation_dtype=np.uint8,
        action_shape=(),
        action_dtype=np.int64,
    )
    return Sampler(envs, policy, rollout, restarts_at_once=False)


def fill(sampler: Sampler) -> int:
    """Fill one rollout; the steps of it."""
    while not sampler.rollout.full:
        sampler.step()
    sampler.begin()
    return sampler.rollout.valid.size


def bare_simulation(simulators: int, threads: int) -> Callable[[], int]:
    """ale-py alone, as many steps as a rollout has."""
    env = AtariVectorEnv(
        "pong", simulators, num_threads=threads, noop_max=0, use_fire_reset=False, reward_clipping=False
    )
    env.reset(seed=np.arange(simulators, dtype=np.int32))
    rng = np.random.default_rng(0)

    def steps() -> int:
        for _ in range(ROLLOUT_STEPS // simulators):
            env.step(rng.integers(6, size=simulators))
        return ROLLOUT_STEPS

    return steps


def bare_inference(policy: SampledPolicy, simulators: int) -> Callable[[], int]:
    """The forward passes of a rollout alone: those that actions are drawn by, and that of the states it ends in."""
    observation = np.random.default_rng(0).integers(256, size=(simulators, 4, 84, 84), dtype=np.uint8)

    def steps() -> int:
        for _ in range(ROLLOUT_STEPS // simulators):
            policy.decide(observation)
        policy.value(observation)
        return ROLLOUT_STEPS

    return steps


def rate(do: Callable[[], int], seconds: float) -> float:
    """Steps per second of doing something again and again for a while, after having done it once."""
    do()
    steps, begin = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        steps += do()
    return steps / elapsed if steps else 0.0
