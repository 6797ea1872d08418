"""The networks: sizes, and what they compute."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.config import from_dict
from hpcrl.errors import ConfigError
from hpcrl.networks import (
    FRAME_KINDS,
    autocast,
    convolutional,
    count_parameters,
    impala,
    make_network,
    mlp,
    resolve_precision,
)


def nature_size(num_actions):
    """Weights and biases of Nature DQN at 84x84x4, layer by layer: (in * kernel^2 + 1) * out, (in + 1) * out."""
    convolutions = (4 * 8 * 8 + 1) * 32 + (32 * 4 * 4 + 1) * 64 + (64 * 3 * 3 + 1) * 64
    return convolutions + (64 * 7 * 7 + 1) * 512 + (512 + 1) * num_actions


@pytest.mark.parametrize(("num_actions", "expected"), [(6, 1_687_206), (18, 1_693_362)])
def test_nature_has_its_published_size(num_actions, expected):
    assert nature_size(num_actions) == expected
    assert count_parameters("nature", (), (4, 84, 84), num_actions, np.uint8) == expected
    assert sum(p.numel() for p in convolutional("nature", (4, 84, 84), num_actions).parameters()) == expected


def test_a_dueling_nature_has_two_wide_streams():
    convolutions = nature_size(0) - (64 * 7 * 7 + 1) * 512
    expected = convolutions + 2 * (64 * 7 * 7 + 1) * 512 + (512 + 1) * (6 + 1)
    assert expected == 3_293_863
    assert count_parameters("nature", (), (4, 84, 84), 6, np.uint8, dueling=True) == expected
    network = make_network("nature", (), (4, 84, 84), 6, np.uint8, dueling=True)
    assert network(torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)).shape == (3, 6)


@pytest.mark.parametrize("kind", FRAME_KINDS)
def test_the_configuration_knows_every_kind(kind):
    assert from_dict({"network": {"kind": kind}}).network.kind == kind


@pytest.mark.parametrize(
    ("kind", "expected"),
    [  # 104x80 is 25x19 after the first convolution and 12x9 after the second (Accelerated Methods, section A.1)
        ("a3c_net", (4 * 64 + 1) * 16 + (16 * 16 + 1) * 32 + (32 * 12 * 9 + 1) * 256 + 257 * 6),
        (
            "dqn_net",
            (4 * 64 + 1) * 32 + (32 * 16 + 1) * 64 + (64 * 9 + 1) * 64 + (64 * 12 * 9 + 1) * 512 + 513 * 6,
        ),
    ],
)
def test_the_networks_of_accelerated_methods_have_their_sizes(kind, expected):
    assert count_parameters(kind, (), (4, 104, 80), 6, np.uint8) == expected
    assert expected == pytest.approx({"a3c_net": 0.9e6, "dqn_net": 3.62e6}[kind], rel=0.01)  # as published
    network = make_network(kind, (), (4, 104, 80), 6, np.uint8)
    assert network(torch.randint(0, 256, (3, 4, 104, 80), dtype=torch.uint8)).shape == (3, 6)


def test_the_residual_network_of_impala():
    """15 convolutions in three sections that halve the frames: 84 to 42, 21 and 11 (Espeholt et al. 2018, figure 3)."""
    network = impala((4, 84, 84), 6)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == 15
    assert [layer.out_channels for layer in convolutions] == [16] * 5 + [32] * 10
    assert network[-3].in_features == 32 * 11 * 11
    frames = torch.randint(0, 256, (2, 4, 84, 84), dtype=torch.uint8)
    assert network(frames).shape == (2, 6)
    section, x = network[0], torch.randn(2, 16, 5, 4)
    first, second = section[2].first, section[2].second
    torch.testing.assert_close(section[2](x), x + second(torch.relu(first(torch.relu(x)))))
    assert impala((1, 10, 5), 3)(torch.zeros(1, 1, 10, 5, dtype=torch.uint8)).shape == (1, 3)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("kind", [*FRAME_KINDS, "mlp"])
def test_distributional_heads_have_so_many_outputs_for_each_action(kind, dueling):
    network = make_network(kind, (8,), (4, 44, 40), 3, np.uint8, dueling, 7)
    assert network(torch.randint(0, 256, (2, 4, 44, 40), dtype=torch.uint8)).shape == (2, 3, 7)


def test_a_dueling_distribution_adds_each_output_by_itself():
    torch.manual_seed(0)
    network, x = mlp((1, 3), 4, (5,), dueling=True, atoms=6), torch.randn(2, 1, 3)
    outputs, (*trunk, head) = network(x), network
    features = trunk[0](x)
    value, advantage = head.value(features), head.advantage(features)
    assert (value.shape, advantage.shape) == ((2, 1, 6), (2, 4, 6))
    for atom in range(6):
        expected = value[:, 0, atom, None] + advantage[:, :, atom] - advantage[:, :, atom].mean(dim=1, keepdim=True)
        torch.testing.assert_close(outputs[:, :, atom], expected)


@pytest.mark.parametrize("kind", ["nature", "mlp"])
def test_normalised_layers_have_mean_0_and_deviation_1_before_their_relu(kind):
    network = make_network(kind, (32, 16), (4, 44, 40), 3, np.uint8, False, 0, True)
    seen = []
    for layer in network.modules():
        if isinstance(layer, nn.GroupNorm | nn.LayerNorm):
            layer.register_forward_hook(lambda layer, inputs, output: seen.append(output.detach().flatten(1)))
    assert network(torch.randint(0, 256, (5, 4, 44, 40), dtype=torch.uint8)).shape == (5, 3)
    assert len(seen) == (4 if kind == "nature" else 2)
    for output in seen:
        torch.testing.assert_close(output.mean(dim=1), torch.zeros(5), rtol=0, atol=1e-3)
        torch.testing.assert_close(output.std(dim=1, correction=0), torch.ones(5), rtol=0, atol=2e-2)
    parameters = count_parameters(kind, (32, 16), (4, 44, 40), 3, np.uint8, layer_norm=True)
    assert parameters - count_parameters(kind, (32, 16), (4, 44, 40), 3, np.uint8) == (
        2 * (32 + 64 + 64 + 512) if kind == "nature" else 2 * (32 + 16)
    )


def test_dueling_streams_give_back_a_scaled_gradient():
    torch.manual_seed(0)
    head = mlp((1, 3), 4, (5,), dueling=True)[-1]
    features = torch.randn(2, 3, requires_grad=True)
    head(features * 1).square().sum().backward()
    scaled = features.grad.clone()
    plain = features.detach().clone().requires_grad_()
    advantage = head.advantage(plain)
    (head.value(plain) + advantage - advantage.mean(dim=1, keepdim=True)).square().sum().backward()
    torch.testing.assert_close(scaled, plain.grad / 2**0.5)


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
    assert convolutional("nature", (4, 84, 84), 6)(frames).shape == (3, 6)


def test_frames_too_small_for_nature_are_refused():
    assert convolutional("nature", (4, 36, 36), 3)(torch.zeros(1, 4, 36, 36, dtype=torch.uint8)).shape == (1, 3)
    with pytest.raises(ConfigError, match="at least 36x36 pixels, got 35x40"):
        convolutional("nature", (4, 35, 40), 3)
    with pytest.raises(ConfigError, match=r"needs stacked frames .* gives uint8 \[1, 4\]; set network.kind = \"mlp\""):
        make_network("nature", (), (1, 4), 2, np.uint8)
    with pytest.raises(ConfigError, match=r"needs stacked frames .* of uint8, .* gives float32 \[4, 84, 84\]"):
        make_network("nature", (), (4, 84, 84), 2, np.float32)
    assert convolutional("a3c_net", (4, 12, 12), 3)(torch.zeros(1, 4, 12, 12, dtype=torch.uint8)).shape == (1, 3)
    with pytest.raises(ConfigError, match=r'"a3c_net" needs frames of at least 12x12 pixels, got 20x11'):
        convolutional("a3c_net", (4, 20, 11), 3)


def test_bfloat16_is_close_to_float32():
    torch.manual_seed(0)
    network = convolutional("nature", (4, 84, 84), 6)
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
    assert {resolve_precision("auto", kind, "cpu") for kind in FRAME_KINDS} == {
        resolve_precision("auto", "nature", "cpu")
    }
