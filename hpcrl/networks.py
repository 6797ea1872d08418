"""Networks, and their parameters as one flat vector."""

import copy
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import numpy as np
import torch
from torch import nn

from hpcrl.errors import ConfigError


class PixelConv2d(nn.Conv2d):
    """Convolution of uint8 frames scaled to [0, 1].

    The scale is applied to the few weights rather than to the many pixels, and the frames are converted straight to
    the dtype and the memory layout (channels last) that convolutions are fastest in.
    """

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """uint8 ``[B, stack, H, W]`` to float ``[B, channels, H', W']``."""
        return self._conv_forward(channels_last(frames, _compute_dtype(frames)), self.weight * (1 / 255), self.bias)


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


class WideLinear(nn.Linear):
    """Linear layer that writes the gradient of its weights straight into the flat vector.

    Most parameters of a convolutional Q-network are the weights of one such layer, and autograd would make their
    gradient, convert it to float32, and add it to zeros, in three passes over them. Here it is converted into its
    place. That overwrites what was there, so the layer may be used once per backward pass.
    :class:`FlatParameters` switches it on (``direct``); without, this is :class:`torch.nn.Linear`.
    """

    direct = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """float ``[B, in]`` to ``[B, out]``."""
        if self.direct and torch.is_grad_enabled():
            return _WideLinearFunction.apply(x.to(_compute_dtype(x)), self.weight, self.bias)
        return super().forward(x)


class _WideLinearFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        low = weight.to(x.dtype)
        ctx.save_for_backward(x, low)
        ctx.weight = weight
        return nn.functional.linear(x, low, bias.to(x.dtype))

    @staticmethod
    def backward(ctx, gradient):
        x, low = ctx.saved_tensors
        ctx.weight.grad.copy_(gradient.t() @ x)
        return gradient @ low, None, gradient.sum(0, dtype=torch.float32)


class Dueling(nn.Module):
    """``Q(s, a) = V(s) + A(s, a) - mean over a' of A(s, a')`` (Wang et al. 2016, equation 9).

    Parameters
    ----------
    value, advantage : torch.nn.Module
        Streams from the same features to ``[B, 1]`` and ``[B, actions]``.
    """

    def __init__(self, value: nn.Module, advantage: nn.Module):
        super().__init__()
        self.value, self.advantage = value, advantage

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """float ``[B, features]`` to action values ``[B, actions]``."""
        advantage = self.advantage(features)
        return self.value(features) + advantage - advantage.mean(dim=1, keepdim=True)


def nature_dqn(input_shape: Sequence[int], num_actions: int, dueling: bool = False) -> nn.Module:
    """The network of Mnih et al. 2015 (Nature DQN, Methods; also Gorila's): 1.69M parameters at 84x84x4.

    Parameters
    ----------
    input_shape : (stack, height, width)
    num_actions : int
        Outputs, one action value each.
    dueling : bool
        Two streams of 512 units follow the convolutions: 3.29M parameters.
    """
    channels, height, width = input_shape
    for kernel, stride in ((8, 4), (4, 2), (3, 1)):
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    if min(height, width) < 1:
        raise ConfigError(
            f'network.kind = "nature" needs frames of at least 36x36 pixels, got {input_shape[1]}x{input_shape[2]}; '
            f'set network.kind = "mlp"'
        )

    def stream(outputs: int) -> list[nn.Module]:
        return [WideLinear(64 * height * width, 512), nn.ReLU(), nn.Linear(512, outputs)]

    convolutions = [
        PixelConv2d(channels, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
    ]
    return nn.Sequential(*convolutions, *_head(stream, num_actions, dueling))


def _head(stream: Callable[[int], list[nn.Module]], num_actions: int, dueling: bool) -> list[nn.Module]:
    if not dueling:
        return stream(num_actions)
    return [Dueling(nn.Sequential(*stream(1)), nn.Sequential(*stream(num_actions)))]


class ToFloat(nn.Module):
    """Observations of any dtype to float32 vectors."""

    def forward(self, observation: torch.Tensor) -> torch.Tensor:
        """``[B, ...]`` to float32 ``[B, prod(...)]``; uint8 is scaled to [0, 1]."""
        x = observation.flatten(1).to(torch.float32)
        return x.mul_(1 / 255) if observation.dtype == torch.uint8 else x


def mlp(input_shape: Sequence[int], num_actions: int, hidden: Sequence[int], dueling: bool = False) -> nn.Module:
    """Fully connected ReLU network with layers of ``hidden`` units; each stream of a dueling one has the last."""
    widths = [int(np.prod(input_shape)), *hidden]
    last = max(len(hidden) - 1, 0)

    def layers(widths: Sequence[int]) -> list[nn.Module]:
        return [layer for shape in pairwise(widths) for layer in (nn.Linear(*shape), nn.ReLU())]

    def stream(outputs: int) -> list[nn.Module]:
        return [*layers(widths[last:]), nn.Linear(widths[-1], outputs)]

    return nn.Sequential(ToFloat(), *layers(widths[: last + 1]), *_head(stream, num_actions, dueling))


def make_network(
    kind: str,
    hidden: Sequence[int],
    input_shape: Sequence[int],
    num_actions: int,
    obs_dtype: np.dtype | type = np.float32,
    dueling: bool = False,
) -> nn.Module:
    """Network of a kind: ``"nature"``, ``"mlp"``, or ``"module:attribute"``.

    A custom network is made by ``attribute(input_shape, num_actions)`` and maps observations
    ``[B, *input_shape]`` of ``obs_dtype`` to action values float ``[B, num_actions]``; it is tried once here.

    Raises
    ------
    ConfigError
        Where the network cannot be made, has buffers (which no parameter server would carry) or parameters of
        another dtype than float32, or returns another shape.
    """
    if kind == "nature":
        if len(input_shape) != 3:
            raise ConfigError(
                f'network.kind = "nature" needs stacked frames [stack, height, width], but this environment gives '
                f'{list(input_shape)}; set network.kind = "mlp"'
            )
        return nature_dqn(input_shape, num_actions, dueling)
    if kind == "mlp":
        return mlp(input_shape, num_actions, hidden, dueling)
    module_name, _, attribute = kind.partition(":")
    try:
        make = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f'network.kind: expected "nature", "mlp" or "module:attribute", got "{kind}": {error}'
        ) from error
    return _custom_network(kind, make, tuple(input_shape), num_actions, obs_dtype)


