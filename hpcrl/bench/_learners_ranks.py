"""The ranks of ``hpcrl bench learners``: the same learners coupled and uncoupled in turn, all at once, one core each.

``python -m hpcrl.bench._learners_ranks BATCH UPDATES PAIRS BACKEND``, under mpiexec. Rank 0 prints one line, `MARK` and
then as JSON ``{"pairs": [[coupled, uncoupled], ...]}``: seconds of one update, the mean over the ranks.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import torch
from mpi4py import MPI

from hpcrl.algorithms.dqn import Dqn
from hpcrl.algorithms.optimizers import Optimizer, make_rule
from hpcrl.algorithms.rules import make_rule as make_value_rule
from hpcrl.bench._jobs import MARK
from hpcrl.launch.reductions import make_reduction
from hpcrl.networks import Replica, make_network
from hpcrl.replay.lanes import local_lanes
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.replicated import AllreduceUpdate, OwnReplica, ReplicatedParameters
from hpcrl.transport.agreement import Agreement
from hpcrl.transport.collectives import Collectives
from hpcrl.transport.waiting import Backoff, wait_for_all

STACK, FRAME, ACTIONS, LANES, CAPACITY = 4, (84, 84), 6, 4, 2000


def filled_replay(rank: int) -> UniformReplay:
    """Random frames, as many as a processor's caches do not hold."""
    lanes = local_lanes(LANES, FRAME, np.uint8, capacity=CAPACITY, stack=STACK, n_step=1)
    rng, ids, no = np.random.default_rng(rank), np.arange(LANES), np.zeros(LANES, bool)
    frames = rng.integers(255, size=(16, LANES, *FRAME), dtype=np.uint8)
    for i in range(CAPACITY):
        lanes.append(ids, frames[i % 16], rng.integers(ACTIONS, size=LANES), rng.normal(size=LANES), no, no, no)
    return UniformReplay(lanes, n_step=1, discount=0.99, reward_clip=1.0)


def timed(comm: MPI.Intracomm, do: Callable[[], None], updates: int) -> float:
    """Seconds of one of ``updates`` calls, the mean over all ranks, which begin together."""
    wait_for_all(comm, 1e-4)
    begin = time.perf_counter()
    for _ in range(updates):
        do()
    return comm.allreduce((time.perf_counter() - begin) / updates) / comm.size


def main(batch_size: int, updates: int, pairs: int, backend: str) -> None:
    """Measure, and print on rank 0."""
    comm = MPI.COMM_WORLD
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with ExitStack() as resources:

        def keep(resource):
            resources.callback(resource.free)
            return resource

        online, target = OwnReplica(_network(), "cpu"), Replica(_network(), None, 1)
        parameters = ReplicatedParameters(
            optimizer=Optimizer(online.flat.values, make_rule("rmsprop", epsilon=1e-5, rmsprop_centered=True), 1e-5),
            learning_rate=lambda version: 1e-5,
            target_period=2500,
            last_update=0,
            at_end=lambda: None,
            announce=lambda version: None,
            reporter=SimpleNamespace(),
        )
        online.clock = parameters
        agreement = keep(Agreement(comm, names={"stop": 0, "total_frames": 0}, own=("written",), note_bytes=8))
        everyone = keep(Collectives(comm))
        nodes, labels = [0] * comm.size, [f"rank {rank}" for rank in range(comm.size)]
        coupled = AllreduceUpdate(
            online,
            None,
            parameters=parameters,
            agreement=agreement,
            everyone=everyone,
            reduction=make_reduction(
                everyone,
                nodes,
                backend=backend,
                compressed=False,
                device="cpu",
                size=len(online.flat),
                labels=labels,
                stall_seconds=60.0,
                keep=keep,
            ),
            max_gradient_norm=0.0,
            verify_period=0,
            labels=labels,
        )
        coupled.start()
        replay, rng = filled_replay(comm.rank), np.random.default_rng(comm.rank)
        rule = make_value_rule("none", loss="huber", atoms=0, support=(-1.0, 1.0), device="cpu")
        algorithm = Dqn(online, target, rule=rule, double=False, max_gradient_norm=0.0, dtype=torch.float32)

        def alone() -> None:
            algorithm.gradient(replay.sample(batch_size, rng))
            parameters.apply(online.flat.gradients)

        def together() -> None:
            coupled.pull(parameters.version)
            algorithm.gradient(replay.sample(batch_size, rng))
            coupled.give(parameters.version, accepted=True)
            backoff = Backoff(comm)
            while coupled.fates() is None:
                if not agreement.step():
                    backoff.wait()

        alone()
        found = [(timed(comm, together, updates), timed(comm, alone, updates)) for _ in range(pairs)]
    if comm.rank == 0:
        print(MARK + json.dumps({"pairs": found}), flush=True)


def _network() -> torch.nn.Module:
    return make_network("nature", (), (STACK, *FRAME), ACTIONS, np.uint8)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
