"""Bare loops of deep Q-learning on Pong: the work of one bundle, uncoupled, with no other code of hpcrl.

A program that `hpcrl.bench.dqn` starts as often as its job has bundles. Each line on its standard input asks for a
measurement, ``{"choice": {part: [precision, layout, threads]}, "seconds": s}``; the answer on its standard output is
``{part: seconds}``, the mean time of each part. Between them it waits and takes no processor time.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ale_py
import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from torch import nn
from torch.nn import functional

PARTS = ("simulation", "inference", "gradient", "optimizer", "publication")
"""Methods of `BareLoop`; one pass over them is the work of one update."""
SIMULATORS = 4
BATCH_SIZE = 32
WARM_UP_SECONDS = 0.3
DISCOUNT = 0.99


class Variant(NamedTuple):
    """How a part may be computed."""

    precision: str
    """``"float32"``, or ``"bfloat16"`` under autocast"""
    layout: str
    """of frames and activations: ``"contiguous"`` or ``"channels_last"``"""
    threads: int

    def to(self, frames: torch.Tensor) -> torch.Tensor:
        """Convert uint8 frames ``[B, stack, H, W]`` to this precision and layout."""
        dtype = getattr(torch, self.precision)
        if self.layout == "contiguous":
            return frames.to(dtype)
        # Faster than to(dtype, memory_format=torch.channels_last), which moves single elements.
        return torch.stack(frames.unbind(1), dim=-1).to(dtype).permute(0, 3, 1, 2)

    def autocast(self) -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=self.precision == "bfloat16")


class ScaledConv2d(nn.Conv2d):
    """Convolution of frames from 0 to 255, scaled to [0, 1] by its weights, which are fewer."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return self._conv_forward(pixels, self.weight * (1 / 255), self.bias)


def nature_network(num_actions: int) -> nn.Sequential:
    """Return the network of Mnih et al. 2015 (Methods)."""
    return nn.Sequential(
        *(ScaledConv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, num_actions)),
    )


class BareLoop:
    """Simulators, networks, optimizer and one minibatch of random frames.

    Parameters
    ----------
    simulators, batch_size
        ``E`` and ``B``.
    """

    parts = PARTS

    def __init__(self, simulators: int = SIMULATORS, batch_size: int = BATCH_SIZE):
        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
        self.num_simulators, self._envs = simulators, {}
        num_actions = int(self._simulators(1).single_action_space.n)
        self.observation = self._simulators(1).reset(seed=np.arange(simulators, dtype=np.int32))[0]
        self.actions = np.zeros(simulators, np.int64)
        self.online, target = nature_network(num_actions), nature_network(num_actions)
        # A target changes so seldom that it is kept in the precision it is used in.
        self.targets = {"float32": target, "bfloat16": nature_network(num_actions).to(torch.bfloat16)}
        self.adagrad = torch.optim.Adagrad(self.online.parameters(), lr=1e-4, initial_accumulator_value=0.1, fused=True)
        self.published = [torch.empty_like(p) for p in self.online.parameters()]
        self.s_tm1, self.s_t = torch.randint(0, 256, (2, batch_size, 4, 84, 84), dtype=torch.uint8)
        self.a_tm1 = torch.randint(0, num_actions, (batch_size, 1))
        self.r_t = torch.randint(-1, 2, (batch_size,)).float()

    def _simulators(self, threads: int) -> AtariVectorEnv:
        if threads not in self._envs:
            protocol = {"repeat_action_probability": 0.25, "noop_max": 0, "reward_clipping": False}
            self._envs[threads] = AtariVectorEnv("pong", self.num_simulators, num_threads=threads, **protocol)
            self._envs[threads].reset(seed=np.arange(self.num_simulators, dtype=np.int32))
        return self._envs[threads]

    def simulation(self, variant: Variant) -> None:
        """One step of every simulator."""
        self.observation = self._simulators(variant.threads).step(self.actions)[0]

    @torch.inference_mode()
    def inference(self, variant: Variant) -> None:
        """The greedy action of every simulator."""
        with variant.autocast():
            q = self.online(variant.to(torch.from_numpy(self.observation)))
        self.actions = q.argmax(dim=1).numpy()

    def gradient(self, variant: Variant) -> None:
        """The DQN gradient of the minibatch."""
        self.adagrad.zero_grad()
        with variant.autocast():
            with torch.no_grad():
                q_target_t = self.targets[variant.precision](variant.to(self.s_t)).float()
            q_tm1 = self.online(variant.to(self.s_tm1)).float()
        target = self.r_t + DISCOUNT * q_target_t.max(dim=1).values
        functional.huber_loss(q_tm1.gather(1, self.a_tm1).squeeze(1), target).backward()

    def optimizer(self, variant: Variant) -> None:
        """AdaGrad's step."""
        self.adagrad.step()

    @torch.no_grad()
    def publication(self, variant: Variant) -> None:
        """One copy of the parameters, for others to read."""
        torch._foreach_copy_(self.published, list(self.online.parameters()))

    def measure(self, choice: Mapping[str, Variant], seconds: float) -> dict[str, float]:
        """Run updates for about ``seconds``, at least one; return the mean seconds of each part in one update."""
        self._run(choice, WARM_UP_SECONDS)
        updates, spent = self._run(choice, seconds)
        return {part: total / updates for part, total in spent.items()}

    def _run(self, choice: Mapping[str, Variant], seconds: float) -> tuple[int, dict[str, float]]:
        updates, spent, end = 0, dict.fromkeys(self.parts, 0.0), time.perf_counter() + seconds
        while not updates or time.perf_counter() < end:
            self._update(choice, spent)
            updates += 1
        return updates, spent

    def _update(self, choice: Mapping[str, Variant], spent: dict[str, float]) -> None:
        self._do(self.parts, choice, spent)

    def _do(self, parts: Sequence[str], choice: Mapping[str, Variant], spent: dict[str, float]) -> None:
        for part in parts:
            variant = choice[part]
            if torch.get_num_threads() != variant.threads:
                torch.set_num_threads(variant.threads)
            begin = time.perf_counter()
            getattr(self, part)(variant)
            spent[part] += time.perf_counter() - begin


def keep_freed_memory() -> None:
    """Let glibc reuse the memory of freed tensors instead of giving it back to the kernel, which costs page faults."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 2**30)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def answer(loop: BareLoop) -> None:
    """Answer requests until standard input ends."""
    keep_freed_memory()
    # Whatever a library prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        choice = {part: Variant(*variant) for part, variant in request["choice"].items()}
        print(json.dumps(loop.measure(choice, request["seconds"])), file=answers, flush=True)


if __name__ == "__main__":
    answer(BareLoop())
