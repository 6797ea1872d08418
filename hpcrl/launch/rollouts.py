"""Wiring of the policy-gradient family: rollouts, the actor that fills them, the learner that uses them."""

from functools import partial
from typing import TYPE_CHECKING

from hpcrl.algorithms.a2c import A2c
from hpcrl.algorithms.exploration import linear
from hpcrl.algorithms.policy_gradient import SampledPolicy
from hpcrl.algorithms.ppo import Ppo
from hpcrl.algorithms.pqn import EpsilonGreedyRollout, Pqn
from hpcrl.launch.policies import make_distribution
from hpcrl.networks import Replica
from hpcrl.roles.policy_learner import PolicyLearner
from hpcrl.roles.rollout_actor import RolloutActor
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Sampler

if TYPE_CHECKING:
    from hpcrl.launch.job import Job
    from hpcrl.roles.updates import Update


def make_sampler(job: "Job") -> Sampler:
    """The sampler of this rank, with simulators, a rollout, and a replica of its own that is only acted by."""
    (index,) = (role.index for role in job.rank_plan.roles if role.kind == "actor")
    config, spec, distribution = job.config, job.spec, make_distribution(job.spec)
    envs = job.envs(index, config.policy.groups)
    for env in envs:
        env.reset()
    replica = Replica(job.network(), job.params, len(job.servers), job.rank_plan.device, job.dtype)
    rollout = Rollout(
        config.policy.horizon_steps,
        config.env.simulators,
        observation_shape=(spec.stack, *spec.obs_shape),
        observation_dtype=spec.obs_dtype,
        action_shape=distribution.action_shape,
        action_dtype=distribution.action_dtype,
    )
    rng = job.rng("actor", index)
    if config.learning.has_action_values:
        arguments = replica, job.rule.q, spec.num_actions, rng, job.dtype
        policy = EpsilonGreedyRollout(*arguments, epsilon=partial(_epsilon, job, replica))
    else:
        policy = SampledPolicy(replica, distribution, rng, job.dtype)
    return Sampler(envs, policy, rollout, restarts_at_once=config.env.autoreset == "same_step")


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
        keeps_episodes=job.plan.layout == "serial" and all(hasattr(group.env, "state") for group in sampler.groups),
        reporter=job.reporter,
    )


def make_policy_learner(job: "Job", index: int, update: "Update") -> PolicyLearner:
    """Learner ``index``, whose gradients ``update`` takes."""
    learning, policy = job.config.learning, job.config.policy
    return PolicyLearner(
        index,
        online=job.online,
        update=update,
        algorithm=_algorithm(job),
        sampler=job.sampler,
        epochs=policy.epochs,
        minibatches=policy.minibatches,
        discount=learning.discount,
        trace_decay=policy.trace_decay,
        reward_clip=learning.reward_clip or None,
        rng=job.rng("learner", index),
        keeps_parameters=job.deterministic,
        reporter=job.reporter,
        norms=job.norms(index, job.online),
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
