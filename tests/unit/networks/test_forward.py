from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcrl.networks import Forward


def holding(network):
    return SimpleNamespace(network=network, device="cpu")


def threads_and_rows(rows):
    return torch.get_num_threads(), rows


@pytest.fixture(autouse=True)
def four_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    assert torch.get_num_threads() == 4
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "used"), [(0, 4), (1, 1), (3, 3), (4, 4), (8, 4)])
def test_a_pass_has_no_more_threads_than_it_is_given(threads, used):
    forward = Forward(holding(threads_and_rows), torch.float32, threads)
    found, rows = forward(np.arange(5, dtype=np.float32))
    assert found == used
    np.testing.assert_array_equal(rows.numpy(), np.arange(5))
    assert torch.get_num_threads() == 4
    with forward.few_threads():
        assert torch.get_num_threads() == used
        assert forward(np.zeros(5, np.float32))[0] == used
        assert torch.get_num_threads() == used


def test_nothing_is_differentiated():
    assert not Forward(holding(torch.nn.Linear(2, 2)), torch.float32)(np.zeros((4, 2), np.float32)).requires_grad


def test_an_error_of_the_network_is_raised_and_threads_are_given_back():
    def network(rows):
        raise ValueError("a bad row")

    with pytest.raises(ValueError, match="a bad row"):
        Forward(holding(network), torch.float32, 2)(np.zeros(2, np.float32))
