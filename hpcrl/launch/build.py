"""Wiring: what every rank is made of, in one place. Collective calls happen here, in ``job`` and ``train`` only."""

import json
import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from mpi4py import MPI

from hpcrl.algorithms.exploration import ladder, linear
from hpcrl.algorithms.gorila import LossGuard
from hpcrl.algorithms.making import replay_algorithm
from hpcrl.algorithms.optimizers import Optimizer
from hpcrl.config import Config
from hpcrl.launch.compiling import compile_step, example
from hpcrl.launch.deadline import expected_checkpoint_seconds, seconds_left
from hpcrl.launch.job import STATELESS_KINDS, Job
from hpcrl.launch.learners import (
    check_networks,
    learning_rate_schedule,
    make_replicated,
    make_secondary,
    make_store_server,
    make_update,
    optimizer_rule,
    restored_shard,
)
from hpcrl.launch.memories import make_newcomers, make_replay, make_replay_host
from hpcrl.launch.policies import make_distribution
from hpcrl.launch.resume import identity, load_state
from hpcrl.launch.rollouts import make_policy_learner, make_rollout_actor
from hpcrl.launch.simulators import join_crew, make_envs, make_evaluation_env, make_simulator
from hpcrl.launch.topology import Role
from hpcrl.launch.tracing import trace
from hpcrl.networks import Replica
from hpcrl.replay.division import leave_open_episodes
from hpcrl.replay.lanes import record_dtype
from hpcrl.roles.actor import Actor
from hpcrl.roles.checkpointing import CheckpointKeeper, Node, ReplayState, RoleState, StateWriter, part
from hpcrl.roles.display import ROLE_NAMES, make_display
from hpcrl.roles.evaluator import Episodes, Evaluator
from hpcrl.roles.heartbeat import Attendance
from hpcrl.roles.learner import Learner
from hpcrl.roles.monitor import Monitor
from hpcrl.roles.norms import layers_of
from hpcrl.roles.parameter_server import ParameterServer
from hpcrl.roles.policy_learner import PolicyLearner
from hpcrl.roles.rollout_actor import RolloutActor
from hpcrl.roles.shard import Shard
from hpcrl.roles.stopping import Deadline
from hpcrl.roles.timeline import Tracer
from hpcrl.roles.virtual_delay import DelayedVector
from hpcrl.roles.writer import Writer
from hpcrl.storage.runlog import RunLog
from hpcrl.transport.own import OwnVector
from hpcrl.transport.waiting import wait_for_all

# One maker for each kind of role ------------------------------------------------------------------------------------


def make_server(job: Job, index: int) -> Shard:
    """Parameter server ``index``, restored from the checkpoint where there is one, its shard published.

    Synchronous learners have none: the first of them stands for it.
    """
    if job.server is not None:
        return job.server
    learning, config = job.config.learning, job.config
    begin, end = job.bounds[index], job.bounds[index + 1]
    if job.in_place:
        initial = job.online.flat.values
    else:
        initial = torch.cat([p.detach().reshape(-1) for p in job.network().parameters()])[begin:end].clone()
    server = ParameterServer(
        index,
        optimizer=Optimizer(initial, optimizer_rule(job), learning.learning_rate),
        learning_rate=learning_rate_schedule(job),
        params=job.params,
        targets=job.targets,
        gradients=job.gradients,
        staleness_bound=config.server.staleness_bound_updates or 4 * (len(job.learners) + max(job.delays[0])),
        target_period=learning.target_period_updates,
        last_update=config.run.total_updates,
        at_end=job.stop.finish,
        announce=partial(job.counters.set, "global_update") if index == 0 else lambda version: None,
        reporter=job.reporter,
    )
    if job.checkpoint:
        server.restore(restored_shard(job, begin, end))
    if job.in_place:
        job.online.clock = server
    server.publish()
    return server


