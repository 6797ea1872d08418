import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hpcrl.networks import Forward, make_network, make_policy_network
from hpcrl.networks.forward import PART_ROWS


def frames(rows):
    return np.random.default_rng(0).integers(256, size=(rows, 4, 84, 84), dtype=np.uint8)


def holding(network):
    return SimpleNamespace(network=network, device="cpu")


class Spy:
    """Doubles its rows, and notes by whom and with how many of torch's threads it is called."""

    def __init__(self):
        self.rows, self.threads, self.callers = [], [], set()
        self.together = None

    def __call__(self, rows):
        if self.together:
            self.together.wait(timeout=30)
        self.rows.append(len(rows))
        self.threads.append(torch.get_num_threads())
        self.callers.add(threading.current_thread())
        return 2 * rows


@pytest.mark.parametrize("rows", [1, PART_ROWS, 2 * PART_ROWS, 3 * PART_ROWS + 1, 5 * PART_ROWS])
def test_parts_are_put_together_in_order(rows):
    torch.manual_seed(0)
    observation = frames(rows)
    policy = make_policy_network("nature", (), (4, 84, 84), 6, np.uint8)
    q = make_network("nature", (), (4, 84, 84), 6, np.uint8)
    for network in (policy, q):
        whole, parts = (Forward(holding(network), torch.float32, threads)(observation) for threads in (0, 3))
        assert type(whole) is type(parts)
        for expected, found in zip(whole, parts, strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("threads", "rows", "expected"),
    [
        (1, 4 * PART_ROWS, 1),
        (3, 2 * PART_ROWS - 1, 1),
        (3, 2 * PART_ROWS, 2),
        (3, 9 * PART_ROWS, 3),
    ],
)
def test_large_batches_are_cut_as_often_as_there_are_threads(threads, rows, expected):
    spy, before = Spy(), torch.get_num_threads()
    spy.together = threading.Barrier(expected)  # passes that were not at once would wait for ever
    outputs = Forward(holding(spy), torch.float32, threads)(np.arange(rows, dtype=np.float32))
    np.testing.assert_array_equal(outputs.numpy(), 2 * np.arange(rows))
    assert sum(spy.rows) == rows
    assert min(spy.rows) >= PART_ROWS or expected == 1
    assert (len(spy.rows), len(spy.callers), set(spy.threads)) == (expected, expected, {1})
    assert torch.get_num_threads() == before


def test_without_a_number_the_batch_is_one_and_torchs_threads_share_it():
    spy = Spy()
    Forward(holding(spy), torch.float32)(np.zeros(99 * PART_ROWS, np.float32))
    assert (spy.rows, spy.threads) == ([99 * PART_ROWS], [torch.get_num_threads()])


def test_a_gpu_is_given_the_batch_as_one():
    forward = Forward(SimpleNamespace(network=None, device="cuda:0"), torch.float32, 8)
    assert forward.threads == 1


def test_nothing_is_differentiated():
    network = torch.nn.Linear(2, 2)
    for threads in (0, 2):
        outputs = Forward(holding(network), torch.float32, threads)(np.zeros((4 * PART_ROWS, 2), np.float32))
        assert not outputs.requires_grad


def test_an_error_in_a_part_is_raised():
    def network(rows):
        if rows[0] > 0:
            raise ValueError("a bad row")
        return rows

    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="a bad row"):
        Forward(holding(network), torch.float32, 2)(np.arange(2 * PART_ROWS, dtype=np.float32))
    assert torch.get_num_threads() == before
