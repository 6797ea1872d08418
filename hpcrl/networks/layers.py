"""Layers that networks are made of."""

import torch
from torch import nn


class PixelConv2d(nn.Conv2d):
    """Convolution of uint8 frames scaled to [0, 1].

    The scale is applied to the few weights rather than to the many pixels, and the frames are converted straight to
    the dtype and the memory layout (channels last) that convolutions are fastest in. Of a stride of 4 pixels, blocks of
    4x4 pixels are made the channels of one: a few channels leave most of a processor's matrix unit idle.
    """

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """uint8 ``[B, stack, H, W]``, or what :meth:`prepare` made of that, to float ``[B, channels, H', W']``."""
        weight, dtype = self.weight * (1 / 255), _compute_dtype(frames)
        if torch.compiler.is_exporting():  # other programs know no words of bytes
            return self._conv_forward(frames.to(dtype), weight, self.bias)
        if frames.shape[1] != self.in_channels:
            pixels = frames.permute(0, 3, 1, 2)
        elif self._takes_blocks(frames):
            pixels = blocks(frames)
        else:
            return self._conv_forward(channels_last(frames, dtype), weight, self.bias)
        return nn.functional.conv2d(pixels.to(dtype), _of_blocks(weight), self.bias)

    def prepare(self, frames: torch.Tensor) -> torch.Tensor:
        """Do once what each pass of these frames, uint8 ``[B, stack, H, W]``, would do again."""
        tells_apart = frames.shape[2] // BLOCK != self.in_channels
        return blocks(frames).permute(0, 2, 3, 1) if tells_apart and self._takes_blocks(frames) else frames

    def _takes_blocks(self, frames: torch.Tensor) -> bool:
        sizes = (*frames.shape[2:], *self.kernel_size)
        return (
            self.stride == (BLOCK, BLOCK)
            and self.padding == (0, 0)
            and not any(size % BLOCK for size in sizes)
            and frames.device.type == "cpu"
        )


BLOCK = 4
"""pixels, the bytes of one word"""


def blocks(frames: torch.Tensor) -> torch.Tensor:
    """uint8 ``[B, C, H, W]`` to uint8 ``[B, 16 C, H / 4, W / 4]``, channels last: the pixels of each block of 4x4."""
    batch, channels, height, width = frames.shape
    down, across = height // BLOCK, width // BLOCK
    words = frames.view(torch.int32).view(batch, channels, down, BLOCK, across)
    # In two steps, whole rows and then many small transpositions, this takes half as long.
    rows = words.transpose(1, 2).reshape(batch * down, channels * BLOCK, across)
    pixels = rows.transpose(1, 2).contiguous().view(torch.uint8)
    return pixels.view(batch, down, across, -1).permute(0, 3, 1, 2)


def _of_blocks(weight: torch.Tensor) -> torch.Tensor:
    """Weights ``[O, C, h, w]`` of pixels as weights ``[O, 16 C, h / 4, w / 4]`` of :func:`blocks`, channels last."""
    weight = weight.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK)).permute(0, 2, 4, 1, 3, 5).flatten(3)
    return weight.permute(0, 3, 1, 2)


def _compute_dtype(x: torch.Tensor) -> torch.dtype:
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32


def channels_last(frames: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """uint8 ``[B, C, H, W]`` to ``dtype``, the channels of a pixel side by side in memory.

    Four frames are interleaved as the bytes of one word, since copying single bytes across strides is slow.
    """
    batch, channels, height, width = frames.shape
    if channels != 4 or frames.device.type != "cpu":
        return frames.to(dtype, memory_format=torch.channels_last)
    words = frames[:, 0].to(torch.int32)
    for channel in (1, 2, 3):
        words |= frames[:, channel].to(torch.int32).bitwise_left_shift_(8 * channel)
    return words.view(torch.uint8).view(batch, height, width, 4).permute(0, 3, 1, 2).to(dtype)


class Flatten(nn.Flatten):
    """Flattens images; their gradient comes back channels last where they were.

    Else every element would be looked for in two layouts by whatever is before this layer: seven times as slow.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[B, ...]`` to ``[B, prod(...)]``."""
        images = x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last)
        if images and x.requires_grad and not torch.compiler.is_compiling():  # compilers choose layouts themselves
            x.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
        return super().forward(x)