def make_learner(job: Job, index: int) -> Learner | PolicyLearner:
    """Learner ``index``."""
    config = job.config
    if not config.learning.uses_replay:
        return make_policy_learner(job, index, make_update(job, job.online, None))
    if not any(job.delays[0]):
        online = job.online
    else:
        # A replica of its own: the actor beside it goes on with the newest parameters.
        delays, weights = job.delays
        rng = job.rng("virtual delay", index)
        vector = DelayedVector(job.params, delays=delays, weights=weights, rng=rng)
        online = Replica(job.network(), vector, len(job.servers), job.rank_plan.device)
    target = Replica(job.network(), job.targets, len(job.servers), job.rank_plan.device, job.dtype)
    algorithm = replay_algorithm(config.learning.algorithm)(
        online,
        target,
        rule=job.rule,
        double=config.learning.double,
        # Of synchronous learners the average is clipped, by what makes it.
        max_gradient_norm=0.0 if job.synchronous else config.learning.max_gradient_norm,
        dtype=job.dtype,
        # Custom rules need not know of these.
        **({"recorded": True} if config.learner.cuda_graph else {}),
        **({"compiler": "inductor"} if config.learner.compile else {}),
    )
    if config.learner.compile:
        weighted = config.replay.sampling == "prioritized"
        compile_step(algorithm.gradient, example(job.spec, config.learning.batch_size, weighted=weighted))
    return Learner(
        index,
        online=online,
        target=target,
        update=make_update(job, online, target),
        algorithm=algorithm,
        guard=LossGuard(config.learner.outlier_deviations, config.learner.outlier_window_updates)
        if config.learner.outlier_deviations
        else None,
        replay=make_replay(job, online),
        ratio=job.memory.ratio,
        rng=job.rng("learner", index),
        keeps_parameters=job.deterministic,
        reporter=job.reporter,
        norms=job.norms(index, online),
        batch_size=config.learning.batch_size,
    )


def epsilon_schedule(config: Config, actor: int, num_actors: int) -> Callable[[int, int], np.ndarray]:
    """``epsilon(global_update, total_frames)`` of each simulator of an actor, float64 ``[E]``."""
    exploration, simulators = config.exploration, config.env.simulators
    members = actor * simulators + np.arange(simulators)
    power = ladder(members, num_actors * simulators, exploration.ladder_alpha)
    fall = partial(
        linear, start=exploration.epsilon_start, end=exploration.epsilon_end, length=exploration.decay_length
    )
    if exploration.decay == "updates":
        return lambda global_update, total_frames: fall(global_update) ** power
    return lambda global_update, total_frames: fall(total_frames) ** power


def make_actor(job: Job, index: int) -> Actor | RolloutActor:
    """Actor ``index``."""
    config = job.config
    if not config.learning.uses_replay:
        return make_rollout_actor(job, index)
    memory, newcomers, env = job.memory, make_newcomers(job), make_envs(job, index)[0]
    policy = job.policy(job.online, job.rng("actor", index))
    policy.keeps_values = newcomers is not None and job.rule.gives_td_errors

    return Actor(
        index,
        replica=job.online,
        policy=policy,
        env=env,
        lanes=memory.lanes,
        first_lane=memory.first_lane,
        newcomers=newcomers,
        ratio=memory.ratio,
        send_period=config.replay.send_period_steps if config.replay.place == "global" else 1,
        sync_period=config.actor.sync_period_steps,
        # Where runs are to be repeated to the bit, who pulled last must not matter: it is in no checkpoint.
        shares_pulls=job.learns and config.learning.update == "server" and not job.deterministic,
        epsilon=epsilon_schedule(config, index, job.plan.num("actor")),
        count=job.count_steps,
        keeps_episodes=job.plan.layout == "serial" and hasattr(env, "state"),
        reporter=job.reporter,
    )


def make_evaluator(job: Job, index: int) -> Evaluator:
    """Evaluator ``index``, with a network of its own: it must not change during an episode."""
    config = job.config
    replica = Replica(job.network(), job.params, len(job.servers), job.rank_plan.device, job.dtype)
    env = make_evaluation_env(job, "evaluator", index)
    return Evaluator(
        index,
        replica=replica,
        episodes=Episodes(
            env,
            job.policy(replica, job.rng("evaluator", index)),
            episodes=config.run.evaluation_episodes,
            epsilon=config.exploration.evaluation_epsilon,
        ),
        period=config.run.evaluation_period_updates,
        total_frames=lambda: job.counters.get("total_frames"),
        keeps_episodes=hasattr(env, "state"),
        reporter=job.reporter,
    )


