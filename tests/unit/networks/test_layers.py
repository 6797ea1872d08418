"""Layers against plain ones."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.networks import FlatParameters, PixelConv2d, channels_last, make_network
from hpcrl.networks.layers import Flatten


@pytest.mark.parametrize(
    ("channels", "kernel", "stride", "size"),
    [(4, 5, 2, (20, 20)), (4, 8, 4, (20, 28)), (1, 4, 4, (8, 12)), (3, 8, 4, (22, 20)), (4, 6, 4, (20, 20))],
    ids=["plain", "blocks", "blocks of one channel", "rows left over", "no whole blocks"],
)
def test_pixel_convolution_is_one_of_frames_over_255(channels, kernel, stride, size):
    torch.manual_seed(0)
    pixel, plain = PixelConv2d(channels, 8, kernel, stride), nn.Conv2d(channels, 8, kernel, stride)
    plain.load_state_dict(pixel.state_dict())
    frames = torch.randint(0, 256, (3, channels + 1, *size), dtype=torch.uint8)[:, 1:]
    expected = plain(frames.float() / 255)
    torch.testing.assert_close(pixel(frames), expected, rtol=1e-5, atol=1e-6)
    expected.square().sum().backward()
    pixel(frames).square().sum().backward()
    torch.testing.assert_close(pixel.weight.grad, plain.weight.grad, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(pixel.bias.grad, plain.bias.grad, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shape", [(4, 84, 84), (4, 104, 80), (4, 16, 64), (4, 21, 20), (3, 12, 48)])
def test_prepared_frames_give_the_same(shape):
    torch.manual_seed(0)
    layer = PixelConv2d(shape[0], 8, 8, 4)
    frames = torch.randint(0, 256, (3, *shape), dtype=torch.uint8)
    prepared = layer.prepare(frames)
    assert torch.equal(layer(prepared), layer(frames))
    assert (prepared is frames) == (shape[1] in (21, 16, 12))  # no blocks, or as many rows of them as frames


def test_only_strides_of_four_pixels_take_blocks():
    frames = torch.zeros((1, 4, 84, 84), dtype=torch.uint8)
    assert PixelConv2d(4, 8, 8, 4)._takes_blocks(frames)
    assert not PixelConv2d(4, 8, 8, 2)._takes_blocks(frames)
    assert not PixelConv2d(4, 8, 8, 4, padding=1)._takes_blocks(frames)
    assert not PixelConv2d(4, 8, 8, 4)._takes_blocks(frames[:, :, 1:])


@pytest.mark.parametrize("shape", [(2, 4, 6, 5), (3, 3, 6, 5), (1, 1, 2, 2)])
def test_channels_last_is_only_another_layout(shape):
    frames = torch.randint(0, 256, (shape[0], shape[1] + 1, *shape[2:]), dtype=torch.uint8)[:, :-1]
    pixels = channels_last(frames, torch.float32)
    assert torch.equal(pixels, frames.to(torch.float32))
    assert pixels.is_contiguous(memory_format=torch.channels_last)


def test_the_gradient_of_flattened_images_has_their_layout_and_the_same_values():
    for layout in (torch.channels_last, torch.contiguous_format):
        images = torch.arange(48.0).view(2, 3, 2, 4).contiguous(memory_format=layout).requires_grad_()
        flat = Flatten()(images * 1)
        assert torch.equal(flat, images.flatten(1))
        (flat * torch.arange(24.0)).sum().backward()
        assert torch.equal(images.grad, torch.arange(24.0).view(3, 2, 4).expand(2, 3, 2, 4))
        assert images.grad.is_contiguous(memory_format=layout)
    assert Flatten()(torch.zeros(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_a_wide_layer_is_written_into_the_flat_vector(dtype, dueling):
    torch.manual_seed(0)
    network = make_network("nature", (), (4, 84, 84), 3, np.uint8, dueling=dueling)
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
