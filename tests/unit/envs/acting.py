"""An actor's loop, reduced to what it writes to replay."""

import itertools

import numpy as np

from hpcrl.replay import Lanes, local_lanes


def drive(env, actions: np.ndarray, capacity: int = 400) -> Lanes:
    """Reset ``env``, take ``actions`` (int64 ``[T, E]``) and write every step that was really taken to lanes."""
    spec = env.spec
    lanes = local_lanes(env.num_envs, spec.obs_shape, spec.obs_dtype, capacity=capacity, stack=spec.stack, n_step=1)
    ids = np.arange(env.num_envs)
    frame, first = env.reset(), np.ones(env.num_envs, bool)
    for action in actions:
        step = env.step(action)
        took = ~step.reset
        lanes.append(
            ids[took],
            frame=frame[took],
            action=action[took],
            reward=step.reward[took],
            terminated=step.terminated[took],
            truncated=step.truncated[took],
            first=first[took],
        )
        first[took] = False
        over = step.episode_over
        lanes.append_final(ids[over], step.final_frame[over])
        frame, first = step.frame, first | over
    valid, why = lanes.check_valid()
    assert valid, why
    return lanes


def transitions(lanes: Lanes, lane: int) -> list[tuple]:
    """(frame, action, reward, next frame, terminated, truncated) of each step, frames as flat lists."""
    written = lanes.memory[lane, : lanes.cursors.committed()[lane]]
    return [
        (
            now["frame"].ravel().tolist(),
            int(now["action"]),
            float(now["reward"]),
            after["frame"].ravel().tolist(),
            bool(now["terminated"]),
            bool(now["truncated"]),
        )
        for now, after in itertools.pairwise(written)
        if not now["final"]
    ]