def make_monitor(job: Job, index: int) -> Monitor:
    """The monitor, with its run log, display and writer thread."""
    config, writer = job.config, Writer()
    resumed = {}
    if job.checkpoint:
        resumed = {
            "resumed_update": int(job.checkpoint.attributes["global_update"]),
            "resumed_frames": int(job.checkpoint.attributes["total_frames"]),
        }
    runlog = RunLog(
        job.run_dir,
        {
            "config": (job.run_dir / "config.toml").read_text(),
            "seed": config.run.seed,
            "protocol": config.env.protocol,
            "command_line": job.command_line,
            **({"layers": json.dumps([layer.name for layer in layers_of(job.network())])} if config.log.norms else {}),
            **({"ranks": json.dumps(list(job.labels))} if config.log.trace else {}),
            **resumed,
        },
    )
    who = identity(config, job.plan)
    needed, crews = job.plan.needed(config.run.lock_step), job.plan.crews()
    if crews and config.learning.takes_trajectories:  # any one simulator can be done without
        needed, crews = [*needed, job.plan.ranks_of("simulator")], {}
    attendance = Attendance(
        beats=job.beats,
        labels=job.labels,
        ranks={kind: job.plan.ranks_of(kind) for kind in ROLE_NAMES if job.plan.num(kind)},
        needed=needed,
        crews=crews,
        heartbeat_seconds=config.run.heartbeat_seconds,
        stall_seconds=config.run.stall_seconds,
        end=job.end,
    )
    keeper = CheckpointKeeper(
        run_dir=job.run_dir,
        counters=job.counters,
        owners=job.owners,
        attributes=lambda: {
            "total_frames": job.counters.get("total_frames"),
            "global_update": job.counters.get("global_update"),
            "wall_seconds": monitor.wall_seconds(),
            "seed": config.run.seed,
            "shard_bounds": list(job.bounds),
            **who,
        },
        submit=writer.submit,
        keep_last=config.checkpoint.keep_last,
        keep_every=config.checkpoint.keep_every,
        silent=attendance.expendable,
        period_seconds=config.checkpoint.period_seconds,
        wait=job.deterministic,
        expected_seconds=expected_checkpoint_seconds(config.checkpoint.replay == "full" and _largest_memory_bytes(job)),
    )
    monitor = Monitor(
        name=config.run.name,
        run_dir=job.run_dir,
        reports=job.reports,
        counters=job.counters,
        stop=job.stop,
        writer=writer,
        keeper=keeper,
        runlog=runlog,
        display=make_display(config.log.display, period_seconds=config.log.period_seconds),
        attendance=attendance,
        frames_per_step=job.spec.frames_per_step,
        total_frames=config.run.total_frames,
        total_updates=config.run.total_updates,
        time_limit_seconds=config.run.time_limit_seconds,
        log_seconds=config.log.period_seconds,
        checkpoint_seconds=config.checkpoint.period_seconds,
        heartbeat_seconds=config.run.heartbeat_seconds,
        wall_seconds=job.wall_seconds,
        deadline=Deadline(seconds_left(os.environ, time.time())),
    )
    return monitor


def _largest_memory_bytes(job: Job) -> int:
    record_bytes = record_dtype(job.spec.obs_shape, job.spec.obs_dtype).itemsize
    return max((shape.num_lanes * shape.capacity for shape in job.shapes), default=0) * record_bytes


MAKERS = {
    "parameter_server": make_server,
    "replay_host": make_replay_host,
    "learner": make_learner,
    "actor": make_actor,
    "simulator": make_simulator,
    "evaluator": make_evaluator,
    "monitor": make_monitor,
}


