"""``averaging.py BACKEND[+overlap]...``: synchronous learners equal one learner with all their minibatches together."""

import sys
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI
from torch import nn

from hpcrl.algorithms.optimizers import Optimizer, make_rule
from hpcrl.errors import TransportError
from hpcrl.launch.nodes import places
from hpcrl.launch.reductions import make_reduction
from hpcrl.roles.overlap import Overlap
from hpcrl.roles.replicated import AllreduceUpdate, OwnReplica, ReplicatedParameters
from hpcrl.roles.updates import APPLIED, DROPPED, NO_DELAY
from hpcrl.transport.agreement import Agreement
from hpcrl.transport.collectives import Collectives
from hpcrl.transport.waiting import Backoff

BATCH, UPDATES = 8, 30
RULES = {
    "sgd": {"epsilon": 0.0, "momentum": 0.9},
    "rmsprop": {"epsilon": 1e-5, "rmsprop_centered": True, "rmsprop_epsilon_inside_root": True},
    "adam": {"epsilon": 1e-5},
}
RATE = {"sgd": 0.05, "rmsprop": 2e-3, "adam": 2e-3}
MOST_NORM = 0.5

comm = MPI.COMM_WORLD
nodes = [place.node for place in places(comm)]
labels = [f"rank {rank}" for rank in range(comm.size)]
torch.set_num_threads(1)


def network() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2))


def data(update: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The minibatches of all learners at an update, one after the other."""
    rng = np.random.default_rng([7, update])
    x = torch.from_numpy(rng.normal(size=(BATCH * comm.size, 6)).astype(np.float32))
    return x, torch.stack([x[:, 0] * x[:, 1], x.sum(1).sin()], 1)


def gradient(replica: OwnReplica, x: torch.Tensor, y: torch.Tensor) -> None:
    replica.flat.zero_gradients()
    (replica.network(x) - y).square().mean().backward()


def parameters_of(replica: OwnReplica, name: str) -> ReplicatedParameters:
    parameters = ReplicatedParameters(
        optimizer=Optimizer(replica.flat.values, make_rule(name, **RULES[name]), RATE[name]),
        learning_rate=lambda version: RATE[name] * (1 - version / (2 * UPDATES)),
        target_period=10,
        last_update=0,
        at_end=lambda: None,
        announce=lambda version: None,
        reporter=SimpleNamespace(),
    )
    replica.clock = parameters
    return parameters


def alone(name: str, refused=()) -> np.ndarray:
    """Parameters of one learner that has the minibatches of all that are not ``refused``."""
    replica = OwnReplica(network(), "cpu")
    parameters = parameters_of(replica, name)
    for update in range(UPDATES):
        x, y = data(update)
        some = np.concatenate([np.arange(BATCH) + BATCH * r for r in range(comm.size) if (update, r) not in refused])
        gradient(replica, x[some], y[some])
        norm = replica.flat.gradients.norm()
        replica.flat.gradients.mul_((MOST_NORM / (norm + 1e-6)).clamp(max=1.0))
        parameters.apply(replica.flat.gradients)
    return parameters.shard.copy()


def finish(update: AllreduceUpdate, agreement: Agreement) -> list:
    backoff = Backoff(comm)
    while (fates := update.fates()) is None:
        if not agreement.step():
            backoff.wait()
    return fates


def together(name: str, way: str, refused=(), infinite=(), compressed=False) -> np.ndarray:
    backend, _, overlapped = way.partition("+")
    with ExitStack() as resources:

        def keep(resource):
            resources.callback(resource.free)
            return resource

        agreement = keep(Agreement(comm, names={"stop": 0, "total_frames": 0}, own=("written",), note_bytes=8))
        everyone = keep(Collectives(comm))
        replica = OwnReplica(network(), "cpu")
        parameters = parameters_of(replica, name)
        if comm.rank == comm.size - 1:
            replica.flat.values.add_(1.0)  # what learner 0 has at the start counts
        reduction = make_reduction(
            everyone,
            nodes,
            backend=backend,
            compressed=compressed,
            overlapped=bool(overlapped),
            device="cpu",
            size=len(replica.flat),
            labels=labels,
            stall_seconds=60.0,
            keep=keep,
        )
        update = AllreduceUpdate(
            replica,
            None,
            parameters=parameters,
            agreement=agreement,
            everyone=everyone,
            reduction=reduction,
            max_gradient_norm=MOST_NORM,
            verify_period=7,
            labels=labels,
            overlap=keep(Overlap(replica.flat, reduction, everyone, least=20)) if overlapped else None,
        )
        update.start()
        mine = slice(BATCH * comm.rank, BATCH * (comm.rank + 1))
        for number in range(UPDATES):
            x, y = (part[mine] for part in data(number))
            update.pull(number)
            assert replica.global_update == number
            gradient(replica, x, y)
            accepted = (number, comm.rank) not in refused
            if (number, comm.rank) in infinite:
                replica.flat.gradients[3] = float("nan")
            update.give(number, accepted=accepted)
            fates = finish(update, agreement)
            if (number, comm.rank) in infinite:
                assert fates == [(DROPPED, NO_DELAY)], fates
            else:
                assert fates == ([(APPLIED, 0)] if accepted else []), fates
        result = parameters.shard.copy()
        assert parameters.target_version == UPDATES
        if comm.rank == comm.size - 1:
            parameters.optimizer.values[0] += 1e-6 + parameters.optimizer.values[0].abs() * 1e-6
        last = comm.size - 1
        with pytest.raises(TransportError, match=f"of rank {last} are no longer those of rank 0 .1 of"):
            update.verify()
        if comm.rank == 0:
            gradient(replica, *data(UPDATES))  # what is begun with, and never given, does not keep the others
    return result


for way in sys.argv[1:]:
    for name in RULES:
        np.testing.assert_allclose(together(name, way), alone(name), rtol=2e-4, atol=2e-5, err_msg=name)
    if "+" not in way:
        # Three digits of each gradient are left; what learners hold is verified to be the same all the same.
        rounded = together("sgd", way, compressed=True)
        np.testing.assert_allclose(rounded, alone("sgd"), atol=0.02)
        assert comm.size == 1 or (rounded != together("sgd", way)).any()
    some = {(3, 0), (4, comm.size - 1), (9, 0)}
    expected = alone("adam", some)
    np.testing.assert_allclose(together("adam", way, refused=some), expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(together("adam", way, infinite=some), expected, rtol=2e-4, atol=2e-5)
    if comm.rank == 0:
        print(way, "equal", flush=True)
