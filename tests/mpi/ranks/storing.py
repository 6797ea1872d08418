"""``storing.py LEARNERS N``: learners that overwrite stored parameters. Alone, each equals a plain optimizer for every
sync period N; together, the central moments are those of all gradients in the order in which they came."""

import sys
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcrl.algorithms.multi_step_adam import AsynchronousAdam, MultiStepAdam
from hpcrl.algorithms.optimizers import RMSProp
from hpcrl.roles.replicated import OwnReplica
from hpcrl.roles.store import StoreServer, StoreUpdate, moments_of
from hpcrl.roles.updates import APPLIED
from hpcrl.transport.counters import Counters
from hpcrl.transport.store import ChunkStore
from hpcrl.transport.waiting import Backoff, wait_for_all

LEARNERS, PERIOD = int(sys.argv[1]), int(sys.argv[2])
SERVERS, CHUNKS, UPDATES, RATE = 2, 3, 24, 0.01
BETAS, EPSILON = (0.9, 0.99), 1e-3
comm = MPI.COMM_WORLD
assert comm.size == SERVERS + LEARNERS
torch.set_num_threads(1)


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 9), nn.Tanh(), nn.Linear(9, 2))


size = sum(p.numel() for p in network().parameters())
bounds = [0, 16 * (size // 32), size]


def gradient_at(learner: int, number: int) -> np.ndarray:
    return np.random.default_rng([learner, number]).normal(size=size).astype(np.float32)


class Recorded(MultiStepAdam):
    """Remembers, for each chunk, what was merged into it and as which."""

    def merge(self, begin, end, values, m, v):
        part = slice(begin, end)
        merged = self.since, self._sum_g[part].numpy().copy(), self._sum_g2[part].numpy().copy()
        record.append((begin, int(update.store._buffer[:8].view(np.int64)[0]), *merged))
        super().merge(begin, end, values, m, v)


with ExitStack() as resources:
    for name, rule in (
        ("adam", AsynchronousAdam(EPSILON, BETAS)),
        ("rmsprop", RMSProp(0.9, EPSILON, centered=True, epsilon_inside_root=True)),
    ):
        if name == "rmsprop" and (PERIOD > 1 or LEARNERS > 1):
            continue
        vectors = 1 + len(moments_of(rule))
        store = ChunkStore(comm, owners=range(SERVERS), bounds=bounds, chunks=CHUNKS, vectors=vectors)
        counters = Counters(comm, owner=0, names=["global_update"])
        resources.callback(store.free)
        resources.callback(counters.free)
        record: list = []
        replica = OwnReplica(network(), "cpu")
        initial = replica.flat.values.numpy().copy()
        if comm.rank < SERVERS:
            begin, end = bounds[comm.rank : comm.rank + 2]
            server = StoreServer(
                comm.rank,
                store=store,
                begin=begin,
                end=end,
                initial=initial[begin:end],
                rule=rule,
                params=None,
                targets=SimpleNamespace(publish=lambda values, version: True),
                target_period=10,
                publish_seconds=0.0,
                global_update=partial(counters.get, "global_update"),
                learning_rate=lambda version: RATE,
                reporter=SimpleNamespace(),
            )
        wait_for_all(comm)
        if comm.rank >= SERVERS:
            learner = comm.rank - SERVERS
            replica.flat.values.zero_()  # what is stored counts
            update = StoreUpdate(
                replica,
                None,
                store=store,
                rule=rule,
                multi_step=Recorded(replica.flat.values, rule) if name == "adam" and PERIOD else None,
                sync_period=max(PERIOD, 1),
                first=learner,
                learning_rate=lambda version: RATE,
                count=partial(counters.add, "global_update"),
                last_update=0,
                at_end=lambda: None,
                target_period=10,
                stall_seconds=60.0,
                labels=[f"rank {rank}" for rank in range(comm.size)],
            )
            np.testing.assert_array_equal(replica.flat.values.numpy(), initial)
        wait_for_all(comm)  # no learner overwrites what another has not seen yet
        if comm.rank >= SERVERS:
            plain = torch.from_numpy(initial.copy())
            state = rule.start(plain)
            for number in range(UPDATES):
                update.pull(number)
                gradient = gradient_at(learner, number)
                replica.flat.gradients[:] = torch.from_numpy(gradient)
                update.give(number, accepted=True)
                backoff = Backoff(comm)
                while (fates := update.fates()) is None:
                    backoff.wait()
                assert [fate for fate, _ in fates] == [APPLIED]
                if LEARNERS == 1:
                    assert fates == [(APPLIED, 0)]
                    rule.apply(plain, torch.from_numpy(gradient), state, RATE)
                    np.testing.assert_allclose(replica.flat.values, plain, rtol=1e-5, atol=1e-6)
            # A visit before the period is over: the exponent is the number of steps really made.
            if PERIOD > 1:
                update.multi_step.step(torch.from_numpy(gradient_at(learner, UPDATES)), RATE)
                update._go(update._merge, update.multi_step.since)
                while update.fates() is None:
                    backoff.wait()
                rule.apply(plain, torch.from_numpy(gradient_at(learner, UPDATES)), state, RATE)
        wait_for_all(comm)
        records = comm.gather(record)
        shards = comm.gather(server.state() if comm.rank < SERVERS else None)
        expected = comm.gather(plain.numpy() if comm.rank >= SERVERS else None)
        moments = comm.gather({k: v.numpy() for k, v in state.items()} if comm.rank >= SERVERS else None)
        if comm.rank:
            continue
        count = LEARNERS * (UPDATES + (PERIOD > 1))
        assert {int(shard["version"]) for shard in shards[:SERVERS]} == {count}
        names = [key for key, value in shards[0].items() if value.ndim]
        central = {key: np.concatenate([shard[key] for shard in shards[:SERVERS]]) for key in names}
        if LEARNERS == 1:
            np.testing.assert_allclose(central["params"], expected[-1], rtol=1e-5, atol=1e-6)
            for key in moments_of(rule):
                np.testing.assert_allclose(central[f"optimizer/{key}"], moments[-1][key], rtol=1e-5, atol=1e-6)
        if name == "adam" and PERIOD:
            # In the order of the visits to each chunk.
            for chunk in store.chunks:
                merges = sorted(r[1:] for rows in records for r in rows if r[0] == chunk.begin)
                m, v = (np.zeros(chunk.end - chunk.begin) for _ in range(2))
                for _, n, sum_g, sum_g2 in merges:
                    m = BETAS[0] ** n * m + (1 - BETAS[0]) * sum_g
                    v = BETAS[1] ** n * v + (1 - BETAS[1]) * sum_g2
                assert sum(n for _, n, *_ in merges) == count
                part = slice(chunk.begin, chunk.end)
                np.testing.assert_allclose(central["optimizer/exp_avg"][part], m, rtol=1e-4, atol=1e-6)
                np.testing.assert_allclose(central["optimizer/exp_avg_sq"][part], v, rtol=1e-4, atol=1e-6)
        print(name, "equal", flush=True)
