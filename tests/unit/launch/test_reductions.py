"""Which learners NCCL can do: told by each GPU's own identity, with the communicators faked."""

from types import SimpleNamespace

import pytest
import torch

from hpcrl.errors import MachineError
from hpcrl.launch.reductions import _check_nccl


class Ranks:
    """A communicator of two ranks; ``others`` are what the other one says, in the order of the calls."""

    def __init__(self, *others):
        self.others = list(others)

    def allgather(self, mine):
        return [mine, self.others.pop(0)]

    def allreduce(self, mine, op):
        return max(mine, self.others.pop(0))


@pytest.fixture
def gpu(monkeypatch):
    """A first GPU, as torch would tell of it."""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="a"))


def test_a_gpu_for_each_learner(gpu):
    _check_nccl(Ranks(True, 0), Ranks("b"), "cuda:0")


def test_two_learners_on_one_gpu_are_told_what_to_do(gpu):
    with pytest.raises(MachineError, match="two learners on one: start no more ranks per node than it has GPUs, or"):
        _check_nccl(Ranks(True, 0), Ranks("a"), "cuda:0")


def test_so_are_the_learners_of_other_nodes(gpu):
    with pytest.raises(MachineError, match="two learners on one"):
        _check_nccl(Ranks(True, 1), Ranks("b"), "cuda:0")


def test_a_learner_without_a_gpu_is_named(gpu):
    with pytest.raises(MachineError, match="rank 1 has not both"):
        _check_nccl(Ranks(False), Ranks(), "cuda:0")
