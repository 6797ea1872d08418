"""Wiring of what turns gradients into updates: with servers, or among learners that hold everything themselves."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch
from mpi4py import MPI

from hpcrl.algorithms.exploration import linear, scale
from hpcrl.algorithms.making import replay_algorithm
from hpcrl.algorithms.multi_step_adam import AsynchronousAdam, MultiStepAdam
from hpcrl.algorithms.optimizers import Optimizer, Rule, make_rule
from hpcrl.errors import TopologyError
from hpcrl.launch.memories import make_replay
from hpcrl.launch.reductions import make_reduction
from hpcrl.launch.resume import keeps_moments, load_shard
from hpcrl.launch.simulators import make_evaluation_env
from hpcrl.networks import Replica
from hpcrl.roles.evaluator import Episodes
from hpcrl.roles.overlap import Overlap
from hpcrl.roles.replicated import AllreduceUpdate, OwnReplica, ReplicatedParameters
from hpcrl.roles.secondary import SecondaryLearner
from hpcrl.roles.shard import Shard
from hpcrl.roles.store import StoreServer, StoreUpdate, moments_of
from hpcrl.roles.updates import CombinedUpdate, ServerUpdate, Update
from hpcrl.transport.collectives import Collectives
from hpcrl.transport.own import OwnVector
from hpcrl.transport.store import ChunkStore

if TYPE_CHECKING:
    from hpcrl.launch.job import Job

PUBLISH_SECONDS = 0.05
"""Between two publications of stored parameters for ranks that only read them."""


def make_update(job: "Job", online: "Replica", target: "Replica | None") -> Update:
    """What becomes of the gradients of this rank's learner."""
    config = job.config
    if config.learning.update == "allreduce":
        return make_allreduce(job, online, target)
    if config.learning.update == "store":
        return make_store_update(job, online, target)
    arguments = {
        "gradients": job.gradients,
        "servers": list(zip(job.servers, job.bounds[:-1], job.bounds[1:], strict=True)),
        "pull_period": config.learner.pull_period_updates,
        "target_period": config.learning.target_period_updates,
    }
    if job.node_sum:
        mates = [rank for rank in job.learners if job.plan.ranks[rank].node == job.rank_plan.node]
        labels = [job.labels[rank] for rank in mates]
        return CombinedUpdate(
            online, target, node=job.node_sum, stall_seconds=config.run.stall_seconds, labels=labels, **arguments
        )
    return ServerUpdate(online, target, pipeline=config.learner.pipeline, **arguments)


def batch_of_update(job: "Job") -> int:
    """Transitions of which one update is made: synchronous learners make it together."""
    return job.config.learning.batch_size * (len(job.learners) if job.synchronous else 1)


def optimizer_epsilon(job: "Job") -> float:
    """What the optimizer adds to its denominator."""
    learning = job.config.learning
    return learning.optimizer_epsilon_per_batch / batch_of_update(job) or learning.optimizer_epsilon


def learning_rate_schedule(job: "Job") -> Callable[[int], float]:
    """``learning_rate(version)`` of the configuration."""
    learning, simulators = job.config.learning, job.config.env.simulators * job.plan.num("actor")
    size = batch_of_update(job) if learning.learning_rate_scaling_by == "batch_size" else simulators
    factor = scale(learning.learning_rate_scaling, size, learning.learning_rate_scaling_reference)
    fall = partial(
        linear,
        start=factor * learning.learning_rate,
        end=factor * learning.learning_rate_final,
        length=learning.learning_rate_decay_length,
    )
    if learning.learning_rate_decay == "updates":
        return fall
    return lambda version: fall(job.frames())


def optimizer_rule(job: "Job") -> Rule:
    """The optimizer's rule of the configuration."""
    learning = job.config.learning
    return make_rule(
        learning.optimizer,
        epsilon=optimizer_epsilon(job),
        momentum=learning.momentum,
        initial_accumulator=learning.adagrad_initial_accumulator,
        rmsprop_decay=learning.rmsprop_decay,
        rmsprop_centered=learning.rmsprop_centered,
        rmsprop_epsilon_inside_root=learning.rmsprop_epsilon_inside_root,
        adam_betas=learning.adam_betas,
    )


