"""Wiring of simulator ranks: who belongs to a crew, and the memory that it shares."""

from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from hpcrl.roles.simulator import Simulator
from hpcrl.sampling.exchange import Exchange
from hpcrl.transport.shared import NodeMemory

if TYPE_CHECKING:
    from hpcrl.algorithms.policy_gradient import Distribution
    from hpcrl.launch.job import Job


def join_crew(job: "Job", distribution: "Distribution") -> Exchange | None:
    """The memory between a learner and its simulator ranks; collective over the job, None on ranks outside crews."""
    crews = job.plan.crews()
    crew = next((n for n, (rank, others) in enumerate(crews.items()) if job.comm.rank in (rank, *others)), None)
    comm = job.comm.Split(MPI.UNDEFINED if crew is None else crew, 0 if job.learns else 1 + job.comm.rank)
    if crew is None:
        return None
    config, spec = job.config, job.spec
    ranks, groups, simulators = config.topology.simulator_ranks, config.policy.groups, config.env.simulators
    of_actions = {"action_shape": distribution.action_shape, "action_dtype": distribution.action_dtype}
    memory = job.keep(
        NodeMemory(
            comm,
            shape=(Exchange.nbytes(spec, simulators, **of_actions),),
            dtype=np.dtype(np.uint8),
            words=Exchange.words(ranks, groups),
        )
    )
    return Exchange(memory, spec, simulators=simulators, ranks=ranks, groups=groups, **of_actions)


def make_simulator(job: "Job", index: int) -> Simulator:
    """Simulator ``index``, whose environments begin now."""
    config, each = job.config, job.config.topology.simulator_ranks
    simulators = config.env.simulators // each
    envs = job.envs(index, config.policy.groups, role="simulator", simulators=simulators)
    return Simulator(index, exchange=job.exchange, rank=index % each, envs=envs)