def _custom_network(kind: str, make: Callable, input_shape: tuple[int, ...], num_actions: int, obs_dtype) -> nn.Module:
    observations = torch.from_numpy(np.zeros((2, *input_shape), obs_dtype))
    try:
        network = make(input_shape, num_actions)
        with torch.no_grad():
            values = network(observations)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f'network.kind = "{kind}" cannot be made with input_shape = {list(input_shape)} and num_actions = '
            f"{num_actions}, or fails on observations {list(observations.shape)}: {type(error).__name__}: {error}"
        ) from error
    if fault := _contract_fault(network, values, num_actions):
        raise ConfigError(f'network.kind = "{kind}" {fault}')
    return network


def _contract_fault(network: nn.Module, values: torch.Tensor, num_actions: int) -> str:
    """What a custom network, and its values of two observations, break of the contract; empty if nothing."""
    if not isinstance(network, nn.Module):
        return f"must make a torch.nn.Module, got {type(network).__name__}"
    if names := [name for name, _ in network.named_buffers()]:
        return f"has buffers ({', '.join(names)}); only parameters are shared"
    dtypes = {p.dtype for p in network.parameters()}
    if dtypes != {torch.float32}:
        return f"must have float32 parameters, got {', '.join(map(str, dtypes)) or 'none'}"
    if not isinstance(values, torch.Tensor):
        return f"must return a tensor, got {type(values).__name__}"
    if tuple(values.shape) != (2, num_actions):
        return f"must return [2, {num_actions}] for a batch of 2, got {list(values.shape)}"
    return ""


def count_parameters(
    kind: str,
    hidden: Sequence[int],
    input_shape: Sequence[int],
    num_actions: int,
    obs_dtype: np.dtype | type = np.float32,
    dueling: bool = False,
) -> int:
    """Number of parameters of a network, without making their memory where the kind is a built-in one."""
    with torch.device("meta") if ":" not in kind else nullcontext():
        network = make_network(kind, hidden, input_shape, num_actions, obs_dtype, dueling)
    return sum(p.numel() for p in network.parameters())


def cpu_has_fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 in hardware (AMX or AVX-512 BF16)."""
    try:
        with open("/proc/cpuinfo") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        return False
    return "amx_bf16" in flags or "avx512_bf16" in flags


def resolve_precision(precision: str, kind: str, device: str) -> torch.dtype:
    """dtype of the network's arithmetic: ``"auto"`` takes bfloat16 for convolutions where hardware has it."""
    if precision == "auto":
        fast = torch.cuda.is_bf16_supported() if device.startswith("cuda") else cpu_has_fast_bfloat16()
        precision = "bfloat16" if fast and kind == "nature" else "float32"
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def autocast(device: str, dtype: torch.dtype) -> AbstractContextManager:
    """Context in which networks compute in ``dtype``; master weights stay float32."""
    return torch.autocast(device.split(":")[0], dtype, enabled=dtype != torch.float32)


