"""The bare loops that deep Q-learning is measured against."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcrl import bench
from hpcrl.bench import _dqn_bound
from hpcrl.bench._dqn_bound import PARTS, BareLoop, Variant
from hpcrl.networks import count_parameters

VARIANTS = [Variant(p, layout, 1) for p in ("float32", "bfloat16") for layout in ("contiguous", "channels_last")]


@pytest.fixture(scope="module")
def loop():
    threads = torch.get_num_threads()
    torch.manual_seed(1)
    yield BareLoop(simulators=2, batch_size=3)
    torch.set_num_threads(threads)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: f"{v.precision}-{v.layout}")
def test_every_part_runs_once(loop, variant):
    before = [p.clone() for p in loop.online.parameters()]
    times = loop.measure(dict.fromkeys(PARTS, variant), seconds=0)
    assert list(times) == list(PARTS)
    assert all(seconds > 0 for seconds in times.values())
    assert loop.observation.shape == (2, 4, 84, 84)
    assert loop.actions.shape == (2,)
    assert not any(torch.equal(old, new) for old, new in zip(before, loop.online.parameters(), strict=True))
    assert all(torch.equal(old, new) for old, new in zip(loop.published, loop.online.parameters(), strict=True))


def test_variants_compute_the_same_up_to_their_precision(loop):
    gradients = []
    for variant in VARIANTS:
        loop.gradient(variant)
        gradients.append(loop.online[0].weight.grad.clone())
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-3, atol=1e-6)
    scale = float(gradients[0].abs().max())
    for gradient in gradients[2:]:
        assert float((gradient - gradients[0]).abs().max()) < 0.2 * scale


def test_parts_may_use_different_numbers_of_threads(loop):
    choice = {part: Variant("float32", "contiguous", 1 + index % 2) for index, part in enumerate(PARTS)}
    assert set(loop.measure(choice, seconds=0)) == set(PARTS)
    assert loop.observation.dtype == np.uint8


def test_the_network_is_the_one_that_hpcrl_trains():
    size = sum(p.numel() for p in _dqn_bound.nature_network(6).parameters())
    assert size == count_parameters("nature", (), (4, 84, 84), 6, np.uint8)


def test_it_answers_requests_and_uses_nothing_else_of_hpcrl():
    code = (
        "import runpy, sys\n"
        "runpy.run_path(sys.argv[1], run_name='__main__')\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit('hpcrl' in loaded or 'mpi4py' in loaded)\n"
    )
    request = {"choice": dict.fromkeys(PARTS, VARIANTS[0]), "seconds": 0}
    run = subprocess.run(
        [sys.executable, "-P", "-c", code, str(Path(bench.__file__).with_name("_dqn_bound.py"))],
        input=2 * (json.dumps(request) + "\n"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    answers = [json.loads(line) for line in run.stdout.splitlines()]
    assert [list(answer) for answer in answers] == [list(PARTS), list(PARTS)]
