"""Wiring of the replay memories: of a rank, or of the ranks of a node."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hpcrl.algorithms.exploration import linear
from hpcrl.launch.topology import lane_capacity
from hpcrl.replay.lanes import Lanes, local_lanes, record_dtype, shortest_capacity
from hpcrl.replay.newcomers import Newcomers
from hpcrl.replay.priorities import PrioritySource, SetPriorities, local_table
from hpcrl.replay.prioritized import PrioritizedReplay
from hpcrl.replay.uniform import UniformReplay
from hpcrl.roles.ratio import LocalTally, TrainingRatio
from hpcrl.transport.shared import NodeMemory, SharedCursors, SharedTally

if TYPE_CHECKING:
    from hpcrl.launch.build import Job


class ReplayMemory(NamedTuple):
    """What the actor and the learner of a rank have of their memory."""

    lanes: Lanes
    ratio: TrainingRatio
    first_lane: int
    """of this rank's actor"""
    priorities: PrioritySource | None
    set_priorities: SetPriorities | None
    """both None where sampling is uniform"""


def make_memory(job: "Job") -> ReplayMemory:
    """The memory of this rank's actor or learner; collective over the ranks that share it."""
    config, plan = job.config, job.plan
    role = next(role for role in job.rank_plan.roles if role.kind in ("actor", "learner"))
    members = plan.memories[plan.memory_of(role)]
    num_lanes = len(members.actors) * config.env.simulators
    sizes = {
        "capacity": lane_capacity(
            members,
            capacity_steps=config.replay.capacity_steps,
            simulators=config.env.simulators,
            shortest_steps=shortest_capacity(job.spec.stack, config.replay.n_step),
        ),
        "stack": job.spec.stack,
        "n_step": config.replay.n_step,
    }
    priorities = set_priorities = None
    if plan.layout != "split":
        lanes, tally = local_lanes(num_lanes, job.spec.obs_shape, job.spec.obs_dtype, **sizes), LocalTally()
        if config.replay.sampling == "prioritized":
            priorities, set_priorities = local_table(lanes, config.replay.priority_alpha)
    else:
        shared = job.keep(
            NodeMemory(
                job.memory_comm,
                shape=(num_lanes, sizes["capacity"] + sizes["stack"] + sizes["n_step"]),
                dtype=record_dtype(job.spec.obs_shape, job.spec.obs_dtype),
                words=2 * num_lanes + 2,
            )
        )
        lanes = Lanes(shared.array, SharedCursors(shared, num_lanes), **sizes)
        tally = SharedTally(shared, 2 * num_lanes)
    ratio = TrainingRatio(
        tally,
        intensity=config.learning.training_intensity,
        batch_size=config.learning.batch_size,
        learning_starts=config.replay.learning_starts_steps,
        slack_updates=0 if job.deterministic else len(members.learners),
        block=config.learning.training_ratio == "block",
    )
    first = members.actors.index(role.index) * config.env.simulators if role.kind == "actor" else 0
    return ReplayMemory(lanes, ratio, first, priorities, set_priorities)


def make_replay(job: "Job") -> UniformReplay:
    """What the learner of this rank samples."""
    config, memory = job.config.replay, job.memory
    if config.sampling == "uniform":
        return UniformReplay(memory.lanes, **_returns(job))

    def beta() -> float:
        length = config.priority_beta_length_updates
        return linear(job.online.global_update, config.priority_beta_start, config.priority_beta_end, length)

    return PrioritizedReplay(
        memory.lanes,
        priorities=memory.priorities,
        set_priorities=memory.set_priorities,
        beta=beta,
        **_returns(job),
    )


def make_newcomers(job: "Job") -> Newcomers | None:
    """What gives the records of this rank's actor their first priorities, where sampling is prioritised."""
    memory = job.memory
    if memory.set_priorities is None:
        return None
    lanes = memory.first_lane + np.arange(job.config.env.simulators)
    begin = memory.lanes.cursors.committed()[lanes]
    return Newcomers(lanes, begin, set_priorities=memory.set_priorities, **_returns(job))


def _returns(job: "Job") -> dict:
    learning = job.config.learning
    return {
        "n_step": job.config.replay.n_step,
        "discount": learning.discount,
        "reward_clip": learning.reward_clip or None,
    }
