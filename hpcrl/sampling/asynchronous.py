"""Asynchronous batched sampling (GA3C: Babaeizadeh et al. 2017): whoever has stepped acts again, in one batch."""

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np

from hpcrl.algorithms.policy_gradient import Decision
from hpcrl.sampling.rollout import Rollout
from hpcrl.sampling.sampler import Group, Stepped, make_groups


class AsynchronousSampler:
    """Groups of simulators that wait for no other: each fills a rollout of its own and goes on with the next.

    One forward pass chooses the actions of all groups whose simulators have stepped meanwhile. The policy may change
    between any two steps, and so within a rollout, whose version is that of its first. A slow simulator delays its own
    group only. Where learning is behind, no rollout is free, and groups wait.

    Parameters
    ----------
    envs, policy, restarts_at_once
        As in :class:`~hpcrl.sampling.sampler.Sampler`.
    make_rollout : callable
        ``make_rollout(num_envs)``: an empty one.
    taken : int
        The most rollouts that are learned from together. So many are there beside the one that each group fills.
    """

    at_start = True
    """the policy may change at any time"""

    def __init__(
        self,
        envs: Sequence,
        policy,
        make_rollout: Callable[[int], Rollout],
        *,
        taken: int,
        restarts_at_once: bool,
    ):
        self.groups = make_groups(envs, restarts_at_once=restarts_at_once)
        self.policy, self.num_envs, self.version = policy, self.groups[-1].of.stop, -1
        self._free = deque(make_rollout(envs[0].num_envs) for _ in range(len(envs) + taken))
        self._full: deque[Rollout] = deque()
        self._taken: list[Rollout] = []

    def _can_go_on(self, group: Group) -> bool:
        if not group.ready:
            return False
        goes_on = group.rollout is not None and group.t + group.under_way < group.rollout.horizon
        return goes_on or group.under_way or bool(self._free)

    @property
    def ready(self) -> bool:
        """Whether :meth:`step` has something to do; it must not be called before."""
        self.groups[0].look()
        return any(map(self._can_go_on, self.groups))

    def step(self) -> list[Stepped]:
        """Let all groups act that can; what their simulators did."""
        groups = [group for group in self.groups if self._can_go_on(group)]
        stepped = [group.receive(self.policy) for group in groups if group.under_way]
        for group in groups:
            self._turn_over(group)
        acting = [group for group in groups if group.rollout is not None]
        if acting:
            decision = self.policy.decide(np.concatenate([group.env.observation for group in acting]))
            ends = np.cumsum([group.env.num_envs for group in acting])
            for group, end in zip(acting, ends, strict=True):
                group.act(Decision(*(part[end - group.env.num_envs : end] for part in decision)))
        return stepped

    def _turn_over(self, group: Group) -> None:
        """Put a full rollout by, and give the group an empty one where there is any."""
        if group.rollout is not None and group.t == group.rollout.horizon:
            group.rollout.observation[-1] = group.env.observation
            self._full.append(group.rollout)
            group.rollout = None
        if group.rollout is None and self._free:
            group.write_to(self._free.popleft(), slice(0, group.env.num_envs))
            group.rollout.version = self.version

    def take(self, count: int) -> list[Rollout] | None:
        """The oldest ``count`` full rollouts, held until :meth:`give_back`; None where there are fewer."""
        if len(self._full) < count:
            return None
        self._taken = [self._full.popleft() for _ in range(count)]
        return self._taken

    def give_back(self) -> None:
        """Rollouts that were taken may be overwritten."""
        self._free.extend(self._taken)
        self._taken = []
