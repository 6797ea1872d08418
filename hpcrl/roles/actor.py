"""The actor: plays its own simulators and writes what happens to replay (Gorila, section 4)."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from hpcrl.replay.lanes import Lanes
from hpcrl.replay.newcomers import Newcomers
from hpcrl.roles.checkpointing import part
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.ratio import TrainingRatio
from hpcrl.seeding import generator_state, restore_generator

if TYPE_CHECKING:  # modules that need torch
    from hpcrl.algorithms.dqn import EpsilonGreedy
    from hpcrl.networks import Replica


class Actor:
    """Steps ``E`` simulators with a behaviour policy of the newest parameters.

    Parameters
    ----------
    replica : Replica
        Follows the servers' parameters; shared with the learner of the same bundle.
    policy : EpsilonGreedy
    env
        Vector environment (:mod:`hpcrl.envs`) of ``E`` simulators.
    lanes : Lanes
        Replay memory that the experience goes to.
    first_lane : int
        Lane of the first simulator; the others follow.
    newcomers : Newcomers or None
        Gives new records their first priority, where replay is prioritised.
    ratio : TrainingRatio
        Says when acting would run ahead of learning.
    send_period : int
        Steps of each simulator that are written to replay together. [steps]
    sync_period : int
        Steps of each simulator between two pulls; 1 is the paper's. [steps]
    shares_pulls : bool
        What the learner of the same bundle pulls counts, too: where it has pulled since the last step, the actor need
        not. So there is one pull for each step and its gradient, as published (Nair et al. 2015, algorithm 1).
    epsilon : callable
        ``epsilon(global_update, total_frames)``: float64 ``[E]``.
    count : callable
        ``count(steps)`` adds to the job's total and returns it in frames.
    keeps_episodes : bool
        The episodes in flight belong to the state: ``env`` can be saved, and replay is cut at the same step. Else they
        are lost with it.
    """

    kind = "actor"

    def __init__(
        self,
        index: int,
        *,
        replica: "Replica",
        policy: "EpsilonGreedy",
        env,
        lanes: Lanes,
        first_lane: int,
        newcomers: Newcomers | None,
        ratio: TrainingRatio,
        send_period: int = 1,
        sync_period: int,
        shares_pulls: bool = False,
        epsilon: Callable[[int, int], float],
        count: Callable[[int], int],
        reporter: Reporter,
        keeps_episodes: bool = False,
    ):
        self.index = index
        self.replica, self.policy, self.env, self.lanes, self.ratio = replica, policy, env, lanes, ratio
        self.newcomers, self.send_period, self.unsent_steps = newcomers, send_period, 0
        self.sync_period, self.shares_pulls, self._pulls = sync_period, shares_pulls, 0
        self.epsilon_at, self.count, self.reporter = epsilon, count, reporter
        self.keeps_episodes = keeps_episodes
        self.lane = first_lane + np.arange(env.num_envs)
        self.frame = env.reset()
        self.first = np.ones(env.num_envs, bool)
        self.steps = self.acted_steps = 0
        self.total_frames = count(0)
        self.epsilon = np.ones(env.num_envs)
        self.episode_return = np.zeros(env.num_envs)
        self.episode_steps = np.zeros(env.num_envs, np.int64)

    def step(self) -> bool:
        """One step of every simulator, unless learning is behind."""
        self.reporter.actor(self)
        if not self.ratio.actor_may_step():
            return False
        if self._pull_is_due():
            self.replica.pull()  # (1)
        self._pulls = self.replica.pulls
        self.epsilon = self.epsilon_at(self.replica.global_update, self.total_frames)
        action = self.policy.act(self.env.observation, self.epsilon)  # (2)
        step = self.env.step(action)  # (3)
        self._remember(action, step)  # (4)
        self.steps += 1
        acted = int(np.count_nonzero(~step.reset))
        self.acted_steps += acted
        self.unsent_steps += acted
        if self.steps % self.send_period == 0:
            self._send()
        self.total_frames = self.count(acted)  # (6)
        self.reporter.acted(self)
        self._finish_episodes(step)  # (5)
        return True

    def _pull_is_due(self) -> bool:
        if self.shares_pulls and self.replica.pulls > self._pulls:
            return False
        return self.steps % self.sync_period == 0 or self.replica.empty

    def _remember(self, action: np.ndarray, step) -> None:
        """Write the step of every simulator that acted (one that only reset itself did not)."""
        acted = ~step.reset
        everyone = acted.all()
        of = slice(None) if everyone else acted
        self.lanes.append(
            self.lane[of],
            self.frame[of],
            action[of],
            step.reward[of],
            step.terminated[of],
            step.truncated[of],
            self.first[of],
        )
        over = step.episode_over
        if over.any():
            self.lanes.append_final(self.lane[over], step.final_frame[over])
        if self.newcomers:
            q = None if self.policy.values is None else self.policy.values[of]
            self.newcomers.append(
                np.flatnonzero(acted), q, action[of], step.reward[of], step.terminated[of], step.truncated[of]
            )
            self.newcomers.append_final(np.flatnonzero(over))
        # The next frame is an episode's first where the simulator resets within this step (SAME_STEP) or did so in
        # a step of its own (NEXT_STEP); until then a finished simulator's frame is never written.
        self.first = over if everyone else over | step.reset
        self.frame = step.frame

    def _send(self) -> None:
        """Write what has been gathered; only now may learners count on it."""
        self.lanes.flush()
        self.ratio.add_steps(self.unsent_steps)
        self.unsent_steps = 0

    def _finish_episodes(self, step) -> None:
        self.episode_return += step.reward
        self.episode_steps += ~step.reset
        for simulator in np.flatnonzero(step.episode_over):
            self.reporter.episode(self, int(simulator))
            self.episode_return[simulator] = 0
            self.episode_steps[simulator] = 0

    def state(self) -> dict:
        """Everything that a checkpoint must hold of this actor; copies."""
        state = {
            "steps": np.int64(self.steps),
            "acted_steps": np.int64(self.acted_steps),
            "rng": generator_state(self.policy.rng),
        }
        if self.keeps_episodes:
            state["episodes"] = {
                "frame": self.frame.copy(),
                "first": self.first.copy(),
                "return": self.episode_return.copy(),
                "steps": self.episode_steps.copy(),
                "env": self.env.state(),
                "newcomers": self.newcomers.state() if self.newcomers else {},
            }
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened; without episodes in it, new ones have begun."""
        self.steps, self.acted_steps = int(state["steps"]), int(state["acted_steps"])
        restore_generator(self.policy.rng, state["rng"])
        if episodes := part(state, "episodes"):
            self.frame, self.first = np.array(episodes["frame"]), np.array(episodes["first"])
            self.episode_return, self.episode_steps = np.array(episodes["return"]), np.array(episodes["steps"])
            self.env.restore(part(episodes, "env"))
            if self.newcomers and (newcomers := part(episodes, "newcomers")):
                self.newcomers.restore(newcomers)