FEW_ROWS = 32
"""of a minibatch: up to so many, a product in float32 takes no longer than one in bfloat16 and its conversion"""


class WideLinear(nn.Linear):
    """Linear layer that writes the gradient of its weights straight into the flat vector.

    Most parameters of a convolutional Q-network are the weights of one such layer, and autograd would make their
    gradient, convert it to float32, and add it to zeros, in three passes over them. Here it is converted into its
    place or, for few rows, where writing takes longer than multiplying, made there in float32. That overwrites what was
    there, so the layer may be used once per backward pass.
    :class:`FlatParameters` switches it on (``direct``); without, this is :class:`torch.nn.Linear`.

    For few rows, to convert the weights to bfloat16 takes as long as to multiply by them. Where :meth:`keep_low` was
    called they are converted once, and again whenever :meth:`refresh` says that they have changed.
    """

    direct = False
    low: torch.Tensor | None = None
    """the weights in the dtype that is computed in"""

    def keep_low(self, dtype: torch.dtype) -> None:
        """Keep the weights in ``dtype``, too."""
        self.low = self.weight.detach().to(dtype)

    def refresh(self) -> None:
        """The weights have changed."""
        if self.low is not None:
            self.low.copy_(self.weight.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float ``[B, in]`` to ``[B, out]``."""
        dtype = _compute_dtype(x)
        low = self.low if self.low is not None and self.low.dtype == dtype else None
        if self.direct and torch.is_grad_enabled():
            return _WideLinearFunction.apply(x.to(dtype), self.weight, self.bias, low)
        if low is not None:
            return nn.functional.linear(x.to(dtype), low, self.bias.to(dtype))
        return super().forward(x)


class _WideLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, low):
        low = weight.to(x.dtype) if low is None else low
        ctx.save_for_backward(x, low)
        ctx.weight = weight
        return nn.functional.linear(x, low, bias.to(x.dtype))

    @staticmethod
    def backward(ctx, gradient):
        x, low = ctx.saved_tensors
        if len(x) <= FEW_ROWS or x.dtype == torch.float32:
            torch.mm(gradient.float().t(), x.float(), out=ctx.weight.grad)
        else:
            ctx.weight.grad.copy_(gradient.t() @ x)
        return gradient @ low, None, gradient.sum(0, dtype=torch.float32), None


class Residual(nn.Module):
    """``x + conv(relu(conv(relu(x))))``: a block of IMPALA's deep network (Espeholt et al. 2018, figure 3)."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float ``[B, channels, H, W]`` to the same."""
        return x + self.second(self.first(x.relu()).relu())


class ResidualSection(nn.Sequential):
    """Convolution, max-pooling to half the size, and two residual blocks (Espeholt et al. 2018, figure 3).

    Parameters
    ----------
    channels, width : int
        Of the input and the output.
    pixels : bool
        The input is uint8 frames.
    """

    def __init__(self, channels: int, width: int, pixels: bool):
        convolution = (PixelConv2d if pixels else nn.Conv2d)(channels, width, 3, padding=1)
        super().__init__(convolution, nn.MaxPool2d(3, 2, padding=1), Residual(width), Residual(width))


class Dueling(nn.Module):
    """``Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a')`` (Wang et al. 2016, equation 9).

    Of distributions, the logits or quantiles are added in this way, each by itself (Rainbow, Hessel et al. 2018). What
    both streams give back to the features is scaled by ``1 / sqrt(2)`` (Wang et al. 2016, section 4.2).

    Parameters
    ----------
    value, advantage : torch.nn.Module
        Streams from the same features to ``[B, 1]`` and ``[B, actions]``, or ``[B, 1, N]`` and ``[B, actions, N]``.
    """

    def __init__(self, value: nn.Module, advantage: nn.Module):
        super().__init__()
        self.value, self.advantage = value, advantage

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """float ``[B, features]`` to action values ``[B, actions]``, or ``[B, actions, N]``."""
        if features.requires_grad:
            features.register_hook(lambda gradient: gradient * 0.5**0.5)
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=1, keepdim=True)


class ToFloat(nn.Module):
    """Observations of any dtype to float32 vectors."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """``[B, ...]`` to float32 ``[B, prod(...)]``; uint8 is scaled to [0, 1]."""
        x = observation.flatten(1).to(torch.float32)
        return x.mul_(1 / 255) if observation.dtype == torch.uint8 else x
