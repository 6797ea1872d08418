"""The sum of a gradient over all learners, begun part by part while the backward pass computes the rest."""

from functools import partial
from typing import NamedTuple

import torch
from torch import nn

from hpcrl.networks import FlatParameters
from hpcrl.roles.reduction import MpiReduction
from hpcrl.transport.collectives import Collectives

LEAST_ELEMENTS = 2**18
"""Of a bucket, 1 MB: each costs some messages, whatever its length."""


class Bucket(NamedTuple):
    """A part of the flat gradient."""

    part: slice
    awaited: list[nn.Parameter]
    """whose gradients must be there before the part is summed"""


def buckets_of(flat: FlatParameters, least: int) -> list[Bucket]:
    """Buckets of at least ``least`` elements, but for the one at the beginning, in the order of a backward pass."""
    buckets, awaited, begin, end = [], [], len(flat), len(flat)
    parameters, added_to = list(flat.module.parameters()), set(flat.added_to)
    for before, parameter in reversed(list(zip([None, *parameters], parameters, strict=False))):
        begin -= parameter.numel()
        if parameter in added_to:
            awaited.append(parameter)
        # What autograd does not add to is there as soon as what follows it: both must be in one bucket.
        if before is None or (end - begin >= least and before in added_to):
            buckets.append(Bucket(slice(begin, end), awaited))
            awaited, end = [], begin
    return buckets


class Overlap:
    """Begins to sum each bucket as soon as it is computed.

    All ranks begin the buckets of the same updates in the same order, each rank when it comes to it. Whether the
    gradients of all count is not known then, so each rank keeps its own beside the sum.

    Parameters
    ----------
    flat : FlatParameters
        Whose gradients are each made by one backward pass.
    reduction : MpiReduction
        How they are summed.
    everyone : Collectives
        Of all learners.
    least : int
        Elements of a bucket, see `buckets_of`.
    """

    def __init__(
        self, flat: FlatParameters, reduction: MpiReduction, everyone: Collectives, least: int = LEAST_ELEMENTS
    ):
        self.flat, self.reduction, self.everyone = flat, reduction, everyone
        self.total = torch.empty_like(flat.gradients)
        self.buckets = buckets_of(flat, least)
        self.finished = 0
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._computed, number))
            for number, bucket in enumerate(self.buckets)
            for parameter in bucket.awaited
        ]
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._begun = 0
        self._missing = [len(bucket.awaited) for bucket in self.buckets]

    def _computed(self, number: int, _: nn.Parameter) -> None:
        """The gradient of another parameter of bucket ``number`` is there."""
        self._missing[number] -= 1
        if self._missing[number] < 0:
            raise RuntimeError("a gradient that is summed while it is computed must be made by one backward pass")
        while self._begun < len(self.buckets) and not self._missing[self._begun]:
            self._begin()

    def _begin(self) -> None:
        part = self.buckets[self._begun].part
        self._begun += 1
        self.reduction.begin(self.flat.gradients[part], self.total[part])

    def begin_rest(self) -> None:
        """Begin what the backward pass has not reached, if there was one."""
        while self._begun < len(self.buckets):
            self._begin()

    def done(self) -> bool:
        """Whether the sum of all that was begun is there."""
        return self.reduction.done()

    def finish(self) -> torch.Tensor:
        """float32 ``[P]``: the sum of all gradients, those that do not count among them. Collective."""
        self.reduction.finish(self.total)
        self.finished += 1
        self._begin_anew()
        return self.total

    def free(self) -> None:
        """End what other ranks wait for: they may have begun an update that this one has not. Collective."""
        for hook in self._hooks:
            hook.remove()
        if max(self.everyone.gather(self.finished + (self._begun > 0))) > self.finished:
            self.begin_rest()
            self.finish()