def make_roles(job: Job) -> list:
    """The roles of this rank, in the order in which its loop steps them; collective over each replay memory."""
    check_networks(job.comm, [tuple(p.shape) for p in job.network().parameters()], job.labels)
    if job.plan.layout == "split" and job.plan.memories and job.config.replay.place == "local":
        _split_memories(job)
    if job.plan.crews():
        job.exchange = join_crew(job, make_distribution(job.spec))
    if job.synchronous and job.learns:
        job.server = make_replicated(job)
        job.params, job.targets = job.server.vectors()
    elif job.store:
        if job.comm.rank in job.servers:
            job.server = make_store_server(job, job.servers.index(job.comm.rank))
        if job.learns:  # whatever acts or evaluates on this rank follows its learner
            job.params = OwnVector(lambda: (job.online.flat.values.cpu().numpy(), job.online.clock.version))
        wait_for_all(job.comm)  # learners begin with what is in the store
    roles = [MAKERS[kind](job, index) for kind, index in job.rank_plan.roles]
    if job.config.secondary.batch_size:
        roles.append(make_secondary(job))
    if job.memory_comm and job.memory.host:
        roles.insert(0, job.memory.host)
    if job.checkpoint:
        _restore(job, roles)
    owners = [RoleState(role) for role in roles if role.kind not in STATELESS_KINDS]
    if job.config.checkpoint.replay == "full" and job.comm.rank in job.memory_ranks:
        index = job.memory_ranks.index(job.comm.rank)
        held = job.hosted_part or job.memory
        owners.append(ReplayState(index, held.lanes, capacity=job.shapes[index].capacity, table=held.table))
    if owners:
        roles.append(
            StateWriter(
                job.comm.rank,
                owners,
                counters=job.counters,
                run_dir=job.run_dir,
                scratch_dir=job.scratch_dir,
                node=_packed_node(job),
                wait=job.deterministic,
            )
        )
    if job.timeline and job.reports:
        trace(job.timeline, roles)
        roles.append(Tracer(job.comm.rank, job.timeline, job.reporter))
    return [*roles, *([job.counters] if job.synchronous and job.learns else [])]


def _packed_node(job: Job) -> Node | None:
    """This rank's node, if it is the rank that packs the node's state files."""
    number = job.rank_plan.node
    owners = {
        rank.rank: names for rank in job.plan.ranks if rank.node == number and (names := job.owners.get(rank.rank))
    }
    if not job.scratch_dir or job.comm.rank != min(owners):
        return None
    return Node(number, owners, job.config.run.stall_seconds)


def _restore(job: Job, roles: list) -> None:
    """Give the roles of this rank back what the checkpoint has of them; servers have theirs since they were made."""
    for role in roles:
        state = load_state(job.checkpoint, role) if role.kind != "parameter_server" else {}
        if role.kind == "learner" and job.config.learning.uses_replay:
            _restore_ratio(job, role, part(state, "ratio"))
        if role.kind == "actor" and not (job.exact and (part(state, "episodes") or part(state, "rollout"))):
            state = {name: value for name, value in state.items() if not name.startswith(("episodes/", "rollout/"))}
            if job.shares and job.config.replay.place == "local":  # hosts of a global memory did it
                leave_open_episodes(role.lanes, role.lane)
        if state:
            role.restore(state)


def _restore_ratio(job: Job, learner: Learner, state: dict[str, np.ndarray]) -> None:
    """Hold a restored memory at its training intensity; of the learners that share it, the first sees to it."""
    lanes, ratio = job.memory.lanes, job.memory.ratio
    memory = job.plan.memories[job.plan.memory_of(Role("learner", learner.index))]
    if learner.index != memory.learners[0]:
        return
    held = int(np.minimum(lanes.cursors.committed(), lanes.capacity).sum())
    nothing_due = {"steps": held, "trained": 0, "updates_due": 0.0}
    ratio.restore(state or nothing_due, held)


def _split_memories(job: Job) -> None:
    """A communicator for the ranks of each replay memory."""
    mine = next((job.plan.memory_of(r) for r in job.rank_plan.roles if r.kind in ("actor", "learner")), None)
    job.memory_comm = job.comm.Split(MPI.UNDEFINED if mine is None else mine, job.comm.rank)
