"""The networks: sizes, and what they compute."""

import pytest
import torch

from hpcrl.errors import ConfigError
from hpcrl.networks import autocast, count_parameters, make_network, mlp, nature_dqn, resolve_precision


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
