"""Policy networks: shapes, sizes, starts, and arithmetic."""

import copy

import numpy as np
import pytest
import torch

from hpcrl.errors import ConfigError
from hpcrl.networks import FlatParameters, autocast, count_policy_parameters, make_policy_network
from hpcrl.networks.policies import ExactLinear

ATARI = (4, 84, 84)


@pytest.mark.parametrize(
    ("kind", "shape", "actions", "count"),
    [
        # convolutions and the layer behind them, and heads of 6 actions and a value
        ("nature", ATARI, 6, 8224 + 32832 + 36928 + 3136 * 512 + 512 + 7 * 513),
        ("mlp", (1, 4), 2, 2 * (4 * 64 + 64 + 64 * 64 + 64) + 3 * 65),
    ],
)
def test_sizes(kind, shape, actions, count):
    dtype = np.uint8 if kind == "nature" else np.float32
    arguments = kind, (64, 64), shape, actions, dtype
    network = make_policy_network(*arguments)
    assert sum(p.numel() for p in network.parameters()) == count == count_policy_parameters(*arguments)
    outputs, value = network(torch.from_numpy(np.zeros((3, *shape), dtype)))
    assert (tuple(outputs.shape), tuple(value.shape)) == ((3, actions), (3,))


def test_the_first_policy_is_nearly_uniform():
    torch.manual_seed(0)
    network = make_policy_network("mlp", (64, 64), (1, 4), 5)
    outputs, _ = network(torch.randn(100, 1, 4))
    np.testing.assert_allclose(outputs.softmax(dim=1).detach(), 0.2, atol=0.01)


def test_a_continuous_policy_starts_at_unit_deviation_in_every_state():
    network = make_policy_network("mlp", (8,), (1, 3), 2, continuous=True)
    outputs, _ = network(torch.randn(5, 1, 3))
    assert tuple(outputs.shape) == (5, 4)
    assert (outputs[:, 2:] == 0).all()
    outputs[:, 2].sum().backward()
    assert network.policy[-1].log_deviation.grad.tolist() == [5, 0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_are_exact_whatever_the_body_computes_in(dtype):
    network = make_policy_network("nature", (), (4, 36, 36), 6, np.uint8)
    frozen = copy.deepcopy(network).to(dtype)
    assert {p.dtype for m in (frozen.policy, frozen.value) for p in m.parameters()} == {torch.float32}
    assert {p.dtype for p in frozen.body.parameters()} == {dtype}
    with autocast("cpu", dtype):
        for net in (network, frozen):
            outputs, value = net(torch.zeros(2, 4, 36, 36, dtype=torch.uint8))
            assert outputs.dtype == value.dtype == torch.float32


def test_an_exact_layer_computes_its_features_as_float32():
    layer, features = ExactLinear(3, 2), torch.randn(4, 3).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(features)
    torch.testing.assert_close(out, torch.nn.functional.linear(features.float(), layer.weight, layer.bias))


@pytest.mark.parametrize("kind", ["nature", "mlp"])
def test_flat_gradients_are_those_of_autograd(kind):
    torch.manual_seed(0)
    shape = (4, 36, 36) if kind == "nature" else (1, 6)
    network = make_policy_network(kind, (8,), shape, 3, np.uint8)
    twin = copy.deepcopy(network)
    x = torch.randint(0, 255, (5, *shape), dtype=torch.uint8)
    flat = FlatParameters(network)
    for net in (twin, network):
        outputs, value = net(x)
        (outputs.square().sum() + value.square().sum()).backward()
    torch.testing.assert_close(flat.gradients, torch.cat([p.grad.reshape(-1) for p in twin.parameters()]))


def own(input_shape, outputs):
    network = torch.nn.Module()
    network.layer = torch.nn.Linear(int(np.prod(input_shape)), outputs + 1)
    network.forward = lambda x: (network.layer(x.flatten(1))[:, :-1], network.layer(x.flatten(1))[:, -1])
    return network


def one_tensor(input_shape, outputs):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(int(np.prod(input_shape)), outputs))


def test_a_network_of_ones_own():
    network = make_policy_network("test_policies:own", (), (1, 4), 2, continuous=True)
    assert tuple(network(torch.zeros(3, 1, 4))[0].shape) == (3, 4)


@pytest.mark.parametrize("kind", ["test_policies:one_tensor", "test_policies:absent", "no_such_module:net", "nature"])
def test_a_network_that_cannot_be_used_is_refused(kind):
    with pytest.raises(ConfigError, match="network.kind"):
        make_policy_network(kind, (), (1, 4), 2)
