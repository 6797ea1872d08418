"""Wiring of simulators: those of a rank; and ranks of their own, who belongs to their crews, and the memory of one."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from mpi4py import MPI

from hpcrl.envs import VectorEnv, make_env, make_games
from hpcrl.launch.protocols import protocol_arguments, starts_for
from hpcrl.roles.simulator import Simulator
from hpcrl.sampling.exchange import Exchange
from hpcrl.sampling.sampler import share_threads
from hpcrl.seeding import seed_sequence
from hpcrl.transport.shared import NodeMemory

if TYPE_CHECKING:
    from hpcrl.algorithms.policy_gradient import Distribution
    from hpcrl.launch.job import Job


def make_envs(job: "Job", index: int, groups: int = 1, *, role: str = "actor", simulators: int = 0) -> list[VectorEnv]:
    """Simulators of an actor, or so many of another role, in groups that are stepped by themselves."""
    config, seeds = job.config, _env_seed(job, role, index)
    shares = share_threads(job.rank_plan.threads, groups, on_gpu=job.rank_plan.device != "cpu")
    arguments = config.env.arguments(threads=shares.simulating)
    return [
        make_env((simulators or config.env.simulators) // groups, group, **arguments)
        for group in (seeds.spawn(groups) if groups > 1 else [seeds])
    ]


def make_evaluation_env(job: "Job", role: str, index: int) -> VectorEnv:
    """Simulators of a role that evaluates, by the protocol of ``run.evaluation_protocol``."""
    run, env, seed = job.config.run, job.config.env, _env_seed(job, role, index)
    if run.evaluation_protocol == "own":
        arguments = env.arguments(threads=job.rank_plan.threads) | {"random_start_steps": 0}
        return make_env(env.simulators, seed, **arguments)
    file = Path(run.evaluation_starts) if run.evaluation_starts else None
    starts = starts_for(job.config, run.evaluation_protocol, file)
    arguments = protocol_arguments(job.config, run.evaluation_protocol)
    return make_games(env.simulators, seed, starts=starts.starts if starts else (), **arguments)


def _env_seed(job: "Job", role: str, index: int) -> np.random.SeedSequence:
    return seed_sequence(job.config.run.seed, f"{role} env", index, job.start)


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
    envs = make_envs(job, index, config.policy.groups, role="simulator", simulators=simulators)
    return Simulator(index, exchange=job.exchange, rank=index % each, envs=envs)
