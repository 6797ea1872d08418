"""The ranks of ``hpcrl bench sampler``: learners that only sample, meeting after every rollout or never.

``python -m hpcrl.bench._sampler_ranks SIMULATORS SECONDS PAIRS``, under mpiexec; the simulators are those of all ranks.
Rank 0 prints one line, `MARK` and then as JSON ``{"samples": [{mode: steps/s}, ...]}``, of all ranks together, for the
modes of Accelerated Methods' Table 3 (``barrier``, ``free``) and, free running, random actions (``inference_free``).
"""

import json
import os
import sys
import time

import torch
from mpi4py import MPI

from hpcrl.bench import sampler as bench_sampler
from hpcrl.bench._dqn_bound import keep_freed_memory
from hpcrl.bench._jobs import MARK
from hpcrl.sampling.sampler import Sampler
from hpcrl.transport.waiting import wait_for_all

HORIZON = 5
"""steps between two meetings, as there"""
MODES = ("barrier", "free", "inference_free")


def rate(comm: MPI.Intracomm, sampler: Sampler, seconds: float, *, meets: bool) -> float:
    """Steps per second of all ranks, which begin together."""
    bench_sampler.fill(sampler)
    wait_for_all(comm, 1e-4)
    steps, begin, over = 0, time.perf_counter(), False
    while not over:
        steps += bench_sampler.fill(sampler)
        over = time.perf_counter() - begin > seconds
        if meets:
            over = comm.allreduce(over, MPI.LOR)
    return comm.allreduce(steps / (time.perf_counter() - begin))


def main(simulators: int, seconds: float, pairs: int) -> None:
    """Measure, and print on rank 0."""
    keep_freed_memory()
    comm = MPI.COMM_WORLD
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[comm.rank % len(cores)]})
    torch.set_num_threads(1)
    policies = {"inference_free": bench_sampler.RandomPolicy(6)}
    policies |= dict.fromkeys(("barrier", "free"), bench_sampler.nature_policy())
    samplers = {
        mode: bench_sampler.make_sampler(simulators // comm.size, 2, 1, policies[mode], horizon=HORIZON)
        for mode in MODES
    }
    found = []
    for _ in range(pairs):
        found.append({mode: rate(comm, samplers[mode], seconds, meets=mode == "barrier") for mode in MODES})
    if comm.rank == 0:
        print(MARK + json.dumps({"samples": found}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
