"""Wiring of the policy-gradient family: rollouts, the actor that fills them, the learner that uses them."""

from functools import partial
from typing import TYPE_CHECKING

from hpcrl.algorithms.a2c import A2c
from hpcrl.algorithms.exploration import linear
from hpcrl.algorithms.impala import Ga3c, Impala
from hpcrl.algorithms.policy_gradient import SampledPolicy
from hpcrl.algorithms.ppo import Ppo
from hpcrl.algorithms.pqn import EpsilonGreedyRollout, Pqn
from hpcrl.launch.forecast import RELAYED_ROLLOUTS
from hpcrl.launch.policies import make_distribution
from hpcrl.launch.simulators import make_envs
from hpcrl.networks import Replica
from hpcrl.roles.policy_learner import PolicyLearner
from hpcrl.roles.rollout_actor import RolloutActor
from hpcrl.roles.trajectory_learner import RelayedRollouts, TrajectoryLearner
from hpcrl.roles.virtual_delay import DelayedVector
from hpcrl.sampling.asynchronous import AsynchronousSampler
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler, share_threads
from hpcrl.transport.relay import Relay

if TYPE_CHECKING:
    from hpcrl.launch.job import Job
    from hpcrl.roles.updates import Update


def make_rollout(job: "Job", num_envs: int) -> Rollout:
    """An empty rollout of so many simulators."""
    spec, distribution = job.spec, make_distribution(job.spec)
    return Rollout(
        job.config.policy.horizon_steps,
        num_envs,
        observation_shape=(spec.stack, *spec.obs_shape),
        observation_dtype=spec.obs_dtype,
        action_shape=distribution.action_shape,
        action_dtype=distribution.action_dtype,
    )


def make_relay(job: "Job", options: dict) -> Relay:
    """What takes rollouts of actors to learners on other ranks; collective."""
    record_bytes = make_rollout(job, job.config.env.simulators).memory.nbytes
    return Relay(
        job.comm,
        name="rollouts",
        hosts=job.servers,
        producers=job.plan.ranks_of("actor"),
        consumers=job.learners,
        record_bytes=record_bytes,
        capacity=RELAYED_ROLLOUTS,
        **options,
    )


def make_sampler(job: "Job") -> Sampler | AsynchronousSampler:
    """The sampler of this rank, with simulators, rollouts, and a replica of its own that is only acted by."""
    (index,) = (role.index for role in job.rank_plan.roles if role.kind == "actor")
    config, asynchronous = job.config, job.config.learning.takes_trajectories and not job.relay
    if job.exchange:
        groups = range(config.policy.groups)
        envs = job.exchange.shares() if asynchronous else [job.exchange.group(group) for group in groups]
    else:
        envs = make_envs(job, index, config.policy.groups)
        for env in envs:
            env.reset()
    policy = _acting_policy(job, index)
    restarts_at_once = config.env.autoreset == "same_step"
    if asynchronous:
        return AsynchronousSampler(
            envs,
            policy,
            partial(make_rollout, job),
            taken=config.policy.rollouts,
            restarts_at_once=restarts_at_once,
        )
    return Sampler(envs, policy, make_rollout(job, config.env.simulators), restarts_at_once=restarts_at_once)


def _acting_policy(job: "Job", index: int) -> SampledPolicy | EpsilonGreedyRollout:
    """What actor ``index`` acts by, on a replica of its own."""
    config, spec, vector = job.config, job.spec, job.params
    if config.policy.lag_updates:
        rng = job.rng("policy lag", index)
        vector = DelayedVector(vector, delays=[config.policy.lag_updates], weights=[1.0], rng=rng)
    replica = Replica(job.network(), vector, len(job.servers), job.rank_plan.device, job.dtype)
    rng = job.rng("actor", index)
    shares = share_threads(job.rank_plan.threads, config.policy.groups)
    threads = shares.choosing if config.env.is_atari and not job.exchange else 0
    if config.learning.has_action_values:
        arguments = replica, job.rule.q, spec.num_actions, rng, job.dtype, threads
        return EpsilonGreedyRollout(*arguments, epsilon=partial(_epsilon, job, replica))
    return SampledPolicy(replica, make_distribution(spec), rng, job.dtype, threads)


