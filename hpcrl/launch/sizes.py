"""Sizes that follow from a configuration."""

from hpcrl.config import Config
from hpcrl.envs import env_spec
from hpcrl.networks import count_parameters


def network_arguments(config: Config) -> tuple:
    """Arguments of :func:`hpcrl.networks.make_network` and :func:`hpcrl.networks.count_parameters`."""
    spec, network = env_spec(**config.env.arguments()), config.network
    shape = (spec.stack, *spec.obs_shape)
    return network.kind, network.hidden, shape, spec.num_actions, spec.obs_dtype, network.dueling


def num_parameters(config: Config) -> int:
    """Length of the parameter vector."""
    return count_parameters(*network_arguments(config))
