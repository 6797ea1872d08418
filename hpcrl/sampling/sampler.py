"""Synchronous batched sampling (Accelerated Methods, section 4.1): many simulators, one network."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcrl.sampling.rollout import Rollout
from hpcrl.types import EnvStep


class Stepped(NamedTuple):
    """A step that simulators have taken."""

    of: slice
    """which"""
    step: EnvStep


class _Group:
    """Simulators that are stepped together, and how far they are in the rollout."""

    def __init__(self, env, first: int):
        self.env, self.of = env, slice(first, first + env.num_envs)
        self.t = 0
        self.under_way = False
        self.acted_upon = env.observation
        self._step: EnvStep | None = None

    def send(self, action: np.ndarray) -> None:
        self.acted_upon = self.env.observation
        if hasattr(self.env, "send"):
            self.env.send(action)
        else:
            self._step = self.env.step(action)
        self.under_way = True

    def receive(self) -> EnvStep:
        self.under_way = False
        return self.env.receive() if hasattr(self.env, "send") else self._step


class Sampler:
    """Fills a rollout: every simulator takes ``T`` steps under one policy.

    The simulators are in one group or in several, each with one batched forward pass per step. Groups take turns: while
    the actions of one are computed, the simulators of the others run in their own threads, where their environment can
    (``send`` and ``receive``), so that the shorter of inference and simulation is hidden behind the longer.

    Parameters
    ----------
    envs : sequence
        A vector environment (:mod:`hpcrl.envs`) for each group, reset.
    policy
        Has ``decide(observation)`` and ``value(observation)`` (`hpcrl.algorithms.policy_gradient.SampledPolicy`).
    rollout : Rollout
        Of all simulators, group by group.
    restarts_at_once : bool
        A simulator whose episode ends restarts in the same step, not in one of its own (see `hpcrl.types.EnvStep`).
    """

    def __init__(self, envs: Sequence, policy, rollout: Rollout, *, restarts_at_once: bool):
        firsts = np.cumsum([0, *(env.num_envs for env in envs)])
        self.groups = [_Group(env, int(first)) for env, first in zip(envs, firsts[:-1], strict=True)]
        self.policy, self.rollout, self.restarts_at_once = policy, rollout, restarts_at_once
        self._turn = 0

    @property
    def at_start(self) -> bool:
        """Whether no action of the rollout is chosen yet: the policy may change now."""
        return not self.rollout.full and all(group.t == 0 and not group.under_way for group in self.groups)

    def step(self) -> Stepped | None:
        """Let one group act; what its simulators did since it last acted, if they did something.

        The rollout is full when all groups have taken ``T`` steps, and :meth:`begin` starts the next.
        """
        group = self.groups[self._turn]
        self._turn = (self._turn + 1) % len(self.groups)
        stepped = self._receive(group) if group.under_way else None
        if group.t < self.rollout.horizon:
            decision = self.policy.decide(group.env.observation)
            group.send(decision.action)
            self.rollout.act(group.t, group.of, group.acted_upon, decision)
        elif all(other.t == self.rollout.horizon for other in self.groups):
            self._bootstrap()
        return stepped

    def begin(self) -> None:
        """Start the next rollout: this one was used."""
        self.rollout.full = False
        for group in self.groups:
            group.t = 0

    def settle(self) -> list[Stepped]:
        """Wait for all simulators, so that their state can be saved; what they did."""
        return [self._receive(group) for group in self.groups if group.under_way]

    def _receive(self, group: _Group) -> Stepped:
        step = group.receive()
        self.rollout.follow(group.t, group.of, step)
        if self.restarts_at_once and (cut := step.truncated & step.episode_over).any():
            final = np.concatenate([group.acted_upon[cut, 1:], step.final_frame[cut, None]], axis=1)
            self.rollout.bootstrap(group.t, group.of.start + np.flatnonzero(cut), self.policy.value(final))
        group.t += 1
        return Stepped(group.of, step)

    def _bootstrap(self) -> None:
        observation = np.concatenate([group.env.observation for group in self.groups])
        self.rollout.value[-1] = self.policy.value(observation)
        self.rollout.full = True

    def state(self) -> dict[str, np.ndarray]:
        """How far the groups are in the rollout; all simulators must be settled. Neither rollout nor simulators."""
        return {"turn": np.int64(self._turn), "t": np.array([group.t for group in self.groups])}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave."""
        self._turn = int(state["turn"])
        for group, t in zip(self.groups, state["t"], strict=True):
            group.t = int(t)
