"""What runs on a GPU, as far as a CPU can tell; tests/gpu has the rest."""

import numpy as np
import torch

from hpcrl.algorithms.dqn import Dqn
from hpcrl.algorithms.rules import ScalarRule
from hpcrl.networks import Replica, Upload, mlp


def test_on_a_cpu_nothing_is_copied():
    arrays = [np.arange(6, dtype=np.uint8).reshape(2, 3), np.ones(2, np.float32)]
    tensors = Upload("cpu")(arrays)
    arrays[0][1, 2] = 99
    assert tensors[0].tolist() == [[0, 1, 2], [3, 4, 99]]
    assert [tensor.dtype for tensor in tensors] == [torch.uint8, torch.float32]


def test_a_step_is_recorded_on_a_gpu_only():
    online, target = (Replica(mlp((1, 2), 2, (3,)), None, 1) for _ in range(2))
    keys = {"rule": ScalarRule("huber"), "double": False, "max_gradient_norm": 0.0, "dtype": torch.float32}
    algorithm = Dqn(online, target, **keys, recorded=True)
    assert algorithm._step == algorithm._backward
