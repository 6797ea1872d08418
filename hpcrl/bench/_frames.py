"""Replay memories full of frames of Pong, for benchmarks."""

import functools

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from hpcrl.replay.lanes import Lanes, LocalCursors, record_dtype
from hpcrl.storage.replay import ReplayCut

PLAYED_FRAMES = 4096
NOISE = 0.005
"""Share of the pixels that are replaced by random ones: Pong's own frames compress better than most games'."""
STACK, N_STEP = 4, 1


@functools.cache
def pong_frames() -> np.ndarray:
    """uint8 ``[PLAYED_FRAMES, 84, 84]``: consecutive frames of random play on 8 simulators, one after the other."""
    env = AtariVectorEnv("pong", num_envs=8, img_height=84, img_width=84, stack_num=1, grayscale=True, frameskip=4)
    rng, played = np.random.default_rng(0), np.zeros((8, PLAYED_FRAMES // 8, 84, 84), np.uint8)
    observation, _ = env.reset(seed=0)
    for step in range(played.shape[1]):
        played[:, step] = observation[:, 0]
        observation, *_ = env.step(rng.integers(6, size=8))
    env.close()
    return played.reshape(PLAYED_FRAMES, 84, 84)


class Replay:
    """A replay memory of so many records in its own process, all lanes full and of equal length."""

    def __init__(self, records: int, lanes: int):
        self.num_lanes, self.capacity = lanes, records // lanes
        self.dtype = record_dtype((84, 84), np.dtype(np.uint8))
        # More than is needed, so that the same bytes can be lanes of other numbers and lengths.
        self._bytes = np.zeros((records + 1024) * self.dtype.itemsize, np.uint8)
        self.lanes = self.shaped(lanes, self.capacity)

    def shaped(self, num_lanes: int, capacity: int) -> Lanes:
        """The same bytes as empty lanes of any number and length."""
        shape = (num_lanes, capacity + STACK + N_STEP)
        memory = np.ndarray(shape, self.dtype, self._bytes)
        return Lanes(memory, LocalCursors(num_lanes), capacity=capacity, stack=STACK, n_step=N_STEP)

    def fill(self, frames: np.ndarray) -> None:
        """Fill every lane with ``frames``, again and again, each time with other noise; episodes have 1,000 steps."""
        rng, memory, index = np.random.default_rng(1), self.lanes.memory, np.arange(self.capacity)
        noisy_pixels = round(NOISE * frames.size)
        for lane in range(self.num_lanes):
            for first in range(0, self.capacity, len(frames)):
                noisy = frames[: self.capacity - first].copy()
                where = rng.integers(noisy.size, size=noisy_pixels * len(noisy) // len(frames))
                noisy.reshape(-1)[where] = rng.integers(256, size=len(where), dtype=np.uint8)
                memory["frame"][lane, first : first + len(noisy)] = noisy
            memory["action"][lane, : self.capacity] = rng.integers(6, size=self.capacity)
            memory["reward"][lane, : self.capacity] = rng.integers(-1, 2, size=self.capacity)
            memory["first"][lane, : self.capacity] = index % 1001 == 0
            memory["truncated"][lane, : self.capacity] = index % 1001 == 999
            memory["final"][lane, : self.capacity] = index % 1001 == 1000
        memory[:, self.capacity :] = memory[:, : STACK + N_STEP]
        everyone = np.arange(self.num_lanes)
        self.lanes.cursors.reserve(everyone, self.capacity)
        self.lanes.cursors.commit(everyone, self.capacity)

    def cut(self) -> ReplayCut:
        """What a checkpoint takes of it."""
        lanes = self.lanes
        return ReplayCut(lanes.memory, lanes.cursors, capacity=lanes.capacity, stack=STACK, n_step=N_STEP)
