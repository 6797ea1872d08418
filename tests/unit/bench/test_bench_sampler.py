"""``hpcrl bench sampler`` measures what it says it does."""

import pytest
import torch

from hpcrl.bench import sampler as sampler_bench
from hpcrl.bench.sampler import RandomPolicy, fill, make_sampler, measure


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(sampler_bench, "ROLLOUT_STEPS", 8)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_rollout_of_it_is_of_pong(groups):
    sampler = make_sampler(2, groups, 1, RandomPolicy(6))
    assert fill(sampler) == 8 == sampler.rollout.valid.size
    assert sampler.rollout.observation.any()
    assert sampler.at_start
    for group in sampler.groups:
        group.env.close()


def test_rows():
    threads = torch.get_num_threads()
    rows = measure(2, threads=1, pairs=1, seconds=0.01)
    torch.set_num_threads(threads)
    values = {row.name: row.value for row in rows}
    assert all(value > 0 for value in values.values())
    for groups in (1, 2):
        name = f"sampler.2.inference.groups_{groups}"
        assert values[f"{name}.ratio"] == pytest.approx(values[name] / values[f"{name}.bound"])
        # slower than either alone
        assert values[f"{name}.bound"] < values[f"sampler.2.random.groups_{groups}.bound"]
