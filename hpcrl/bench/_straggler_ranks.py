"""The ranks of ``hpcrl bench sampler`` with slow simulators: rank 0 asks for steps, all others simulate.

``python -m hpcrl.bench._straggler_ranks STACKED GROUPS SECONDS``, under mpiexec: ``STACKED`` simulators on each rank
but the first. A step of a simulator takes half a millisecond, and by chance one in 16 ten times as long; they sleep,
so that any number of ranks finds room on a few cores. Rank 0 prints one line, `MARK` and then as JSON ``{"figures":
[steps/s, seconds of a simulator's step on average]}``.
"""

import json
import sys
import time

import numpy as np
from mpi4py import MPI

from hpcrl.bench._jobs import MARK
from hpcrl.roles.simulator import Simulator
from hpcrl.sampling.exchange import Exchange
from hpcrl.transport.shared import NodeMemory
from hpcrl.transport.waiting import Backoff, wait_for_all
from hpcrl.types import EnvSpec, EnvStep

SPEC = EnvSpec((4,), np.dtype(np.float32), 1, 2, 1)
STEP_SECONDS, SLOW, ONE_IN = 5e-4, 10.0, 16
LONGEST_SLEEP_SECONDS = 1e-4


class Sleeping:
    """Simulators that do nothing but take their time, one after the other."""

    def __init__(self, num_envs: int, seed: int):
        self.num_envs, self.spec, self.rng = num_envs, SPEC, np.random.default_rng(seed)
        self.observation = np.zeros((num_envs, 1, 4), np.float32)
        self.seconds, self.steps = 0.0, 0

    def reset(self) -> np.ndarray:
        """Nothing."""
        return self.observation[:, 0]

    def step(self, actions: np.ndarray) -> EnvStep:
        """Sleep for each of them."""
        begin = time.perf_counter()
        for slow in self.rng.integers(ONE_IN, size=self.num_envs) == 0:
            time.sleep(STEP_SECONDS * (SLOW if slow else 1.0))
        self.seconds += time.perf_counter() - begin
        self.steps += self.num_envs
        no, zeros = np.zeros(self.num_envs, bool), np.zeros(self.num_envs, np.float32)
        return EnvStep(self.observation[:, 0], zeros, no, no, no, no, self.observation[:, 0])


def ask(exchange: Exchange, backoff: Backoff, seconds: float) -> float:
    """Steps per second that the simulators make when each group is asked again as soon as it has stepped."""
    groups = [exchange.group(group) for group in range(exchange.groups)]
    actions, steps = np.zeros(groups[0].num_envs, np.int64), 0
    for group in groups:
        group.send(actions)
    begin = time.perf_counter()
    while (elapsed := time.perf_counter() - begin) < seconds:
        for group in groups:
            group.look()
            while not group.ready:
                backoff.wait()
                group.look()
            backoff.reset()
            group.receive()
            steps += group.num_envs
            group.send(actions)
    return steps / elapsed


def main(stacked: int, groups: int, seconds: float) -> None:
    """Measure, and print on rank 0."""
    comm = MPI.COMM_WORLD
    ranks, of_actions = comm.size - 1, {"action_shape": (), "action_dtype": np.int64}
    simulators = stacked * ranks
    nbytes, words = Exchange.nbytes(SPEC, simulators, **of_actions), Exchange.words(ranks, groups)
    memory = NodeMemory(comm, shape=(nbytes,), dtype=np.dtype(np.uint8), words=words + 1)
    exchange = Exchange(memory, SPEC, simulators=simulators, ranks=ranks, groups=groups, **of_actions)
    backoff, over, spent = Backoff(comm, LONGEST_SLEEP_SECONDS), words, [0.0, 0]
    if comm.rank:
        envs = [Sleeping(stacked // groups, comm.rank * groups + group) for group in range(groups)]
        role = Simulator(comm.rank - 1, exchange=exchange, rank=comm.rank - 1, envs=envs)
        wait_for_all(comm)
        while not memory.get(range(over, over + 1))[0]:
            if role.step():
                backoff.reset()
            else:
                backoff.wait()
        spent = [sum(env.seconds for env in envs), sum(env.steps for env in envs)]
    else:
        wait_for_all(comm)
        rate = ask(exchange, backoff, seconds)
        memory.add(over, 1)
    wait_for_all(comm)
    total_seconds, total_steps = (comm.allreduce(value) for value in spent)
    if comm.rank == 0:
        print(MARK + json.dumps({"figures": [rate, total_seconds / total_steps]}), flush=True)
    memory.free()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
