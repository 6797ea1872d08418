"""Networks, their parameters as flat views, and replicas that follow a vector."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.errors import ConfigError
from hpcrl.networks import (
    FlatParameters,
    PixelConv2d,
    Replica,
    autocast,
    channels_last,
    count_parameters,
    make_network,
    mlp,
    nature_dqn,
    resolve_precision,
)

# the networks themselves -------------------------------------------------------------------------------------------


def nature_size(num_actions):
    """Weights and biases of Nature DQN at 84x84x4, layer by layer: (in * kernel^2 + 1) * out, (in + 1) * out."""
    convolutions = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64
    return convolutions + (64 * 7 * 7 + 1) * 512 + (512 + 1) * num_actions


@pytest.mark.parametrize(("num_actions", "expected"), [(6, 1_687_206), (18, 1_693_362)])
def test_nature_has_its_published_size(num_actions, expected):
    assert nature_size(num_actions) == expected
    assert count_parameters("nature", (), (4, 84, 84), num_actions) == expected
    assert sum(p.numel() for p in nature_dqn((4, 84, 84), num_actions).parameters()) == expected


def test_a_dueling_nature_has_two_wide_streams():
    convolutions = nature_size(0) - (64 * 7 * 7 + 1) * 512
    expected = convolutions + 2 * (64 * 7 * 7 + 1) * 512 + (512 + 1) * (6 + 1)
    assert expected == 3_293_863
    assert count_parameters("nature", (), (4, 84, 84), 6, dueling=True) == expected
    network = make_network("nature", (), (4, 84, 84), 6, dueling=True)
    assert network(torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)).shape == (3, 6)


@pytest.mark.parametrize("hidden", [(), (5,), (4, 5)])
def test_dueling_values_are_the_state_value_plus_centred_advantages(hidden):
    torch.manual_seed(0)
    network, x = mlp((1, 3), 4, hidden, dueling=True), torch.randn(6, 1, 3)
    *trunk, head = network
    features = x
    for layer in trunk:
        features = layer(features)
    assert features.shape == (6, hidden[-2] if len(hidden) > 1 else 3)  # each stream has the last hidden layer
    value, advantage = head.value(features), head.advantage(features)
    assert (value.shape, advantage.shape) == ((6, 1), (6, 4))
    q = network(x)
    torch.testing.assert_close(q.mean(dim=1, keepdim=True), value)
    torch.testing.assert_close(q - q[:, :1], advantage - advantage[:, :1])


def test_nature_maps_bytes_to_action_values():
    frames = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    assert nature_dqn((4, 84, 84), 6)(frames).shape == (3, 6)


def test_frames_too_small_for_nature_are_refused():
    assert nature_dqn((4, 36, 36), 3)(torch.zeros(1, 4, 36, 36, dtype=torch.uint8)).shape == (1, 3)
    with pytest.raises(ConfigError, match="at least 36x36 pixels, got 35x40"):
        nature_dqn((4, 35, 40), 3)
    with pytest.raises(ConfigError, match=r"needs stacked frames .* gives \[1, 4\]; set network.kind = \"mlp\""):
        make_network("nature", (), (1, 4), 2)


def test_pixel_convolution_is_one_of_frames_over_255():
    torch.manual_seed(0)
    pixel, plain = PixelConv2d(4, 8, 5, 2), nn.Conv2d(4, 8, 5, 2)
    plain.load_state_dict(pixel.state_dict())
    frames = torch.randint(0, 256, (3, 4, 20, 20), dtype=torch.uint8)
    expected = plain(frames.float() / 255)
    torch.testing.assert_close(pixel(frames), expected, rtol=1e-5, atol=1e-6)
    expected.sum().backward()
    pixel(frames).sum().backward()
    torch.testing.assert_close(pixel.weight.grad, plain.weight.grad, rtol=1e-5, atol=1e-4)


def test_bfloat16_is_close_to_float32():
    torch.manual_seed(0)
    network = nature_dqn((4, 84, 84), 6)
    frames = torch.randint(0, 256, (8, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        exact = network(frames)
        with autocast("cpu", torch.bfloat16):
            rough = network(frames)
        with autocast("cpu", torch.float32):
            assert torch.equal(network(frames), exact)
    assert rough.dtype == torch.bfloat16
    assert (rough.float() - exact).abs().max() < 0.03 * exact.abs().max()


def test_mlp_by_hand():
    network = mlp((1, 3), 2, (4, 5))
    assert [tuple(p.shape) for p in network.parameters()] == [(4, 3), (4,), (5, 4), (5,), (2, 5), (2,)]
    w1, b1, w2, b2, w3, b3 = network.parameters()
    x = torch.tensor([[[0.5, -1.0, 2.0]]])
    hidden = torch.relu(w2 @ torch.relu(w1 @ x[0, 0] + b1) + b2)
    torch.testing.assert_close(network(x)[0], w3 @ hidden + b3)
    assert count_parameters("mlp", (4, 5), (1, 3), 2) == 16 + 25 + 12
    assert count_parameters("mlp", (), (2, 3), 2) == 14


def test_mlp_scales_bytes_and_leaves_its_input_alone():
    network = mlp((1, 2, 2), 3, (4,))
    frames = torch.tensor([[[[0, 51], [102, 255]]]], dtype=torch.uint8)
    torch.testing.assert_close(network(frames), network(torch.tensor([[[[0.0, 0.2], [0.4, 1.0]]]])))
    vectors = torch.ones(1, 1, 2, 2)
    network(vectors)
    assert torch.equal(vectors, torch.ones(1, 1, 2, 2))


def test_precision_follows_the_configuration():
    assert resolve_precision("float32", "nature", "cpu") == torch.float32
    assert resolve_precision("bfloat16", "mlp", "cpu") == torch.bfloat16
    assert resolve_precision("auto", "mlp", "cpu") == torch.float32


# a network of the user's own ---------------------------------------------------------------------------------------


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


def test_an_unknown_module_is_a_config_error():
    with pytest.raises(ConfigError, match="No module named 'no_such_module'"):
        make_network("no_such_module:Net", (), (2, 3), 4)


# flat views --------------------------------------------------------------------------------------------------------


def test_values_and_gradients_are_views_in_the_order_of_the_module():
    module = mlp((1, 3), 2, (4,))
    before = torch.cat([p.detach().clone().reshape(-1) for p in module.parameters()])
    flat = FlatParameters(module)
    flat.check()
    assert len(flat) == before.numel()
    assert flat.values.dtype == flat.gradients.dtype == torch.float32
    assert torch.equal(flat.values, before)
    assert all(p.is_contiguous() and p.grad.is_contiguous() for p in module.parameters())
    flat.values.copy_(torch.arange(len(flat)))
    assert torch.equal(next(module.parameters()), torch.arange(12.0).view(4, 3))  # rows first: C order
    with torch.no_grad():
        list(module.parameters())[-1][1] = -7
    assert flat.values[-1] == -7


def test_backward_writes_into_the_flat_gradients():
    module = mlp((1, 3), 2, (4,))
    flat = FlatParameters(module)
    reference = mlp((1, 3), 2, (4,))
    reference.load_state_dict(module.state_dict())
    x = torch.randn(6, 1, 3)
    for _ in range(2):
        flat.gradients.zero_()
        module(x).square().sum().backward()
    reference(x).square().sum().backward()
    flat.check()
    torch.testing.assert_close(flat.gradients, torch.cat([p.grad.reshape(-1) for p in reference.parameters()]))


def test_parameters_in_another_order_in_memory_come_out_in_c_order():
    module = nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)
    expected = module.weight.detach().clone().contiguous().reshape(-1)
    flat = FlatParameters(module)
    assert torch.equal(flat.values[:24], expected)
    assert module.weight.is_contiguous()


def swap_data(module):
    module[1].weight.data = module[1].weight.data.clone()


@pytest.mark.parametrize(
    "detach",
    [
        lambda module: module.double(),
        lambda module: module.to(torch.bfloat16),
        lambda module: module.zero_grad(set_to_none=True),
        swap_data,
    ],
    ids=["double", "to", "zero_grad", "data"],
)
def test_check_notices_what_detaches_the_views(detach):
    module = mlp((1, 3), 2, (4,))
    flat = FlatParameters(module)
    detach(module)
    with pytest.raises(RuntimeError, match="no longer lies in the flat vector"):
        flat.check()


def test_check_notices_channels_last():
    module = nn.Conv2d(3, 2, 2)
    flat = FlatParameters(module)
    module.to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="parameter weight"):
        flat.check()


# replicas ----------------------------------------------------------------------------------------------------------


class Vector:
    """Two shards, published by hand."""

    def __init__(self, size):
        self.values, self.versions = np.zeros(size, np.float32), np.zeros(2, np.int64)

    def publish(self, values, *versions):
        self.values[:], self.versions[:] = values, versions

    def pull(self, out, versions):
        if (versions == self.versions).all():
            return False
        out[:], versions[:] = self.values, self.versions
        return True


def test_a_replica_follows_its_vector():
    vector = Vector(26)
    replica = Replica(mlp((1, 3), 2, (4,)), vector, 2)
    assert replica.versions.tolist() == [-1, -1]
    vector.publish(np.arange(26), 5, 4)
    assert replica.pull()
    assert replica.versions.tolist() == [5, 4]
    assert replica.global_update == 5
    assert torch.equal(next(replica.network.parameters()), torch.arange(12.0).view(4, 3))
    assert not replica.pull()
    replica.flat.check()


def test_host_gradients_are_the_gradients_themselves():
    replica = Replica(mlp((1, 3), 2, (4,)), Vector(26), 2)
    replica.flat.gradients.fill_(3)
    assert replica.host_gradients().tolist() == [3.0] * 26
    assert np.shares_memory(replica.host_gradients(), replica.flat.gradients.numpy())


def test_a_frozen_replica_is_converted_after_every_pull():
    vector = Vector(26)
    replica = Replica(mlp((1, 3), 2, (4,)), vector, 2, frozen_dtype=torch.bfloat16)
    for version in (1, 2):
        values = np.random.default_rng(version).normal(size=26).astype(np.float32)
        vector.publish(values, version, version)
        assert replica.pull()
        frozen = torch.cat([p.reshape(-1) for p in replica.network.parameters()])
        assert frozen.dtype == torch.bfloat16
        assert torch.equal(frozen, torch.from_numpy(values).bfloat16())
        assert torch.equal(replica.flat.values, torch.from_numpy(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_replica_holds_what_was_pulled(dtype):
    vector = Vector(26)
    vector.publish(np.arange(26), 5, 4)
    first, second = (Replica(mlp((1, 3), 2, (4,)), vector, 2, frozen_dtype=dtype) for _ in range(2))
    assert first.empty
    first.pull()
    assert not first.empty
    state = first.state()
    vector.publish(np.zeros(26), 6, 6)
    first.flat.check()
    second.restore(state)
    assert second.versions.tolist() == first.versions.tolist()
    for ours, theirs in zip(second.network.parameters(), first.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_frozen_network_is_used_under_autocast():
    torch.manual_seed(0)
    master = nature_dqn((4, 36, 36), 3)
    replica = Replica(master, Vector(count_parameters("nature", (), (4, 36, 36), 3)), 2, frozen_dtype=torch.bfloat16)
    frames = torch.randint(0, 256, (2, 4, 36, 36), dtype=torch.uint8)
    with torch.no_grad(), autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(replica.network(frames), master(frames), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("shape", [(2, 4, 6, 5), (3, 3, 6, 5), (1, 1, 2, 2)])
def test_channels_last_is_only_another_layout(shape):
    frames = torch.randint(0, 256, (shape[0], shape[1] + 1, *shape[2:]), dtype=torch.uint8)[:, :-1]
    pixels = channels_last(frames, torch.float32)
    assert torch.equal(pixels, frames.to(torch.float32))
    assert pixels.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_wide_layer_is_written_into_the_flat_vector(dtype, dueling):
    torch.manual_seed(0)
    network = make_network("nature", (), (4, 84, 84), 3, dueling=dueling)
    plain = copy.deepcopy(network)  # never switched on: autograd's own gradients
    flat = FlatParameters(network)
    flat.gradients.fill_(7.0)  # what an earlier batch left behind
    frames = torch.randint(0, 256, (5, 4, 84, 84), dtype=torch.uint8)
    for module in (network, plain):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            if module is network:
                flat.zero_gradients()
            loss = module(frames).float().square().sum()
        loss.backward()
    expected = torch.cat([p.grad.reshape(-1) for p in plain.parameters()])
    torch.testing.assert_close(flat.gradients, expected, rtol=1e-5 if dtype == torch.float32 else 2e-2, atol=1e-4)
    flat.check()
