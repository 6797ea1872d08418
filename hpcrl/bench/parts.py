"""``hpcrl bench parts``: simulation, inference and gradient as hpcrl does them, over the same in bare loops.

Ours are what the roles call: the environment, the behaviour policy, and the gradient of deep Q-learning, on one process
with all its threads. The bounds are the parts of `hpcrl.bench._dqn_bound` in the fastest precision, memory layout and
number of threads. Both take turns in one process. GPUs are not used.
"""

import os
import time
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import Path

import numpy as np
import torch
from rich.console import Console

from hpcrl import bench
from hpcrl.algorithms.dqn import Dqn, EpsilonGreedy
from hpcrl.algorithms.rules import make_rule
from hpcrl.bench._dqn_bound import BATCH_SIZE, SIMULATORS, BareLoop, Variant, keep_freed_memory
from hpcrl.envs import make_env
from hpcrl.networks import Replica, make_network, resolve_precision
from hpcrl.types import Batch

AMOUNTS = {"simulation": (SIMULATORS, "steps/s"), "inference": (SIMULATORS, "actions/s"), "gradient": (1, "1/s")}
"""What one call does."""
PAIRS, SECONDS, SEARCH_SECONDS = 9, 0.5, 0.3


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about a minute, ``quick`` seconds.

    Raises
    ------
    StorageError
        ``json_path`` cannot be written.
    """
    if json_path is not None:
        bench.check_writable(json_path)
    keep_freed_memory()
    threads, header = len(os.sched_getaffinity(0)), bench.machine()
    pairs, seconds, search = (2, 0.1, 0.05) if quick else (PAIRS, SECONDS, SEARCH_SECONDS)
    loop, rows, notes = BareLoop(), [], []
    choice = fastest(loop, threads, search)
    for part, do in ours(threads).items():
        found = [
            {"ours": mean_seconds(do, seconds, threads), "bare": bare_seconds(loop, part, choice[part], seconds)}
            for _ in range(pairs)
        ]
        amount, unit = AMOUNTS[part]
        middle = bench.medians(found)
        rows += bench.compared(f"parts.{part}", amount / middle["ours"], unit, amount / middle["bare"])
        ratios = sorted(sample["bare"] / sample["ours"] for sample in found)
        how = "" if part == "simulation" else f"{choice[part].precision} {choice[part].layout}, "
        notes.append(
            f"parts.{part}.bound = {amount} / t(bare {part}), {how}{choice[part].threads} threads; {pairs} pairs, "
            f"ratio {ratios[0]:.3f} to {ratios[-1]:.3f}"
        )
    bench.print_rows(rows, title="hpcrl bench parts", header=header, notes=notes, console=Console())
    if json_path is not None:
        bench.write_json(rows, json_path)


def ours(threads: int) -> dict[str, Callable[[], object]]:
    """What the roles call for each part, on Pong and Nature's network."""
    env = make_env(
        SIMULATORS, np.random.SeedSequence(0), id="ALE/Pong-v5", stack=4, sticky_probability=0.25, threads=threads
    )
    env.reset()
    num_actions = 6
    dtype = resolve_precision("auto", "nature", "cpu")
    online, target = (
        Replica(make_network("nature", (), (4, 84, 84), num_actions, np.uint8), None, 1, "cpu", frozen)
        for frozen in (torch.float32, dtype)
    )
    rule = make_rule("none", loss="huber", atoms=0, support=(-1.0, 1.0), device="cpu")
    policy = EpsilonGreedy(online, rule.q, num_actions, np.random.default_rng(0), dtype)
    algorithm = Dqn(online, target, rule=rule, double=False, max_gradient_norm=0.0, dtype=dtype)
    rng, epsilon = np.random.default_rng(0), np.zeros(SIMULATORS)
    s_tm1, s_t = rng.integers(256, size=(2, BATCH_SIZE, 4, 84, 84), dtype=np.uint8)
    reward, discount = np.ones(BATCH_SIZE, np.float32), np.full(BATCH_SIZE, 0.99, np.float32)
    batch = Batch(s_tm1, rng.integers(num_actions, size=BATCH_SIZE), reward, discount, s_t)
    actions = np.zeros(SIMULATORS, np.int64)
    return {
        "simulation": lambda: env.step(actions),
        "inference": lambda: policy.act(env.observation, epsilon),
        "gradient": lambda: algorithm.gradient(batch),
    }


def fastest(loop: BareLoop, threads: int, seconds: float) -> Mapping[str, Variant]:
    """The best variant of each part of the bare loop."""
    variants = [
        Variant(*v)
        for v in product(
            ("float32", "bfloat16"), ("contiguous", "channels_last"), sorted({1, threads // 2 or 1, threads})
        )
    ]
    return {part: min(variants, key=lambda v: bare_seconds(loop, part, v, seconds)) for part in AMOUNTS}


def bare_seconds(loop: BareLoop, part: str, variant: Variant, seconds: float) -> float:
    """Mean seconds of one call of a part of the bare loop."""
    return mean_seconds(lambda: getattr(loop, part)(variant), seconds, variant.threads)


def mean_seconds(do: Callable[[], object], seconds: float, threads: int) -> float:
    """Mean seconds of one call, of those that begin within ``seconds`` after one that does not count."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    do()
    calls, begin = 0, time.perf_counter()
    while not calls or time.perf_counter() - begin < seconds:
        do()
        calls += 1
    return (time.perf_counter() - begin) / calls
