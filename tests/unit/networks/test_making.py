"""The contract of a network of the user's own."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.errors import ConfigError
from hpcrl.networks import count_parameters, make_network


class Own(nn.Module):
    def __init__(self, input_shape, num_actions):
        super().__init__()
        self.head = nn.Linear(int(np.prod(input_shape)), num_actions)

    def forward(self, observation):
        return self.head(observation.flatten(1).float())


def with_buffers(input_shape, num_actions):
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, num_actions))


def too_wide(input_shape, num_actions):
    return Own(input_shape, num_actions + 1)


def two_outputs(input_shape, num_actions):
    network = Own(input_shape, num_actions)
    network.forward = lambda observation: (observation, observation)
    return network


class OwnDistribution(Own):
    def __init__(self, input_shape, num_actions, atoms):
        super().__init__(input_shape, num_actions * atoms)
        self.unflatten = nn.Unflatten(1, (num_actions, atoms))

    def forward(self, observation):
        return self.unflatten(super().forward(observation))


def no_module(input_shape, num_actions):
    return lambda observation: torch.zeros(2, num_actions)


def no_parameters(input_shape, num_actions):
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(num_actions))


def double(input_shape, num_actions):
    network = Own(input_shape, num_actions).double()
    network.forward = lambda observation: network.head(observation.flatten(1).double())
    return network


def for_other_frames(input_shape, num_actions):
    return nn.Sequential(nn.Flatten(), nn.Linear(7, num_actions))


def of_one_argument(input_shape):
    return Own(input_shape, 3)


def test_an_own_network_is_made_from_shape_and_actions():
    network = make_network(f"{__name__}:Own", (), (2, 3), 4)
    assert network(torch.zeros(5, 2, 3)).shape == (5, 4)
    assert count_parameters(f"{__name__}:Own", (), (2, 3), 4) == 28


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("with_buffers", r"has buffers \(1.running_mean, 1.running_var, 1.num_batches_tracked\)"),
        ("too_wide", r"must return \[2, 4\] for a batch of 2, got \[2, 5\]"),
        ("two_outputs", "must return a tensor, got tuple"),
        ("no_module", "must make a torch.nn.Module, got function"),
        ("no_parameters", "must have float32 parameters, got none"),
        ("double", "must have float32 parameters, got torch.float64"),
        ("for_other_frames", r"fails on observations \[2, 2, 3\]: RuntimeError"),
        ("of_one_argument", "cannot be made with .* takes 1 positional argument"),
        ("nothing", "expected .*module:attribute.* has no attribute 'nothing'"),
    ],
)
def test_a_broken_contract_is_a_config_error(name, why):
    with pytest.raises(ConfigError, match=why):
        make_network(f"{__name__}:{name}", (), (2, 3), 4)


def test_an_own_network_of_distributions_is_told_their_atoms():
    network = make_network(f"{__name__}:OwnDistribution", (), (2, 3), 4, atoms=5)
    assert network(torch.zeros(7, 2, 3)).shape == (7, 4, 5)
    with pytest.raises(
        ConfigError, match=r"cannot be made with \(input_shape, num_actions, atoms\) = \(\[2, 3\], 4, 5\)"
    ):
        make_network(f"{__name__}:Own", (), (2, 3), 4, atoms=5)
    with pytest.raises(ConfigError, match="OwnDistribution.* cannot be made .* missing 1 required positional argument"):
        make_network(f"{__name__}:OwnDistribution", (), (2, 3), 4)


def test_an_unknown_module_is_a_config_error():
    with pytest.raises(ConfigError, match="No module named 'no_such_module'"):
        make_network("no_such_module:Net", (), (2, 3), 4)
