"""Sizes that follow from a configuration."""

import math

import numpy as np
from torch import nn

from hpcrl.algorithms.rules import Rule, make_rule
from hpcrl.config import Config
from hpcrl.envs import env_spec
from hpcrl.errors import ConfigError
from hpcrl.launch import forecast
from hpcrl.launch.delays import delay_distribution
from hpcrl.launch.topology import Plan
from hpcrl.networks import count_parameters, count_policy_parameters, make_network, make_policy_network
from hpcrl.networks.architectures import CONVOLUTIONAL
from hpcrl.replay.lanes import record_dtype, shortest_capacity
from hpcrl.replay.priorities import BLOCK_SLOTS
from hpcrl.sampling.exchange import Exchange

ATARI_SIMULATOR_BYTES = 2 * 10**6
"""Measured: 8 and 32 simulators of Pong on a rank of their own, which holds 316 and 356 MB."""


def network_arguments(config: Config) -> tuple:
    """Arguments of :func:`hpcrl.networks.make_network` and :func:`hpcrl.networks.count_parameters`."""
    spec, network = env_spec(**config.env.arguments()), config.network
    if spec.continuous:
        raise ConfigError(
            f'learning.algorithm: expected one with a policy, say "ppo", as the actions of {config.env.id} are '
            f'vectors, got "{config.learning.algorithm}"'
        )
    shape = (spec.stack, *spec.obs_shape)
    atoms = 0 if network.distribution == "none" else network.atoms
    return (
        network.kind,
        network.hidden,
        shape,
        spec.num_actions,
        spec.obs_dtype,
        network.dueling,
        atoms,
        network.layer_norm,
    )


def learning_rule(config: Config, device: str = "cpu") -> Rule:
    """What the outputs of the network mean, on the device of the network."""
    network = config.network
    return make_rule(
        network.distribution, loss=config.learning.loss, atoms=network.atoms, support=network.support, device=device
    )


def policy_arguments(config: Config) -> tuple:
    """Arguments of :func:`hpcrl.networks.make_policy_network` and :func:`hpcrl.networks.count_policy_parameters`."""
    spec, network = env_spec(**config.env.arguments()), config.network
    return (
        network.kind,
        network.hidden,
        (spec.stack, *spec.obs_shape),
        spec.num_actions,
        spec.obs_dtype,
        spec.continuous,
    )


def new_network(config: Config) -> nn.Module:
    """The network of the algorithm, with random parameters."""
    if config.learning.has_action_values:
        return make_network(*network_arguments(config))
    return make_policy_network(*policy_arguments(config))


def num_parameters(config: Config) -> int:
    """Length of the parameter vector."""
    if config.learning.has_action_values:
        return count_parameters(*network_arguments(config))
    return count_policy_parameters(*policy_arguments(config))


def forecast_of(config: Config, rank_map: Plan, updates_per_second: float = 100.0) -> forecast.Forecast:
    """What a job of this configuration will need, if it reaches ``updates_per_second`` global updates per second."""
    spec = env_spec(**config.env.arguments())
    learning, policy = config.learning, config.policy
    batch_size, intensity, rollout_bytes = learning.batch_size, learning.training_intensity, 0
    if not learning.uses_replay:
        rollout_steps = policy.horizon_steps * config.env.simulators
        batch_size, intensity = -(-rollout_steps * policy.rollouts // policy.minibatches), float(policy.epochs)
        rollout_bytes = rollout_steps * spec.stack * math.prod(spec.obs_shape) * spec.obs_dtype.itemsize
    sizes = forecast.Sizes(
        num_parameters=num_parameters(config),
        record_bytes=record_dtype(spec.obs_shape, spec.obs_dtype).itemsize,
        capacity_steps=config.replay.capacity_steps,
        window_steps=spec.stack + config.replay.n_step,
        shortest_lane_steps=shortest_capacity(spec.stack, config.replay.n_step),
        simulators=config.env.simulators,
        simulator_bytes=ATARI_SIMULATOR_BYTES if config.env.is_atari else 0,
        exchange_bytes=Exchange.nbytes(spec, config.env.simulators, (), np.int64),
        priority_block_slots=BLOCK_SLOTS if config.replay.sampling == "prioritized" else 0,
        batch_size=batch_size,
        rollout_bytes=rollout_bytes,
        # A second one is what the networks for frames read them from, where each is passed several times.
        rollouts=policy.rollouts + (config.network.kind in CONVOLUTIONAL and not learning.takes_trajectories),
        slots=config.server.slots,
        gradient_slots=config.learner.pipeline + 1,
        optimizer_vectors=forecast.optimizer_vectors(
            learning.optimizer, momentum=learning.momentum, rmsprop_centered=learning.rmsprop_centered
        ),
        reduced_bytes=2 if config.learner.compression == "bfloat16" else forecast.FLOAT_BYTES,
        combined=learning.node_combine,
        stored=learning.update == "store",
        virtual_delay=max(delay_distribution(learning.virtual_delay or "0")[0]),
    )
    periods = forecast.Periods(
        training_intensity=intensity,
        pull_period_updates=config.learner.sync_period_updates
        if learning.update == "store"
        else config.learner.pull_period_updates,
        sync_period_steps=config.actor.sync_period_steps,
        target_period_updates=learning.target_period_updates,
    )
    return forecast.forecast(rank_map, sizes, periods, updates_per_second=updates_per_second)
