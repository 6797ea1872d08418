"""Wiring of the replay memories: of a rank, of the ranks of a node, or of the whole job."""

import logging
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcrl.algorithms.exploration import linear
from hpcrl.launch.replay_shares import MemoryShare
from hpcrl.launch.topology import Memory, Role, lane_capacity
from hpcrl.replay.distributed import (
    MESSAGE_WORDS,
    DistributedLanes,
    DistributedPriorities,
    split_table,
    table_floats,
)
from hpcrl.replay.lanes import Lanes, local_lanes, record_dtype, shortest_capacity
from hpcrl.replay.newcomers import Newcomers
from hpcrl.replay.prefetch import Prefetch
from hpcrl.replay.priorities import PrioritySource, PriorityTable, SetPriorities, local_table
from hpcrl.replay.prioritized import PrioritizedReplay
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.ratio import CountedTally, LocalTally, TrainingRatio
from hpcrl.roles.replay_host import ReplayHost
from hpcrl.transport.lanes import HostedLanes
from hpcrl.transport.ring import Rings
from hpcrl.transport.shared import NodeMemory, SharedCursors, SharedTally
from hpcrl.transport.waiting import wait_for_all

if TYPE_CHECKING:
    from hpcrl.launch.build import Job
    from hpcrl.networks import Replica

log = logging.getLogger(__name__)

PRIORITY_MESSAGES = 16
"""Messages with priorities of one rank that may wait for a host."""


class ReplayMemory(NamedTuple):
    """What the actor and the learner of a rank have of their memory."""

    lanes: Lanes | DistributedLanes
    ratio: TrainingRatio
    first_lane: int
    """of this rank's actor"""
    priorities: PrioritySource | None
    set_priorities: SetPriorities | None
    """of what was learned from"""
    set_new_priorities: SetPriorities | None
    """of what this rank's actor appended; all three None where sampling is uniform"""


def make_memory(job: "Job") -> ReplayMemory:
    """The memory of this rank's actor or learner; collective over the ranks that share it."""
    config, (role, members) = job.config, _membership(job)
    priorities = set_priorities = set_new = None
    prioritized = config.replay.sampling == "prioritized"
    if members.node is None:
        if prioritized:
            priorities = DistributedPriorities(job.hosted_lanes, job.priority_rings)
            set_priorities = priorities.set
        lanes, tally = _distributed(job, set_priorities), CountedTally(job.counters)
        set_new = lanes.hold if prioritized else None
    elif job.plan.layout == "split":
        lanes, tally = _of_the_node(job, role)
    else:
        spec, share, shape = job.spec, _share(job, role), job.shapes[job.plan.memory_of(role)]
        lengths = {"capacity": share.slots if share else shape.capacity, "stack": shape.stack, "n_step": shape.n_step}
        lanes, tally = local_lanes(shape.num_lanes, spec.obs_shape, spec.obs_dtype, **lengths), LocalTally()
        if prioritized:
            priorities, set_priorities = local_table(lanes, config.replay.priority_alpha)
            set_new = set_priorities
        if share:
            share.restore(lanes, priorities)
    ratio = TrainingRatio(
        tally,
        intensity=config.learning.training_intensity,
        batch_size=config.learning.batch_size,
        learning_starts=config.replay.learning_starts_steps,
        slack_updates=0 if job.deterministic else len(members.learners),
        block=config.learning.training_ratio == "block",
    )
    first = members.actors.index(role.index) * config.env.simulators if role.kind == "actor" else 0
    return ReplayMemory(lanes, ratio, first, priorities, set_priorities, set_new)


def _membership(job: "Job") -> tuple[Role, Memory]:
    """This rank's actor, or learner where it has no actor, and the memory that it belongs to."""
    roles = {role.kind: role for role in job.rank_plan.roles}
    role = roles.get("actor") or roles["learner"]
    return role, job.plan.memories[job.plan.memory_of(role)]


def _num_lanes(job: "Job", members: Memory) -> int:
    return len(members.actors) * job.config.env.simulators


def _lengths(job: "Job", members: Memory) -> dict[str, int]:
    config = job.config
    capacity = lane_capacity(
        members,
        capacity_steps=config.replay.capacity_steps,
        simulators=config.env.simulators,
        shortest_steps=shortest_capacity(job.spec.stack, config.replay.n_step),
    )
    return {"capacity": capacity, "stack": job.spec.stack, "n_step": config.replay.n_step}


def _share(job: "Job", role: Role) -> MemoryShare | None:
    """What this rank restores of a checkpoint into the memory of its role; None where there is nothing, or another rank
    does it."""
    index = job.plan.memory_of(role)
    restores = job.shares is not None and job.plan.memory_ranks()[index] == job.comm.rank
    return MemoryShare(job.shares, index, job.shapes) if restores else None


