"""Evaluation: whole episodes with fixed parameters, and the role that does it during training."""

from collections.abc import Callable, Mapping

import numpy as np

from hpcrl.algorithms.dqn import EpsilonGreedy
from hpcrl.networks import Replica
from hpcrl.roles.checkpointing import part
from hpcrl.roles.metrics import Reporter
from hpcrl.seeding import generator_state, restore_generator


class Episodes:
    """Plays at least ``episodes`` whole episodes, the same number on each simulator.

    The same number on each, so that short episodes, which finish first, do not bias the mean.
    """

    def __init__(self, env, policy: EpsilonGreedy, *, episodes: int, epsilon: float):
        self.env, self.policy, self.epsilon = env, policy, epsilon
        self.per_simulator = -(-episodes // env.num_envs)
        self.begin()

    def begin(self) -> None:
        """Forget what was played and start afresh."""
        self.env.reset()
        self.running = np.zeros(self.env.num_envs)
        self.returns: list[list[float]] = [[] for _ in range(self.env.num_envs)]

    def step(self) -> bool:
        """One step of every simulator; whether all episodes are played."""
        step = self.env.step(self.policy.act(self.env.observation, self.epsilon))
        self.running += step.reward
        for simulator in np.flatnonzero(step.episode_over):
            if len(self.returns[simulator]) < self.per_simulator:
                self.returns[simulator].append(float(self.running[simulator]))
            self.running[simulator] = 0
        return all(len(r) == self.per_simulator for r in self.returns)

    def result(self) -> np.ndarray:
        """float64 ``[episodes]`` raw returns, simulator by simulator."""
        return np.concatenate([np.array(r) for r in self.returns])

    def state(self) -> dict:
        """Everything that decides what comes next; only where the environment can be saved. Copies."""
        returns = np.full((self.env.num_envs, self.per_simulator), np.nan)
        for simulator, played in enumerate(self.returns):
            returns[simulator, : len(played)] = played
        return {"running": self.running.copy(), "returns": returns, "env": self.env.state()}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened."""
        self.running = np.array(state["running"])
        self.returns = [played[~np.isnan(played)].tolist() for played in state["returns"]]
        self.env.restore(part(state, "env"))


class Evaluator:
    """Evaluates the newest parameters every ``period`` global updates, step by step beside whatever else it does.

    With ``keeps_episodes``, for environments that can be saved, an evaluation under way belongs to the state.
    """

    kind = "evaluator"

    def __init__(
        self,
        index: int,
        *,
        replica: Replica,
        episodes: Episodes,
        period: int,
        total_frames: Callable[[], int],
        reporter: Reporter,
        keeps_episodes: bool = False,
    ):
        self.index = index
        self.replica, self.episodes, self.period = replica, episodes, period
        self.total_frames, self.keeps_episodes, self.reporter = total_frames, keeps_episodes, reporter
        self.next_update, self.playing, self.frames = period, False, 0

    def step(self) -> bool:
        """Start an evaluation when one is due, or play one step of the current one."""
        if not self.playing:
            self.replica.pull()
            if self.replica.global_update < self.next_update:
                return False
            self.next_update = (self.replica.global_update // self.period + 1) * self.period
            self.frames, self.playing = self.total_frames(), True
            self.episodes.begin()
        if self.episodes.step():
            self.playing = False
            returns = self.episodes.result()
            self.reporter.evaluation(
                self.index,
                total_frames=self.frames,
                global_update=self.replica.global_update,
                episodes=len(returns),
                mean_return=returns.mean(),
                std_return=returns.std(),
                epsilon=self.episodes.epsilon,
            )
        return True

    def state(self) -> dict:
        """Everything that a checkpoint must hold of this evaluator; copies."""
        state = {
            "rng": generator_state(self.episodes.policy.rng),
            "next_update": np.int64(self.next_update),
            "playing": np.bool_(self.playing),
            "frames": np.int64(self.frames),
            "global_update": np.int64(self.replica.global_update),
        }
        if self.keeps_episodes:
            state |= {"episodes": self.episodes.state(), "replica": self.replica.state() if self.playing else {}}
        return state

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened; an evaluation that cannot go on begins again."""
        restore_generator(self.episodes.policy.rng, state["rng"])
        self.next_update = int(state["next_update"])
        episodes = part(state, "episodes")
        same = bool(episodes) and episodes["returns"].shape == (self.episodes.env.num_envs, self.episodes.per_simulator)
        if self.keeps_episodes and same:
            self.episodes.restore(episodes)
            if replica := part(state, "replica"):
                self.replica.restore(replica)
                self.playing, self.frames = True, int(state["frames"])
        elif state["playing"]:
            self.next_update = int(state["global_update"])
