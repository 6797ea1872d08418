"""The ranks of ``hpcrl bench learners``: the same learners coupled and uncoupled in turn, all at once, one core each.

``python -m hpcrl.bench._learners_ranks BATCH UPDATES PAIRS BACKEND[+overlap]...``, under mpiexec. Rank 0 prints one
line, `MARK` and then as JSON ``{"pairs": [[coupled..., uncoupled], ...]}``: seconds of one update, the mean over the
ranks, coupled in each of the ways.
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
from hpcrl.launch.nodes import places
from hpcrl.launch.reductions import make_reduction
from hpcrl.networks import Replica, make_network
from hpcrl.replay.lanes import local_lanes
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.overlap import Overlap
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


class Single:
    """A learner whose gradients are its own."""

    def __init__(self, rank: int, batch_size: int):
        self.online, target = OwnReplica(_network(), "cpu"), Replica(_network(), None, 1)
        self.parameters = self.online.clock = ReplicatedParameters(
            optimizer=Optimizer(
                self.online.flat.values, make_rule("rmsprop", epsilon=1e-5, rmsprop_centered=True), 1e-5
            ),
            learning_rate=lambda version: 1e-5,
            target_period=2500,
            last_update=0,
            at_end=lambda: None,
            announce=lambda version: None,
            reporter=SimpleNamespace(),
        )
        self.replay, self.rng, self.batch_size = filled_replay(rank), np.random.default_rng(rank), batch_size
        rule = make_value_rule("none", loss="huber", atoms=0, support=(-1.0, 1.0), device="cpu")
        self.algorithm = Dqn(self.online, target, rule=rule, double=False, max_gradient_norm=0.0, dtype=torch.float32)

    def compute(self) -> None:
        """The gradient of the next minibatch."""
        self.algorithm.gradient(self.replay.sample(self.batch_size, self.rng))

    def update(self) -> None:
        """Apply it."""
        self.compute()
        self.parameters.apply(self.online.flat.gradients)


class Coupled(Single):
    """A learner whose gradients are averaged with those of the others. Collective."""

    def __init__(self, comm: MPI.Intracomm, batch_size: int, way: str, keep: Callable):
        super().__init__(comm.rank, batch_size)
        backend, _, overlapped = way.partition("+")
        labels = [f"rank {rank}" for rank in range(comm.size)]
        self.agreement = keep(Agreement(comm, names={"stop": 0, "total_frames": 0}, own=("written",), note_bytes=8))
        everyone = keep(Collectives(comm))
        reduction = make_reduction(
            everyone,
            [place.node for place in places(comm)],
            backend=backend,
            compressed=False,
            overlapped=bool(overlapped),
            device="cpu",
            size=len(self.online.flat),
            labels=labels,
            stall_seconds=60.0,
            keep=keep,
        )
        self.average = AllreduceUpdate(
            self.online,
            None,
            parameters=self.parameters,
            agreement=self.agreement,
            everyone=everyone,
            reduction=reduction,
            max_gradient_norm=0.0,
            verify_period=0,
            labels=labels,
            overlap=keep(Overlap(self.online.flat, reduction, everyone)) if overlapped else None,
        )
        self.average.start()
        self.comm = comm

    def update(self) -> None:
        """Compute a gradient, and apply the average."""
        self.average.pull(self.parameters.version)
        self.compute()
        self.average.give(self.parameters.version, accepted=True)
        backoff = Backoff(self.comm)
        while self.average.fates() is None:
            if not self.agreement.step():
                backoff.wait()


def main(batch_size: int, updates: int, pairs: int, ways: list[str]) -> None:
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

        learners = [*(Coupled(comm, batch_size, way, keep) for way in ways), Single(comm.rank, batch_size)]
        for learner in learners:
            learner.update()
        found = [[timed(comm, learner.update, updates) for learner in learners] for _ in range(pairs)]
    if comm.rank == 0:
        print(MARK + json.dumps({"pairs": found}), flush=True)


def _network() -> torch.nn.Module:
    return make_network("nature", (), (STACK, *FRAME), ACTIONS, np.uint8)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
