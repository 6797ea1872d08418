"""A parameter server's update, and the fastest of torch's own that it is held against; one thread, as a server has."""

import itertools
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from hpcrl.algorithms.optimizers import Optimizer, make_rule
from hpcrl.transport.parameters import ShardedVector

OPTIMIZERS = ("sgd", "adagrad", "adam", "rmsprop")
RATE, EPSILON, DECAY = 1e-4, 1e-3, 0.95
BLOCK_ELEMENTS = 2**18
TRIES = 3


def updates(name: str, vector: ShardedVector) -> tuple[Callable[[], object], Callable[[], object]]:
    """An optimizer's step with a publication in ``vector``, and torch's with one copy; of the same parameters."""
    torch.set_num_threads(1)
    shard, copy = nn.Parameter(torch.zeros(vector.size)), np.zeros(vector.size, np.float32)
    gradient = torch.linspace(-1, 1, vector.size)
    gradients = itertools.cycle([gradient, -gradient])  # their mean is zero: a constant one has no spread
    shard.grad = gradient
    ours = Optimizer(shard.detach(), make_rule(name, epsilon=EPSILON, rmsprop_decay=DECAY), RATE)
    bare = _fastest(_torchs(name, shard))
    values, version = shard.detach().numpy(), 1

    def update() -> None:
        nonlocal version
        ours.step(next(gradients))
        version += 1
        if not vector.publish(values, version):
            raise RuntimeError("a publication was put off though nobody reads")

    def bare_update() -> None:
        _set_gradient(bare, next(gradients))
        bare.step()
        np.copyto(copy, values)

    return update, bare_update


def _torchs(name: str, shard: nn.Parameter) -> list[Callable[[], torch.optim.Optimizer]]:
    """Makers of torch's implementations of one rule."""
    if name == "rmsprop":
        options = {"lr": RATE, "alpha": DECAY, "eps": EPSILON, "centered": True}

        def in_blocks() -> torch.optim.Optimizer:
            blocks = [nn.Parameter(block) for block in shard.detach().split(BLOCK_ELEMENTS)]
            optimizer = torch.optim.RMSprop(blocks, foreach=False, **options)
            _set_gradient(optimizer, shard.grad)
            return optimizer

        variants = [lambda f=foreach: torch.optim.RMSprop([shard], foreach=f, **options) for foreach in (False, True)]
        return [*variants, in_blocks]
    kind = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}[name]
    return [lambda o=option: kind([shard], lr=RATE, **o) for option in ({"fused": True}, {"foreach": True})]


def _set_gradient(optimizer: torch.optim.Optimizer, gradient: torch.Tensor) -> None:
    parameters, begin = optimizer.param_groups[0]["params"], 0
    for parameter in parameters:
        parameter.grad = gradient[begin : begin + parameter.numel()]
        begin += parameter.numel()


def _fastest(makers: list[Callable[[], torch.optim.Optimizer]]) -> torch.optim.Optimizer:
    def best_time(make: Callable[[], torch.optim.Optimizer]) -> float:
        optimizer, times = make(), []
        for _ in range(1 + TRIES):
            begin = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        return min(times[1:])

    return min(makers, key=best_time)()
