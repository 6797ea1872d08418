"""Wiring of the replay memories: of a rank, of the ranks of a node, or of the whole job."""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from mpi4py import MPI

from hpcrl.algorithms.exploration import linear
from hpcrl.launch.replay_shares import MemoryShare
from hpcrl.launch.topology import Memory, Role
from hpcrl.replay.distributed import (
    MESSAGE_WORDS,
    DistributedLanes,
    DistributedPriorities,
    SharedPriorities,
    split_table,
    table_floats,
)
from hpcrl.replay.division import leave_open_episodes
from hpcrl.replay.lanes import Lanes, local_lanes, record_dtype
from hpcrl.replay.newcomers import Newcomers
from hpcrl.replay.prefetch import Prefetch
from hpcrl.replay.priorities import PrioritySource, PriorityTable, SetPriorities, local_table
from hpcrl.replay.prioritized import PrioritizedReplay
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.ratio import CountedTally, LocalTally, TrainingRatio
from hpcrl.roles.replay_host import ReplayHost
from hpcrl.transport.lanes import HostedLanes, OwnCursors
from hpcrl.transport.ring import Rings
from hpcrl.transport.shared import NodeMemory, SharedCursors, SharedTally
from hpcrl.transport.waiting import wait_for_all

if TYPE_CHECKING:
    from hpcrl.launch.job import Job
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
    table: PriorityTable | None
    """the priorities, where this rank keeps them for all that share the memory"""
    host: ReplayHost | None
    """what keeps those of a node's memory"""


def make_memory(job: "Job") -> ReplayMemory:
    """The memory of this rank's actor or learner; collective over the ranks that share it."""
    config, (role, members) = job.config, _membership(job)
    priorities = set_priorities = set_new = table = host = None
    prioritized = config.replay.sampling == "prioritized"
    if members.node is None:
        if prioritized:
            priorities = DistributedPriorities(job.hosted_lanes, job.priority_rings)
            set_priorities = priorities.set
        lanes, tally = _distributed(job, set_priorities), CountedTally(job.counters)
        set_new = lanes.hold if prioritized else None
    elif job.plan.layout == "split":
        lanes, tally, priorities, table, host = _of_the_node(job, role)
        set_priorities = set_new = priorities.set if prioritized else None
    else:
        spec, share, shape = job.spec, _share(job, role), job.shapes[job.plan.memory_of(role)]
        lengths = {"capacity": share.slots if share else shape.capacity, "stack": shape.stack, "n_step": shape.n_step}
        lanes, tally = local_lanes(shape.num_lanes, spec.obs_shape, spec.obs_dtype, **lengths), LocalTally()
        if prioritized:
            table, set_priorities = local_table(lanes, config.replay.priority_alpha)
            priorities, set_new = table, set_priorities
        if share:
            share.restore(lanes, table)
    ratio = TrainingRatio(
        tally,
        intensity=config.learning.training_intensity,
        batch_size=config.learning.batch_size,
        learning_starts=config.replay.learning_starts_steps,
        slack_updates=0 if job.deterministic or job.synchronous else len(members.learners),
        block=config.learning.training_ratio == "block",
    )
    first = members.actors.index(role.index) * config.env.simulators if role.kind == "actor" else 0
    return ReplayMemory(lanes, ratio, first, priorities, set_priorities, set_new, table, host)


def _membership(job: "Job") -> tuple[Role, Memory]:
    """This rank's actor, or learner where it has no actor, and the memory that it belongs to."""
    roles = {role.kind: role for role in job.rank_plan.roles}
    role = roles.get("actor") or roles["learner"]
    return role, job.plan.memories[job.plan.memory_of(role)]


def _num_lanes(job: "Job", members: Memory) -> int:
    return len(members.actors) * job.config.env.simulators


def _share(job: "Job", role: Role) -> MemoryShare | None:
    """What this rank restores of a checkpoint into the memory of its role; None where there is nothing, or another rank
    does it."""
    index = job.plan.memory_of(role)
    restores = job.shares is not None and job.memory_ranks[index] == job.comm.rank
    return MemoryShare(job.shares, index, job.shapes) if restores else None


class NodePart(NamedTuple):
    """What a rank has of the memory of its node; see `ReplayMemory`."""

    lanes: Lanes
    tally: SharedTally
    priorities: SharedPriorities | None
    table: PriorityTable | None
    host: ReplayHost | None


def _of_the_node(job: "Job", role: Role) -> NodePart:
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
    kept = (None, None, None)
    if job.config.replay.sampling == "prioritized":
        kept = _priorities_of_the_node(job, job.plan.memory_of(role), lanes)
    if share:
        share.restore(lanes, kept[1])
    wait_for_all(job.memory_comm)  # nobody writes to or draws from lanes that are still being restored
    return NodePart(lanes, SharedTally(shared, 2 * shape.num_lanes), *kept)


