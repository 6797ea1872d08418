"""A network's parameters as one flat vector, and a network that follows the servers' vector."""

import copy
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from hpcrl.networks.layers import WideLinear


class FlatParameters:
    """A module's parameters, and their gradients, as views into one contiguous float32 vector each.

    So a pull is one copy straight into the network and a push one copy straight out of it. Order: that of
    ``module.parameters()``, each C-contiguous; the same on every rank.

    Parameters
    ----------
    module : torch.nn.Module
    gradients : torch.Tensor, optional
        Zeros, float32 ``[P]`` on the module's device: where the gradients are to lie.

    Attributes
    ----------
    values, gradients : torch.Tensor
        float32 ``[P]`` on the module's device.
    added_to : list of torch.nn.Parameter
        Those to whose gradients autograd adds; the others are written by the backward pass of their layer, before the
        one that follows them.
    """

    def __init__(self, module: nn.Module, gradients: torch.Tensor | None = None):
        parameters = list(module.parameters())
        self.module = module
        self.values = torch.cat([p.detach().reshape(-1).to(torch.float32) for p in parameters])
        self.gradients = torch.zeros_like(self.values) if gradients is None else gradients
        direct = {layer.weight for layer in module.modules() if isinstance(layer, WideLinear)}
        self.added_to: list[nn.Parameter] = []
        begin = 0
        for p in parameters:
            end = begin + p.numel()
            p.data = self.values[begin:end].view(p.shape)
            p.grad = self.gradients[begin:end].view(p.shape)
            if p not in direct:
                self.added_to.append(p)
            begin = end
        for layer in module.modules():
            if isinstance(layer, WideLinear):
                layer.direct = True

    def __len__(self) -> int:
        return self.values.numel()

    def accumulate(self) -> None:
        """Let autograd add to all gradients: compiled code knows no other way."""
        for layer in self.module.modules():
            if isinstance(layer, WideLinear):
                layer.direct = False
        self.added_to = list(self.module.parameters())

    def zero_gradients(self) -> None:
        """Make ready for a backward pass."""
        torch._foreach_zero_([p.grad for p in self.added_to])

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
    low_dtype : torch.dtype, optional
        For others: the arithmetic of their passes, to which the weights of wide layers are converted once after each
        pull.
    gradients : torch.Tensor, optional
        See :class:`FlatParameters`.

    Attributes
    ----------
    network : torch.nn.Module
        What to call.
    versions : numpy.ndarray
        int64 ``[num_shards]`` global update of each shard as held here, -1 before the first pull.
    pulls : int
        How often this was brought up to date.
    """

    def __init__(
        self,
        module: nn.Module,
        vector,
        num_shards: int,
        device: str = "cpu",
        frozen_dtype: torch.dtype = torch.float32,
        low_dtype: torch.dtype | None = None,
        gradients: torch.Tensor | None = None,
    ):
        module = module.to(device)
        self.flat = FlatParameters(module, gradients)
        self._wide = [layer for layer in module.modules() if isinstance(layer, WideLinear)]
        for layer in self._wide if low_dtype not in (None, torch.float32) else ():
            layer.keep_low(low_dtype)
        self.network = module
        if frozen_dtype != torch.float32:
            # A private copy may have the layout that convolutions would otherwise bring their weights to in each pass.
            self.network = copy.deepcopy(module).to(frozen_dtype, memory_format=torch.channels_last)
        self.vector, self.device = vector, device
        # MPI moves host memory: on a GPU both vectors have one pinned mirror.
        on_gpu = device != "cpu"
        self._values = torch.empty_like(self.flat.values, device="cpu", pin_memory=True) if on_gpu else self.flat.values
        self._gradients = (
            torch.empty_like(self.flat.values, device="cpu", pin_memory=True) if on_gpu else self.flat.gradients
        )
        self._copied = torch.cuda.Event() if on_gpu else None
        self.versions = np.full(num_shards, -1, np.int64)
        self.pulls = 0

    def pull(self) -> bool:
        """Take the newest parameters of every shard; whether any was new. Never inside autocast or a step."""
        self.pulls += 1
        new = self.vector.pull(self._host_values(), self.versions)
        if new:
            self._refresh()
        return new

    def _host_values(self) -> np.ndarray:
        """float32 ``[P]``: what is pulled into; nothing is copied from it any more."""
        if self._copied:
            self._copied.synchronize()
        return self._values.numpy()

    def _refresh(self) -> None:
        """Carry what has arrived in host memory to the network."""
        if self.device != "cpu":
            self.flat.values.copy_(self._values, non_blocking=True)
            self._copied.record(torch.cuda.current_stream(self.device))
        self.refresh_low()
        self._refresh_frozen()

    def refresh_low(self) -> None:
        """Convert the weights that are kept in low precision anew."""
        for layer in self._wide:
            layer.refresh()

    def _refresh_frozen(self) -> None:
        if self.network is not self.flat.module:
            with torch.no_grad():
                for frozen, master in zip(self.network.parameters(), self.flat.module.parameters(), strict=True):
                    frozen.copy_(master)

    def prepare(self, observation: np.ndarray) -> np.ndarray:
        """What the network may be given in place of observations ``[B, ...]`` that it passes several times."""
        if self.device != "cpu" or not hasattr(self.network, "prepare"):
            return observation
        return self.network.prepare(torch.from_numpy(observation)).numpy()

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
        self._host_values()[:] = state["params"]
        same = len(state["versions"]) == len(self.versions)
        self.versions[:] = state["versions"] if same else state["versions"].min()
        self._refresh()

    def host_gradients(self) -> np.ndarray:
        """float32 ``[P]``: the gradients in host memory, ready to be pushed."""
        if self.device != "cpu":
            self._gradients.copy_(self.flat.gradients)
        return self._gradients.numpy()
