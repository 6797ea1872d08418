"""The bare loops that PPO is measured against, and how a run's rate is read from its log."""

import numpy as np
import pytest
import torch

from hpcrl.bench import ppo
from hpcrl.bench._dqn_bound import Variant
from hpcrl.bench._ppo_bound import EPOCHS, HORIZON, PARTS, PpoLoop
from hpcrl.bench.ppo import bound_rate, steady_rate
from hpcrl.errors import HpcrlError
from hpcrl.networks import count_policy_parameters


@pytest.fixture(scope="module")
def loop():
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    yield PpoLoop(simulators=2, horizon=4)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_every_part_runs(loop, precision):
    before = [p.clone() for p in loop.network.parameters()]
    times = loop.measure(dict.fromkeys(PARTS, Variant(precision, "channels_last", 1)), seconds=0)
    assert list(times) == list(PARTS)
    assert all(seconds > 0 for seconds in times.values())
    assert loop.observation.shape == (2, 4, 84, 84)
    assert loop.actions.shape == (2,)
    assert not any(torch.equal(old, new) for old, new in zip(before, loop.network.parameters(), strict=True))


def test_the_network_is_as_large_as_the_one_that_hpcrl_trains(loop):
    size = sum(p.numel() for p in loop.network.parameters())
    assert size == count_policy_parameters("nature", (), (4, 84, 84), 6, np.uint8)


def test_the_bound_by_hand():
    parts = {"simulation": 32 * 1e-3, "inference": 32 * 3e-3, "gradient": 4 * 0.08, "optimizer": 4 * 0.02}
    assert bound_rate(parts) == pytest.approx(1024 / (128 * 4e-3 + 16 * 0.1))


def test_a_pass_is_a_quarter_of_a_rollout(loop, monkeypatch):
    done = []
    for part in PARTS:
        monkeypatch.setattr(loop, part, lambda variant, part=part: done.append(part))
    loop.steps = HORIZON // EPOCHS
    loop._update(dict.fromkeys(PARTS, Variant("float32", "contiguous", 1)), dict.fromkeys(PARTS, 0.0))
    assert done == 32 * ["simulation", "inference"] + 4 * ["gradient", "optimizer"]


def rows(rollouts, *, seconds=2.0, per_row=0.1):
    """A log of rollouts of 100 steps and 4 updates, half of the time for each; no row stands still in frames."""
    found = []
    for rollout in range(rollouts):
        begin = rollout * seconds
        for share in np.arange(per_row, 1.0, per_row):
            found.append((begin + share * seconds / 2, 100 * rollout + int(100 * share), 4 * rollout))
        found.append((begin + seconds, 100 * (rollout + 1), 4 * (rollout + 1)))
    return dict(zip(("wall_seconds", "total_steps", "global_update"), np.array(found).T, strict=True))


def test_a_rate_is_that_of_whole_rollouts():
    progress = rows(6)
    assert steady_rate(progress, 4) == pytest.approx(50)
    cut = {name: column[:-7] for name, column in progress.items()}  # in the middle of a rollout
    assert steady_rate(cut, 4) == pytest.approx(50)


def test_a_run_that_did_not_get_far_enough_has_no_rate():
    with pytest.raises(HpcrlError, match="at least 4 rollouts, got 3"):
        steady_rate(rows(3), 4)


def test_float32_has_no_rows_of_its_own_where_everything_is_float32(monkeypatch):
    for dtype, expected in ((torch.float32, {"ppo": ("float32",)}), (torch.bfloat16, ppo.PRECISIONS)):
        monkeypatch.setattr(ppo, "resolve_precision", lambda *_, dtype=dtype: dtype)
        assert ppo.precisions_here() == expected
