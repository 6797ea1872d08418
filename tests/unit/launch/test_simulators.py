from pathlib import Path
from types import SimpleNamespace

import pytest

from hpcrl.config import load
from hpcrl.launch import simulators
from hpcrl.sampling.sampler import share_threads

CONFIGS = Path(__file__).parents[3] / "configs"


@pytest.mark.parametrize(
    ("threads", "groups", "on_gpu", "simulating", "choosing"),
    [
        (1, 1, False, 1, 1),
        (8, 1, False, 8, 8),
        (1, 2, False, 1, 1),
        (8, 2, False, 7, 4),
        (8, 2, True, 8, 4),
    ],
)
def test_threads_are_shared(threads, groups, on_gpu, simulating, choosing):
    assert share_threads(threads, groups, on_gpu=on_gpu) == (simulating, choosing)


@pytest.mark.parametrize(("device", "simulating"), [("cpu", 3), ("cuda:0", 4)])
def test_simulators_in_two_groups_leave_a_core_that_a_gpu_does_not_have_already(monkeypatch, device, simulating):
    made = []
    monkeypatch.setattr(simulators, "make_env", lambda count, seed, **arguments: made.append((count, arguments)))
    config = load(CONFIGS / "pong_ppo.toml", ["env.simulators=8"])
    plan = SimpleNamespace(threads=4, device=device)
    simulators.make_envs(SimpleNamespace(config=config, rank_plan=plan, start=0), 0, 2)
    assert [(count, arguments["threads"]) for count, arguments in made] == [(4, simulating)] * 2