def _priorities_of_the_node(
    job: "Job", index: int, lanes: Lanes
) -> tuple[SharedPriorities, PriorityTable | None, ReplayHost | None]:
    """Priorities that the lowest rank keeps, between two steps of its other roles, and all read."""
    comm, floats = job.memory_comm, lanes.num_lanes * table_floats(lanes.capacity)
    shared = job.keep(NodeMemory(comm, shape=(floats,), dtype=np.dtype(np.float64), words=1))
    rings = job.keep(_priority_rings(comm, producers=range(comm.size), hosts=(0,)))
    table = host = None
    if comm.rank == 0:
        shared.array[:] = 0
        table = _priority_table(shared.array, lanes, job.config.replay.priority_alpha)
        host = ReplayHost(
            index,
            reserved=lanes.cursors.reserved,
            show=shared.show,
            table=table,
            rings=rings,
            reporter=job.reporter,
        )
    return SharedPriorities(shared.array, 0, rings), table, host


def _priority_rings(comm: MPI.Intracomm, *, producers: Sequence[int], hosts: Sequence[int], **options) -> Rings:
    record_bytes = dict.fromkeys(hosts, 8 * MESSAGE_WORDS)
    return Rings(
        comm, name="priorities", producers=producers, record_bytes=record_bytes, capacity=PRIORITY_MESSAGES, **options
    )


def _priority_table(memory: np.ndarray, lanes: Lanes, alpha: float) -> PriorityTable:
    values, sums = split_table(memory)
    sizes = {"num_lanes": lanes.num_lanes, "capacity": lanes.capacity, "stack": lanes.stack}
    return PriorityTable(values, sums, alpha=alpha, **sizes)


# The global memory --------------------------------------------------------------------------------------------------


class HostedPart(NamedTuple):
    """What a server rank holds of the global memory."""

    lanes: Lanes
    table: PriorityTable | None
    """of their priorities; None where sampling is uniform"""


def host_lanes(job: "Job", **options) -> tuple[HostedLanes, Rings | None, HostedPart | None]:
    """The lanes of the global memory on the server ranks, the rings of their priorities, and what this rank holds of
    both, restored from the checkpoint where there is one. Collective."""
    (members,), config = job.plan.memories, job.config
    shape, simulators = job.shapes[0], config.env.simulators
    prioritized = config.replay.sampling == "prioritized"
    writes = [
        members.actors.index(role.index) * simulators + simulator
        for role in job.rank_plan.roles
        if role.kind == "actor"
        for simulator in range(simulators)
    ]
    holds = job.comm.rank in job.memory_ranks
    share = MemoryShare(job.shares, job.memory_ranks.index(job.comm.rank), job.shapes) if holds and job.shares else None
    capacity = job.comm.allreduce(share.slots if share else shape.capacity, MPI.MAX)
    hosted = job.keep(
        HostedLanes(
            job.comm,
            hosts=job.servers,
            num_lanes=_num_lanes(job, members),
            capacity=capacity,
            mirror=shape.stack + shape.n_step,
            record_bytes=record_dtype(job.spec.obs_shape, job.spec.obs_dtype).itemsize,
            table_floats=table_floats(capacity) if prioritized else 0,
            writes=writes,
            **options,
        )
    )
    part = _own_part(job, hosted, prioritized) if holds else None
    if share:
        share.restore(part.lanes, part.table)
        if not job.exact:
            leave_open_episodes(part.lanes, np.arange(part.lanes.num_lanes))
        hosted.show()
    if not prioritized:
        return hosted, None, part
    producers = sorted({*job.learners, *job.plan.ranks_of("actor")})
    return hosted, job.keep(_priority_rings(job.comm, producers=producers, hosts=job.servers, **options)), part


def _own_part(job: "Job", hosted: HostedLanes, prioritized: bool) -> HostedPart:
    shape = job.shapes[0]
    records = hosted.own_records(record_dtype(job.spec.obs_shape, job.spec.obs_dtype))
    lengths = {"capacity": hosted.capacity, "stack": shape.stack, "n_step": shape.n_step}
    lanes, table = Lanes(records, OwnCursors(hosted), **lengths), None
    if prioritized:
        floats = hosted.table[: len(records) * table_floats(hosted.capacity)]
        table = _priority_table(floats, lanes, job.config.replay.priority_alpha)
    return HostedPart(lanes, table)


def _distributed(job: "Job", set_priorities: SetPriorities | None) -> DistributedLanes:
    config, (role, members) = job.config, _membership(job)
    acts = role.kind == "actor"
    job.hosted_lanes.go_on()
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
    table, lanes = job.hosted_part.table if job.hosted_part else None, job.hosted_lanes
    return ReplayHost(
        index,
        reserved=lanes.own_reserved,
        show=lanes.show,
        table=table,
        rings=job.priority_rings,
        reporter=job.reporter,
    )


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