def _of_the_node(job: "Job", role: Role) -> tuple[Lanes, SharedTally]:
    share, shape = _share(job, role), job.shapes[job.plan.memory_of(role)]
    # The lowest rank is the one that restores: it knows how many records the lanes must hold.
    capacity = job.memory_comm.bcast(share.slots if share else shape.capacity)
    lengths = {"capacity": capacity, "stack": shape.stack, "n_step": shape.n_step}
    shared = job.keep(
        NodeMemory(
            job.memory_comm,
            shape=(shape.num_lanes, sum(lengths.values())),
            dtype=record_dtype(job.spec.obs_shape, job.spec.obs_dtype),
            words=2 * shape.num_lanes + 2,
        )
    )
    lanes = Lanes(shared.array, SharedCursors(shared, shape.num_lanes), **lengths)
    if share:
        share.restore(lanes)
    wait_for_all(job.memory_comm)  # nobody writes to or draws from lanes that are still being restored
    return lanes, SharedTally(shared, 2 * shape.num_lanes)


# The global memory --------------------------------------------------------------------------------------------------


def host_lanes(job: "Job", **options) -> tuple[HostedLanes, Rings | None]:
    """The lanes of the global memory on the server ranks, and the rings of their priorities. Collective."""
    (members,), config = job.plan.memories, job.config
    lengths, simulators = _lengths(job, members), config.env.simulators
    prioritized = config.replay.sampling == "prioritized"
    writes = [
        members.actors.index(role.index) * simulators + simulator
        for role in job.rank_plan.roles
        if role.kind == "actor"
        for simulator in range(simulators)
    ]
    hosted = HostedLanes(
        job.comm,
        hosts=job.servers,
        num_lanes=_num_lanes(job, members),
        capacity=lengths["capacity"],
        mirror=lengths["stack"] + lengths["n_step"],
        record_bytes=record_dtype(job.spec.obs_shape, job.spec.obs_dtype).itemsize,
        table_floats=table_floats(lengths["capacity"]) if prioritized else 0,
        writes=writes,
        **options,
    )
    if not prioritized:
        return hosted, None
    rings = Rings(
        job.comm,
        name="priorities",
        producers=sorted({*job.learners, *job.plan.ranks_of("actor")}),
        record_bytes=dict.fromkeys(job.servers, 8 * MESSAGE_WORDS),
        capacity=PRIORITY_MESSAGES,
        **options,
    )
    return hosted, rings


def _distributed(job: "Job", set_priorities: SetPriorities | None) -> DistributedLanes:
    config, (role, members) = job.config, _membership(job)
    acts = role.kind == "actor"
    return DistributedLanes(
        job.hosted_lanes,
        job.spec.obs_shape,
        job.spec.obs_dtype,
        stack=job.spec.stack,
        n_step=config.replay.n_step,
        first_lane=members.actors.index(role.index) * config.env.simulators if acts else 0,
        num_simulators=config.env.simulators if acts else 0,
        send_period=config.replay.send_period_steps,
        set_priorities=set_priorities,
    )


def make_replay_host(job: "Job", index: int) -> ReplayHost:
    """Host ``index`` of the global memory."""
    hosted, table = job.hosted_lanes, None
    if job.priority_rings is not None:
        num_lanes, alpha = hosted.lanes_of(index), job.config.replay.priority_alpha
        sizes = {"num_lanes": num_lanes, "capacity": hosted.capacity, "stack": job.spec.stack}
        values, sums = split_table(hosted.table[: num_lanes * table_floats(hosted.capacity)])
        table = PriorityTable(values, sums, alpha=alpha, **sizes)
    return ReplayHost(index, lanes=hosted, table=table, rings=job.priority_rings)


# What uses a memory -------------------------------------------------------------------------------------------------


def make_replay(job: "Job", online: "Replica") -> UniformReplay | Prefetch:
    """What the learner of this rank samples; its clock is that of the learner's parameters."""
    config, memory = job.config.replay, job.memory

    def beta() -> float:
        length = config.priority_beta_length_updates
        return linear(online.global_update, config.priority_beta_start, config.priority_beta_end, length)

    if config.sampling == "uniform":
        replay = UniformReplay(memory.lanes, **_returns(job))
    else:
        sources = {"priorities": memory.priorities, "set_priorities": memory.set_priorities, "beta": beta}
        replay = PrioritizedReplay(memory.lanes, **sources, **_returns(job))
    if config.place == "local" or not config.prefetch or job.deterministic:
        return replay
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        log.warning("this MPI has no thread support: minibatches are not drawn ahead (replay.prefetch)")
        return replay
    return job.keep(Prefetch(replay))


def make_newcomers(job: "Job") -> Newcomers | None:
    """What gives the records of this rank's actor their first priorities, where sampling is prioritised."""
    memory = job.memory
    if memory.set_new_priorities is None:
        return None
    lanes = memory.first_lane + np.arange(job.config.env.simulators)
    begin = memory.lanes.cursors.committed()[lanes]
    return Newcomers(lanes, begin, set_priorities=memory.set_new_priorities, **_returns(job))


def _returns(job: "Job") -> dict:
    learning = job.config.learning
    return {
        "n_step": job.config.replay.n_step,
        "discount": learning.discount,
        "reward_clip": learning.reward_clip or None,
    }
