"""Experience of one rollout: ``T`` steps of ``E`` simulators, used once and then overwritten."""

from collections.abc import Mapping

import numpy as np

from hpcrl.sampling.carving import bytes_of, carve
from hpcrl.types import EnvStep


class Rollout:
    """Arrays of a rollout, in one piece of memory; each simulator, or group of them, is written step by step.

    Step ``t`` of a simulator is what it acted upon, its action and what followed. A step in which a simulator was only
    reset is no experience: it is not ``valid``, and nothing may be learned from it.

    Parameters
    ----------
    horizon : int
        ``T``. [steps]
    num_envs : int
        ``E``.
    observation_shape, observation_dtype, action_shape, action_dtype
        Of one observation and one action.

    Attributes
    ----------
    observation : observation_dtype [T + 1, E, *observation_shape]
        The last row is what the rollout ends in, which nothing is acted upon yet.
    action : action_dtype [T, E, *action_shape]
    log_probability : float32 [T, E]
        Of the action, under the policy that took it.
    value : float32 [T + 1, E]
        Of the states, under the same parameters; the last row is that of the states which the rollout ends in.
    reward : float32 [T, E]
        Raw.
    terminated, truncated : bool [T, E]
    over : bool [T, E]
        The episode ended: no later step belongs to it.
    final_value : float32 [T, E]
        Value of the state that a truncated step led to where the next row is that of another episode, because the
        simulator restarted in the same step; elsewhere 0, and it is the next row's ``value``.
    restarted : bool [T, E]
        Where that is so.
    valid : bool [T, E]
    version : int
        Of the parameters that acted first. [updates]
    full : bool
        All steps are taken; the rollout waits for being used.
    memory : uint8 [bytes]
        All of the arrays, and the version.
    """

    FIELDS = (
        "observation",
        "action",
        "log_probability",
        "value",
        "reward",
        "terminated",
        "truncated",
        "over",
        "final_value",
        "restarted",
        "valid",
    )

    def __init__(
        self,
        horizon: int,
        num_envs: int,
        *,
        observation_shape: tuple[int, ...],
        observation_dtype: np.dtype,
        action_shape: tuple[int, ...],
        action_dtype: np.dtype | type,
    ):
        shape = self.horizon, self.num_envs = horizon, num_envs
        fields = [
            ((1,), np.int64),
            ((horizon + 1, num_envs, *observation_shape), observation_dtype),
            ((*shape, *action_shape), action_dtype),
            (shape, np.float32),
            ((horizon + 1, num_envs), np.float32),
            *[(shape, dtype) for dtype in (np.float32, bool, bool, bool, np.float32, bool, bool)],
        ]
        self.memory = np.zeros(bytes_of(fields), np.uint8)
        self._version, *arrays = carve(self.memory, fields)
        for name, array in zip(self.FIELDS, arrays, strict=True):
            setattr(self, name, array)
        self.full, self.version = False, -1

    @property
    def version(self) -> int:
        """See above."""
        return int(self._version[0])

    @version.setter
    def version(self, version: int) -> None:
        self._version[0] = version

    def act(self, t: int, of: slice, observation: np.ndarray, decision) -> None:
        """Write what the simulators ``of`` acted upon in step ``t``, and how (`hpcrl.algorithms.policy_gradient`)."""
        self.observation[t, of] = observation
        self.action[t, of], self.log_probability[t, of], self.value[t, of] = decision

    def follow(self, t: int, of: slice, step: EnvStep) -> None:
        """Write what followed."""
        self.reward[t, of], self.valid[t, of] = step.reward, ~step.reset
        self.terminated[t, of], self.truncated[t, of] = step.terminated, step.truncated
        self.over[t, of] = step.episode_over
        self.final_value[t, of], self.restarted[t, of] = 0.0, False

    def bootstrap(self, t: int, simulators: np.ndarray, value: np.ndarray) -> None:
        """Write what the last states of episodes that were cut in step ``t`` are worth, where they restarted in it."""
        self.final_value[t, simulators], self.restarted[t, simulators] = value, True

    def steps(self, discount: float, reward_clip: float | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward, discount and whether the episode goes on, as :mod:`hpcrl.algorithms.returns` has them.

        A truncated step is worth its next state once: by the value in the next row, or, where that is another
        episode's, by ``final_value``, which is then added to the reward.
        """
        reward = self.reward if reward_clip is None else self.reward.clip(-reward_clip, reward_clip)
        reward = reward + np.float32(discount) * self.final_value
        worthless = self.terminated | self.restarted
        return reward, np.where(worthless, np.float32(0), np.float32(discount)), (~self.over).astype(np.float32)

    def state(self) -> dict[str, np.ndarray]:
        """All of it; copies."""
        arrays = {name: getattr(self, name).copy() for name in self.FIELDS}
        return {"full": np.bool_(self.full), "version": np.int64(self.version), **arrays}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave."""
        self.full, self.version = bool(state["full"]), int(state["version"])
        for name in self.FIELDS:
            getattr(self, name)[:] = state[name]