def make_secondary(job: "Job") -> SecondaryLearner:
    """The second learner on the replay of this rank's."""
    config, secondary, device = job.config, job.config.secondary, job.rank_plan.device
    learning = config.learning
    online = OwnReplica(job.network(), device)
    rule = make_rule(
        secondary.optimizer,
        epsilon=secondary.optimizer_epsilon,
        initial_accumulator=learning.adagrad_initial_accumulator,
        rmsprop_decay=learning.rmsprop_decay,
        rmsprop_centered=learning.rmsprop_centered,
        rmsprop_epsilon_inside_root=learning.rmsprop_epsilon_inside_root,
        adam_betas=learning.adam_betas,
    )
    shard = Shard(
        optimizer=Optimizer(online.flat.values, rule, secondary.learning_rate),
        learning_rate=lambda version: secondary.learning_rate,
        # The same number of steps, and so of transitions, as between two targets of the first.
        target_period=max(1, round(learning.target_period_updates * learning.batch_size / secondary.batch_size)),
    )
    target = Replica(job.network(), OwnVector(lambda: (shard.target, shard.target_version)), 1, device, job.dtype)
    acting = Replica(job.network(), OwnVector(lambda: (shard.shard, shard.version)), 1, device, job.dtype)
    return SecondaryLearner(
        online=online,
        target=target,
        acting=acting,
        shard=shard,
        algorithm=replay_algorithm(learning.algorithm)(
            online,
            target,
            rule=job.rule,
            double=learning.double,
            max_gradient_norm=learning.max_gradient_norm,
            dtype=job.dtype,
        ),
        replay=make_replay(job, online),
        steps=job.memory.ratio.tally.steps,
        intensity=learning.training_intensity,
        learning_starts=config.replay.learning_starts_steps,
        batch_size=secondary.batch_size,
        episodes=Episodes(
            make_evaluation_env(job, "secondary", 0),
            job.policy(acting, job.rng("secondary policy", 0)),
            episodes=config.run.evaluation_episodes,
            epsilon=config.exploration.evaluation_epsilon,
        ),
        evaluation_period=config.run.evaluation_period_updates,
        first=lambda: (job.online.flat.values.cpu().numpy(), job.online.global_update),
        report=job.reporter.secondary,
        rng=job.rng("secondary", 0),
    )


def restored_shard(job: "Job", begin: int, end: int) -> dict:
    """State of the parameters ``begin:end`` in the job's checkpoint, without moments where they must begin anew."""
    state = load_shard(job.checkpoint, begin, end, job.bounds[-1])
    if keeps_moments(job.checkpoint, job.config):
        return state
    return {name: value for name, value in state.items() if not name.startswith("optimizer/")}


# Synchronous learners -----------------------------------------------------------------------------------------------


def make_replicated(job: "Job") -> ReplicatedParameters:
    """All parameters, as this rank holds them: the master copy is its network's own memory."""
    config, online = job.config, job.online
    assert isinstance(online, OwnReplica)
    parameters = ReplicatedParameters(
        optimizer=Optimizer(online.flat.values, optimizer_rule(job), config.learning.learning_rate),
        learning_rate=learning_rate_schedule(job),
        target_period=config.learning.target_period_updates,
        last_update=config.run.total_updates,
        at_end=job.stop.finish,
        announce=partial(job.counters.set, "global_update") if job.comm.rank == 0 else lambda version: None,
        reporter=job.reporter,
    )
    online.clock = parameters
    if job.checkpoint:
        parameters.restore(restored_shard(job, 0, job.bounds[-1]))
    return parameters