def _epsilon(job: "Job", replica: Replica) -> float:
    """Probability of a random action now."""
    exploration = job.config.exploration
    clock = replica.global_update if exploration.decay == "updates" else job.frames()
    return linear(clock, exploration.epsilon_start, exploration.epsilon_end, exploration.decay_length)


def make_rollout_actor(job: "Job", index: int) -> RolloutActor:
    """Actor ``index``."""
    sampler = job.sampler
    return RolloutActor(
        index,
        replica=sampler.policy.replica,
        sampler=sampler,
        count=job.count_steps,
        keeps_episodes=job.plan.layout == "serial"
        and isinstance(sampler, Sampler)
        and all(hasattr(group.env, "state") for group in sampler.groups),
        deliver=(lambda rollout: job.relay.push(rollout.memory)) if job.relay else None,
        reporter=job.reporter,
    )


def make_policy_learner(job: "Job", index: int, update: "Update") -> PolicyLearner:
    """Learner ``index``, whose gradients ``update`` takes."""
    learning, policy = job.config.learning, job.config.policy
    arguments = {
        "online": job.online,
        "update": update,
        "algorithm": _algorithm(job),
        "discount": learning.discount,
        "trace_decay": policy.trace_decay,
        "reward_clip": learning.reward_clip or None,
        "rng": job.rng("learner", index),
        "reporter": job.reporter,
        "norms": job.norms(index, job.online),
    }
    if learning.takes_trajectories:
        if job.relay:
            copies = [make_rollout(job, job.config.env.simulators) for _ in range(policy.rollouts)]
            source = RelayedRollouts(job.relay, copies)
        else:
            source = job.sampler
        return TrajectoryLearner(index, source=source, rollouts=policy.rollouts, **arguments)
    return PolicyLearner(
        index,
        sampler=job.sampler,
        epochs=policy.epochs,
        minibatches=policy.minibatches,
        keeps_parameters=job.deterministic,
        **arguments,
    )


def _algorithm(job: "Job") -> A2c | Pqn:
    learning, policy = job.config.learning, job.config.policy
    if learning.algorithm == "pqn":
        norm = 0.0 if job.synchronous else learning.max_gradient_norm
        return Pqn(job.online, max_gradient_norm=norm, dtype=job.dtype)
    arguments = {
        "value_weight": policy.value_weight,
        "entropy_weight": policy.entropy_weight,
        "normalizes": policy.normalize_advantages,
        # Of synchronous learners the average is clipped, by what makes it.
        "max_gradient_norm": 0.0 if job.synchronous else learning.max_gradient_norm,
        "dtype": job.dtype,
        "compares_halves": policy.gradient_diversity,
    }
    if learning.takes_trajectories:
        algorithm = Impala if learning.algorithm == "impala" else Ga3c
        return algorithm(job.online, make_distribution(job.spec), trace_decay=policy.trace_decay, **arguments)
    if learning.algorithm == "a2c":
        return A2c(job.online, make_distribution(job.spec), **arguments)
    return Ppo(job.online, make_distribution(job.spec), clip=partial(_clip, job), **arguments)


def _clip(job: "Job") -> float:
    """PPO's epsilon now: where it decays, the share of the first one that the learning rate is of its own."""
    learning, policy = job.config.learning, job.config.policy
    if not policy.clip_decay:
        return policy.clip
    clock = job.online.global_update if learning.learning_rate_decay == "updates" else job.frames()
    last = policy.clip * learning.learning_rate_final / learning.learning_rate
    return linear(clock, policy.clip, last, learning.learning_rate_decay_length)
