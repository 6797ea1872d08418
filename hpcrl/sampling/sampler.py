"""Synchronous batched sampling (Accelerated Methods, section 4.1): many simulators, one network."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpcrl.sampling.rollout import Rollout
from hpcrl.types import EnvStep


class ThreadShares(NamedTuple):
    """How a rank divides its threads, of which there are as many as it has cores."""

    simulating: int
    """in which each group of simulators is stepped"""
    choosing: int
    """for a forward pass, see `hpcrl.networks.Forward`"""


def share_threads(threads: int, groups: int, *, on_gpu: bool = False) -> ThreadShares:
    """Shares of a rank that steps Atari's simulators in threads of its own process.

    One group's simulators and its forward passes take turns, so each has all threads. Where there are several groups,
    one is simulated while another's actions are chosen, and leaves a core to that; a rank with a GPU has one for it
    already (`hpcrl.launch.topology`).
    """
    if groups == 1:
        return ThreadShares(threads, threads)
    return ThreadShares(max(1, threads - (not on_gpu)), max(1, threads // 2))


class Stepped(NamedTuple):
    """A step that simulators have taken."""

    of: slice
    """which"""
    step: EnvStep


class Group:
    """Simulators that are stepped together, and how far they are in a rollout.

    Parameters
    ----------
    env
        Vector environment (:mod:`hpcrl.envs`), reset.
    first : int
        Number of its first simulator among all of the sampler's.
    restarts_at_once : bool
        See `Sampler`.
    """

    def __init__(self, env, first: int, *, restarts_at_once: bool):
        self.env, self.of, self.restarts_at_once = env, slice(first, first + env.num_envs), restarts_at_once
        self.rollout: Rollout | None = None
        self.place = slice(0)
        """where in the rollout its simulators are"""
        self.t = 0
        self.under_way = False
        self.acted_upon = env.observation
        self._step: EnvStep | None = None

    def write_to(self, rollout: Rollout, place: slice) -> None:
        """What is done from now on goes there."""
        self.rollout, self.place, self.t = rollout, place, 0

    def look(self) -> None:
        """See whether simulators on other ranks have stepped; one look serves all groups."""
        if hasattr(self.env, "look"):
            self.env.look()

    @property
    def ready(self) -> bool:
        """Whether no simulators on other ranks had to be waited for at the last look."""
        return not self.under_way or getattr(self.env, "ready", True)

    def act(self, decision) -> None:
        """Begin a step."""
        self.acted_upon = self.env.observation
        if hasattr(self.env, "send"):
            self.env.send(decision.action)
        else:
            self._step = self.env.step(decision.action)
        self.under_way = True
        self.rollout.act(self.t, self.place, self.acted_upon, decision)

    def receive(self, policy) -> Stepped:
        """End it; the last states of episodes that were cut are valued by ``policy``."""
        step = self.env.receive() if hasattr(self.env, "send") else self._step
        self.under_way = False
        self.rollout.follow(self.t, self.place, step)
        if self.restarts_at_once and (cut := step.truncated & step.episode_over).any():
            final = np.concatenate([self.acted_upon[cut, 1:], step.final_frame[cut, None]], axis=1)
            self.rollout.bootstrap(self.t, self.place.start + np.flatnonzero(cut), policy.value(final))
        self.t += 1
        return Stepped(self.of, step)


def make_groups(envs: Sequence, *, restarts_at_once: bool) -> list[Group]:
    """A group for each of ``envs``, whose simulators are numbered one after the other."""
    firsts = np.cumsum([0, *(env.num_envs for env in envs)])[:-1]
    return [Group(env, int(first), restarts_at_once=restarts_at_once) for env, first in zip(envs, firsts, strict=True)]


class Sampler:
    """Fills a rollout: every simulator takes ``T`` steps under one policy.

    The simulators are in one group or in several, each with one batched forward pass per step. Groups take turns: while
    the actions of one are computed, the simulators of the others run in threads of their own or on other ranks, where
    their environment can (``send`` and ``receive``), so that the shorter of inference and simulation is hidden behind
    the longer.

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

    Attributes
    ----------
    version : int
        Of the parameters that the policy has; those at the start of a rollout are noted in it. [updates]
    """

    def __init__(self, envs: Sequence, policy, rollout: Rollout, *, restarts_at_once: bool):
        self.groups = make_groups(envs, restarts_at_once=restarts_at_once)
        self.policy, self.rollout, self.num_envs, self.version = policy, rollout, rollout.num_envs, -1
        for group in self.groups:
            group.write_to(rollout, group.of)
        self._turn = 0

    @property
    def at_start(self) -> bool:
        """Whether no action of the rollout is chosen yet: the policy may change now."""
        return not self.rollout.full and all(group.t == 0 and not group.under_way for group in self.groups)

    @property
    def ready(self) -> bool:
        """Whether :meth:`step` may be called: the rollout is not full, and the group whose turn it is has stepped."""
        group = self.groups[self._turn]
        if group.under_way:
            group.look()
        return not self.rollout.full and group.ready

    def step(self) -> list[Stepped]:
        """Let one group act; what its simulators did since it last acted, if they did something.

        The rollout is full when all groups have taken ``T`` steps, and :meth:`begin` starts the next.
        """
        group, at_start = self.groups[self._turn], self.at_start
        self._turn = (self._turn + 1) % len(self.groups)
        stepped = [group.receive(self.policy)] if group.under_way else []
        if group.t < self.rollout.horizon:
            if at_start:
                self.rollout.version = self.version
            group.act(self.policy.decide(group.env.observation))
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
        return [group.receive(self.policy) for group in self.groups if group.under_way]

    def _bootstrap(self) -> None:
        rollout = self.rollout
        for group in self.groups:
            rollout.observation[-1, group.place] = group.env.observation
        rollout.value[-1] = self.policy.value(rollout.observation[-1])
        rollout.full = True

    def state(self) -> dict[str, np.ndarray]:
        """How far the groups are in the rollout; all simulators must be settled. Neither rollout nor simulators."""
        return {"turn": np.int64(self._turn), "t": np.array([group.t for group in self.groups])}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave."""
        self._turn = int(state["turn"])
        for group, t in zip(self.groups, state["t"], strict=True):
            group.t = int(t)
