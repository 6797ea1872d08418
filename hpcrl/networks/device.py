"""Work on a GPU: minibatches on their way to it, and a step recorded once and repeated."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

SLOTS = 2
"""Minibatches that may be on their way: one is copied while the next is put together."""
WARM_UP = 3
"""Calls before a recording, in which libraries choose their algorithms and allocate."""


class Upload:
    """Copies arrays to a device, from pinned memory and in a stream of their own; on a CPU nothing is copied.

    The copies run beside whatever the GPU is at; only what uses them there waits for them.
    """

    def __init__(self, device: str):
        self.device = torch.device(device)
        self._turn = 0
        self._pinned: list[dict[tuple, torch.Tensor]] = [{} for _ in range(SLOTS)]
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device)
            self._copied = [torch.cuda.Event() for _ in range(SLOTS)]

    def __call__(self, arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
        """Tensors of the same contents, shapes and dtypes on the device; the arrays are free again on return."""
        if self.device.type == "cpu":
            return [torch.from_numpy(array) for array in arrays]
        self._turn = (self._turn + 1) % SLOTS
        pinned, copied = self._pinned[self._turn], self._copied[self._turn]
        copied.synchronize()  # of the copies that last began here
        moved = []
        with torch.cuda.stream(self._stream):
            for i, array in enumerate(arrays):
                source = torch.from_numpy(array)
                key = i, source.shape, source.dtype
                if key not in pinned:
                    pinned[key] = torch.empty_like(source, pin_memory=True)
                moved.append(pinned[key].copy_(source).to(self.device, non_blocking=True))
            copied.record(self._stream)
        using = torch.cuda.current_stream(self.device)
        using.wait_stream(self._stream)
        for tensor in moved:
            tensor.record_stream(using)
        return moved


class Recorded:
    """A function of tensors on a GPU, recorded as a CUDA graph at its first call and repeated from then on.

    Starting the hundred small kernels of a learner's step one by one takes the CPU longer than the GPU computes; a
    graph is started at once. The function must do the same work at every call, on what it finds in its arguments and
    in the memory that it saw when it was recorded, and must not wait for the GPU. What it returns is overwritten by the
    next call. Arguments of other shapes are recorded anew.
    """

    def __init__(self, function: Callable[..., tuple[torch.Tensor, ...]]):
        self.function = function
        self._recordings: dict[tuple, tuple] = {}

    def __call__(self, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The function's results for these arguments."""
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in arguments)
        if shapes not in self._recordings:
            self._recordings[shapes] = self._record(arguments)
        graph, inputs, results = self._recordings[shapes]
        for own, tensor in zip(inputs, arguments, strict=True):
            own.copy_(tensor)
        graph.replay()
        return results

    def _record(self, arguments: Sequence[torch.Tensor]) -> tuple:
        inputs = [tensor.clone() for tensor in arguments]
        beside = torch.cuda.Stream(inputs[0].device)
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):
            for _ in range(WARM_UP):
                self.function(*inputs)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = self.function(*inputs)
        return graph, inputs, results
