"""The learner's step on a GPU: the same gradient as on the CPU, and how fast it is."""

import time

import numpy as np
import pytest
import torch

from hpcrl.algorithms.dqn import Dqn
from hpcrl.algorithms.optimizers import Optimizer, make_rule
from hpcrl.algorithms.rules import make_rule as make_value_rule
from hpcrl.networks import Replica, Upload, make_network
from hpcrl.roles.reduction import NodeReduction
from hpcrl.types import Batch

ACTIONS = 6


def make(device: str, dtype: torch.dtype, recorded: bool = False) -> tuple[Replica, Dqn]:
    torch.manual_seed(1)
    online = Replica(make_network("nature", (), (4, 84, 84), ACTIONS, np.uint8), None, 1, device)
    torch.manual_seed(2)
    target = Replica(make_network("nature", (), (4, 84, 84), ACTIONS, np.uint8), None, 1, device, dtype)
    rule = make_value_rule("none", loss="huber", atoms=0, support=(-1.0, 1.0), device=device)
    return online, Dqn(online, target, rule=rule, double=False, max_gradient_norm=0.0, dtype=dtype, recorded=recorded)


def minibatch(size: int, seed: int = 3) -> Batch:
    rng = np.random.default_rng(seed)
    frames = rng.integers(256, size=(2, size, 4, 84, 84), dtype=np.uint8)
    numbers = {
        "s_tm1": frames[0],
        "a_tm1": rng.integers(ACTIONS, size=size),
        "r_t": rng.normal(size=size).astype(np.float32),
        "discount_t": np.full(size, 0.99, np.float32),
        "s_t": frames[1],
    }
    return Batch(**{name: numbers.get(name) for name in Batch._fields})


def test_gradients_are_those_of_the_cpu():
    found = []
    for device in ("cpu", "cuda:0"):
        online, algorithm = make(device, torch.float32)
        algorithm.gradient(minibatch(32))
        found.append(online.host_gradients().copy())
    scale = np.abs(found[0]).max()
    np.testing.assert_allclose(found[1] / scale, found[0] / scale, atol=2e-3)  # TF32 convolutions


def test_a_recorded_step_is_the_step_itself():
    """On minibatches that it was not recorded with, of parameters and targets that have changed since."""
    for dtype in (torch.float32, torch.bfloat16):
        (online, plain), (twin, recorded) = make("cuda:0", dtype), make("cuda:0", dtype, recorded=True)
        for seed in range(3):
            batch = minibatch(32, seed)
            loss, mean_q, errors = plain.gradient(batch)
            again = recorded.gradient(batch)
            assert again[:2] == pytest.approx((loss, mean_q), rel=1e-2)
            np.testing.assert_allclose(again[2], errors, atol=2e-2)
            scale = online.flat.gradients.abs().max()
            torch.testing.assert_close(twin.flat.gradients / scale, online.flat.gradients / scale, rtol=0, atol=2e-2)
            for replica in (online, twin, plain.target, recorded.target):
                replica.flat.values.mul_(1.01)
                replica._refresh_frozen()


def test_uploads_one_after_the_other_arrive_whole():
    upload, rng = Upload("cuda:0"), np.random.default_rng(1)
    frames = rng.integers(256, size=(8, 256, 4, 84, 84), dtype=np.uint8)
    scratch, moved = np.empty_like(frames[0]), []
    for minibatch_frames in frames:
        scratch[:] = minibatch_frames
        moved += upload([scratch])
        scratch[:] = 0
    for tensor, minibatch_frames in zip(moved, frames, strict=True):
        np.testing.assert_array_equal(tensor.cpu().numpy(), minibatch_frames)


def test_a_pull_waits_until_the_one_before_has_left_the_mirror():
    vectors = iter(range(1, 100))

    class Vector:
        def pull(self, out, versions):
            out[:] = versions[:] = next(vectors)
            return True

    replica = Replica(make_network("mlp", (4096, 4096), (4,), ACTIONS, np.float32), Vector(), 1, "cuda:0")
    seen = []
    for _ in range(50):
        replica.pull()
        seen.append(torch.stack((replica.flat.values.min(), replica.flat.values.max())))
    assert torch.stack(seen).tolist() == [[i, i] for i in range(1, 51)]


def test_every_rule_moves_parameters_as_on_the_cpu():
    for name in ("sgd", "rmsprop", "adagrad", "adam"):
        found = []
        for device in ("cpu", "cuda:0"):
            values = torch.linspace(-1, 1, 1000, device=device)
            optimizer = Optimizer(values, make_rule(name, epsilon=1e-5), 0.01)
            for step in range(5):
                optimizer.step(torch.linspace(1, -1 - step, 1000, device=device))
            found.append(values.cpu().numpy())
        np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-6, err_msg=name)


def test_nccl_and_gloo_give_the_same_sum(tmp_path):
    """Of one learner, which is all that one GPU can hold."""
    vector = torch.linspace(-1, 1, 100_000)
    for backend, device in (("gloo", "cpu"), ("nccl", "cuda:0")):
        store = str(tmp_path / backend)
        reduction = NodeReduction(None, store=store, rank=0, size=1, nodes=1, backend=backend, device=device)
        summed = vector.to(device)
        reduction.sum(summed)
        reduction.free()
        torch.testing.assert_close(summed.cpu(), vector, rtol=0, atol=0)


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("size", [32, 256])
def test_throughput_of_the_learner_step(size, recorded):
    online, algorithm = make("cuda:0", torch.bfloat16, recorded)
    optimizer = Optimizer(online.flat.values, make_rule("adam", epsilon=1e-4), 1e-5)
    batch = minibatch(size)

    def step() -> None:
        algorithm.gradient(batch)
        optimizer.step(online.flat.gradients)

    for _ in range(10):
        step()
    torch.cuda.synchronize()
    began, steps = time.perf_counter(), 100
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    rate = steps / (time.perf_counter() - began)
    how = "recorded" if recorded else "plain"
    print(f"learner step at batch {size}, {how}: {rate:.0f} updates/s, {size * rate:,.0f} transitions/s")
    assert rate > 5