class FlatParameters:
    """A module's parameters, and their gradients, as views into one contiguous float32 vector each.

    So a pull is one copy straight into the network and a push one copy straight out of it. Order: that of
    ``module.parameters()``, each C-contiguous; the same on every rank.

    Attributes
    ----------
    values, gradients : torch.Tensor
        float32 ``[P]`` on the module's device.
    """

    def __init__(self, module: nn.Module):
        parameters = list(module.parameters())
        self.module = module
        self.values = torch.cat([p.detach().reshape(-1).to(torch.float32) for p in parameters])
        self.gradients = torch.zeros_like(self.values)
        direct = {layer.weight for layer in module.modules() if isinstance(layer, WideLinear)}
        self._added_to: list[torch.Tensor] = []
        """the gradients that autograd adds to"""
        begin = 0
        for p in parameters:
            end = begin + p.numel()
            p.data = self.values[begin:end].view(p.shape)
            p.grad = self.gradients[begin:end].view(p.shape)
            if p not in direct:
                self._added_to.append(p.grad)
            begin = end
        for layer in module.modules():
            if isinstance(layer, WideLinear):
                layer.direct = True

    def __len__(self) -> int:
        return self.values.numel()

    def zero_gradients(self) -> None:
        """Make ready for a backward pass."""
        torch._foreach_zero_(self._added_to)

    def check(self) -> None:
        """Raise where something (``module.to``, a foreign optimizer) has detached the views.

        Raises
        ------
        RuntimeError
            The module would silently train on parameters that nobody else sees.
        """
        begin = 0
        for name, p in self.module.named_parameters():
            at = begin * self.values.element_size()
            value_moved = p.data_ptr() != self.values.data_ptr() + at
            if value_moved or p.grad is None or p.grad.data_ptr() != self.gradients.data_ptr() + at:
                raise RuntimeError(
                    f"parameter {name} or its gradient no longer lies in the flat vector; do not call module.to() or "
                    f"zero_grad()"
                )
            begin += p.numel()


class Replica:
    """A network whose parameters follow a sharded vector of the parameter servers.

    Parameters
    ----------
    module : torch.nn.Module
        On ``device``.
    vector : ShardedVector
        The source (see :mod:`hpcrl.transport.parameters`); anything with ``pull(out, versions)``.
    num_shards : int
    device : str
    frozen_dtype : torch.dtype
        For replicas that are never differentiated: ``network`` holds the parameters in this dtype, converted once
        after each pull instead of in each forward pass.

    Attributes
    ----------
    network : torch.nn.Module
        What to call.
    versions : numpy.ndarray
        int64 ``[num_shards]`` global update of each shard as held here, -1 before the first pull.
    """

    def __init__(
        self,
        module: nn.Module,
        vector,
        num_shards: int,
        device: str = "cpu",
        frozen_dtype: torch.dtype = torch.float32,
    ):
        module = module.to(device)
        self.flat = FlatParameters(module)
        self.network = module if frozen_dtype == torch.float32 else copy.deepcopy(module).to(frozen_dtype)
        self.vector, self.device = vector, device
        # MPI moves host memory: on a GPU both vectors have one pinned mirror.
        on_gpu = device != "cpu"
        self._values = torch.empty_like(self.flat.values, device="cpu", pin_memory=True) if on_gpu else self.flat.values
        self._gradients = (
            torch.empty_like(self.flat.values, device="cpu", pin_memory=True) if on_gpu else self.flat.gradients
        )
        self.versions = np.full(num_shards, -1, np.int64)

    def pull(self) -> bool:
        """Take the newest parameters of every shard; whether any was new. Never inside autocast or a step."""
        new = self.vector.pull(self._values.numpy(), self.versions)
        if new:
            self._refresh()
        return new

    def _refresh(self) -> None:
        """Carry what has arrived in host memory to the network."""
        if self.device != "cpu":
            self.flat.values.copy_(self._values)
        if self.network is not self.flat.module:
            with torch.no_grad():
                for frozen, master in zip(self.network.parameters(), self.flat.module.parameters(), strict=True):
                    frozen.copy_(master)

    @property
    def empty(self) -> bool:
        """Whether nothing was pulled yet."""
        return bool(self.versions[0] < 0)

    @property
    def global_update(self) -> int:
        """Version of shard 0, the clock of the run."""
        return int(self.versions[0])

    def state(self) -> dict[str, np.ndarray]:
        """Parameters as last pulled; copies."""
        return {"params": self._values.numpy().copy(), "versions": self.versions.copy()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave; another number of shards makes the next pull take all of them."""
        self._values.numpy()[:] = state["params"]
        same = len(state["versions"]) == len(self.versions)
        self.versions[:] = state["versions"] if same else state["versions"].min()
        self._refresh()

    def host_gradients(self) -> np.ndarray:
        """float32 ``[P]``: the gradients in host memory, ready to be pushed."""
        if self.device != "cpu":
            self._gradients.copy_(self.flat.gradients)
        return self._gradients.numpy()
