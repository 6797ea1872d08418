"""A custom network that is wider on rank 1: what must not be."""

import math

from mpi4py import MPI
from torch import nn


class Uneven(nn.Sequential):
    """Two linear layers of frames."""

    def forward(self, frames):
        """Any ``[B, ...]`` to float32 ``[B, A]``."""
        return super().forward(frames.float().flatten(1))


def make(input_shape, num_actions):
    """With a hidden layer of 8, or 9, units."""
    width = 8 + (MPI.COMM_WORLD.rank == 1)
    return Uneven(nn.Linear(math.prod(input_shape), width), nn.Linear(width, num_actions))