def make_allreduce(job: "Job", online: OwnReplica, target: "Replica | None") -> AllreduceUpdate:
    """The update of a synchronous learner; collective over all learners."""
    config, labels = job.config, [job.labels[rank] for rank in job.learners]
    everyone = job.keep(Collectives(job.learner_comm))
    overlapped = config.learner.reduce_overlap and len(labels) > 1
    reduction = make_reduction(
        everyone,
        [job.plan.ranks[rank].node for rank in job.learners],
        backend=config.learner.reduce,
        compressed=config.learner.compression == "bfloat16",
        overlapped=overlapped,
        device=job.rank_plan.device,
        size=job.bounds[-1],
        labels=labels,
        stall_seconds=config.run.stall_seconds,
        keep=job.keep,
    )
    update = AllreduceUpdate(
        online,
        target,
        parameters=job.server,
        agreement=job.counters,
        everyone=everyone,
        reduction=reduction,
        max_gradient_norm=config.learning.max_gradient_norm,
        verify_period=config.learner.verify_period_updates,
        labels=labels,
        overlap=job.keep(Overlap(online.flat, reduction, everyone)) if overlapped else None,
    )
    update.start()
    return update


# Learners that overwrite central parameters in turn -----------------------------------------------------------------


def store_rule(job: "Job") -> Rule:
    """The rule that learners apply to the store: Adam in its asynchronous form, the others as ever."""
    learning = job.config.learning
    if learning.optimizer == "adam":
        return AsynchronousAdam(optimizer_epsilon(job), learning.adam_betas)
    return optimizer_rule(job)


def make_store(job: "Job", options: dict) -> ChunkStore:
    """The central parameters and moments; collective."""
    vectors = 1 + len(moments_of(store_rule(job)))
    chunks = job.config.server.chunks
    return ChunkStore(job.comm, owners=job.servers, bounds=job.bounds, chunks=chunks, vectors=vectors, **options)


def make_store_server(job: "Job", index: int) -> StoreServer:
    """Server ``index`` of the store, its shard filled with the initial parameters or those of the checkpoint."""
    begin, end = job.bounds[index], job.bounds[index + 1]
    initial = torch.cat([p.detach().reshape(-1) for p in job.network().parameters()])
    server = StoreServer(
        index,
        store=job.store,
        begin=begin,
        end=end,
        initial=initial[begin:end].numpy(),
        rule=store_rule(job),
        params=job.params,
        targets=job.targets,
        target_period=job.config.learning.target_period_updates,
        publish_seconds=0.0 if job.deterministic else PUBLISH_SECONDS,
        global_update=partial(job.counters.get, "global_update"),
        learning_rate=learning_rate_schedule(job),
        reporter=job.reporter,
    )
    if job.checkpoint:
        server.restore(restored_shard(job, begin, end))
    server.publish()
    return server


def make_store_update(job: "Job", online: OwnReplica, target: "Replica | None") -> StoreUpdate:
    """The update of a learner that overwrites central parameters."""
    config, rule, count = job.config, store_rule(job), len(job.learners)
    steps = job.began["global_update"] // count  # each learner counts its own: about its share
    several = config.learner.sync_period_updates > 1
    return StoreUpdate(
        online,
        target,
        store=job.store,
        rule=rule,
        multi_step=MultiStepAdam(online.flat.values, rule, steps) if several else None,
        sync_period=config.learner.sync_period_updates,
        first=job.learners.index(job.comm.rank) * len(job.store.chunks) // count,
        learning_rate=learning_rate_schedule(job),
        count=partial(job.counters.add, "global_update"),
        last_update=config.run.total_updates,
        at_end=job.stop.finish,
        target_period=config.learning.target_period_updates,
        stall_seconds=config.run.stall_seconds,
        labels=job.labels,
        steps=steps,
    )


def check_networks(comm: MPI.Intracomm, shapes: list[tuple[int, ...]], labels) -> None:
    """Whether all ranks have the same network; collective.

    Raises
    ------
    TopologyError
        They have not; on every rank, naming the first that differs from rank 0.
    """
    request = comm.allgather(shapes)
    for rank, other in enumerate(request):
        if other != request[0]:
            at = next((i for i, (a, b) in enumerate(zip(other, request[0], strict=False)) if a != b), None)
            how = (
                f"its parameter {at} has shape {list(other[at])}, not {list(request[0][at])}"
                if at is not None
                else f"it has {len(other)} parameters, not {len(request[0])}"
            )
            raise TopologyError(
                f"{labels[rank]} makes another network than {labels[0]}: {how}; network.kind must give the same on "
                "every rank"
            )
