"""Norms of parameters, gradients and steps, layer by layer (Accelerated Methods, appendix D)."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn

from hpcrl.networks import Replica

WHOLE = -1
"""Stands for all layers together."""


class Layer(NamedTuple):
    """A module with parameters of its own, and where they lie in the flat vector."""

    name: str
    begin: int
    end: int


def layers_of(network: nn.Module) -> list[Layer]:
    """Layers of a network in the order of its flat parameters."""
    layers, begin = [], 0
    for name, module in network.named_modules():
        if size := sum(p.numel() for p in module.parameters(recurse=False)):
            layers.append(Layer(name, begin, begin + size))
            begin += size
    return layers


class LayerNorms:
    """Follows a learner's network: a row for each layer, and one for all, every ``period`` of its gradients.

    What a step came to is known when the parameters are looked at again, at the learner's next gradient. With several
    learners it may be the step of several updates, which are counted.

    Parameters
    ----------
    replica : Replica
    start : torch.Tensor
        float32 ``[P]``: the parameters that the run began with.
    period : int
        Own updates of the learner. [updates]
    report : callable
        ``report(layer=..., parameters=..., distance=..., gradient=..., step=..., step_updates=..., global_update=...)``
    """

    def __init__(self, replica: Replica, *, start: torch.Tensor, period: int, report: Callable[..., None]):
        self.replica, self.start, self.period, self.report = replica, start, period, report
        self.layers = layers_of(replica.flat.module)
        self._before: tuple[int, torch.Tensor, list[torch.Tensor]] | None = None

    def take(self, update: int) -> None:
        """Look at the gradient of the learner's minibatch ``update``, and at the parameters that it was computed at."""
        flat, version = self.replica.flat, self.replica.global_update
        if self._before:
            self._report(*self._before)
            self._before = None
        if update % self.period == 0:
            start = self.start.to(flat.values.device)
            norms = [self._norms(vector) for vector in (flat.values, flat.values - start, flat.gradients)]
            self._before = version, flat.values.clone(), norms

    def _norms(self, vector: torch.Tensor) -> torch.Tensor:
        """float32 ``[1 + layers]``: of all, and of each."""
        return torch.stack([vector.norm(), *(vector[layer.begin : layer.end].norm() for layer in self.layers)]).cpu()

    def _report(self, version: int, before: torch.Tensor, norms: list[torch.Tensor]) -> None:
        step = self._norms(self.replica.flat.values - before)
        columns = zip(*(norm.tolist() for norm in (*norms, step)), strict=True)
        for layer, (parameters, distance, gradient, length) in enumerate(columns, start=WHOLE):
            self.report(
                layer=layer,
                parameters=parameters,
                distance=distance,
                gradient=gradient,
                step=length,
                step_updates=self.replica.global_update - version,
                global_update=version,
            )
