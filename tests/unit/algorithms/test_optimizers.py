"""Every optimizer against its rule written out in NumPy, and its state put away and taken back."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.algorithms.optimizers import BLOCK_ELEMENTS, AdaGrad, Optimizer, RMSProp, make_rule

SIZE, STEPS, RATE, EPSILON = 97, 20, 0.03, 1e-3

OPTIONS = {
    "sgd": {},
    "sgd with momentum": {"momentum": 0.9},
    "rmsprop": {"rmsprop_decay": 0.9, "rmsprop_centered": False},
    "rmsprop, centred": {"rmsprop_decay": 0.9, "rmsprop_centered": True},
    "rmsprop, centred, with momentum": {"rmsprop_decay": 0.9, "rmsprop_centered": True, "momentum": 0.5},
    "rmsprop, as published": {
        "rmsprop_decay": 0.9,
        "rmsprop_centered": True,
        "rmsprop_epsilon_inside_root": True,
    },
    "adagrad": {"initial_accumulator": 0.1},
    "adagrad from zero": {},
    "adam": {"adam_betas": (0.8, 0.99)},
}


def gradients():
    return np.random.default_rng(1).normal(size=(STEPS, SIZE)).astype(np.float32)


def start():
    return np.random.default_rng(0).normal(size=SIZE).astype(np.float32)


def make(case, values=None):
    name = case.partition(" ")[0].rstrip(",")
    values = torch.from_numpy(start() if values is None else values.copy())
    return Optimizer(values, make_rule(name, epsilon=EPSILON, **OPTIONS[case]), RATE)


def take(optimizer, gradient):
    optimizer.step(torch.from_numpy(gradient))
    return optimizer.values.numpy().copy()


def rule(case):
    """The shard after each step, float64, by the published rule; epsilon stands outside the root, but once."""
    options, x = OPTIONS[case], start().astype(np.float64)
    mu, rho = options.get("momentum", 0.0), options.get("rmsprop_decay", 0.0)
    b1, b2 = options.get("adam_betas", (0.0, 0.0))
    m, v, mean, path = (np.zeros(SIZE) for _ in range(4))
    v += options.get("initial_accumulator", 0.0)
    for t, g in enumerate(gradients().astype(np.float64), start=1):
        if case.startswith("sgd"):
            m = mu * m + g
            x = x - RATE * m
        elif case.startswith("rmsprop"):
            v = rho * v + (1 - rho) * g**2
            mean = rho * mean + (1 - rho) * g
            spread = v - mean**2 if options["rmsprop_centered"] else v
            inside = options.get("rmsprop_epsilon_inside_root", False)
            m = mu * m + g / (np.sqrt(spread + EPSILON) if inside else np.sqrt(spread) + EPSILON)
            x = x - RATE * m
        elif case.startswith("adagrad"):
            v = v + g**2
            x = x - RATE * g / (np.sqrt(v) + EPSILON)
        else:
            m = b1 * m + (1 - b1) * g
            v = b2 * v + (1 - b2) * g**2
            x = x - RATE * (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + EPSILON)
        yield x


@pytest.mark.parametrize("case", OPTIONS)
def test_each_step_follows_the_rule(case):
    optimizer = make(case)
    for t, (gradient, expected) in enumerate(zip(gradients(), rule(case), strict=True)):
        np.testing.assert_allclose(take(optimizer, gradient), expected, rtol=2e-5, atol=2e-6, err_msg=f"step {t + 1}")


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("stopped_after", [0, 1, 7])
def test_state_comes_back_bit_for_bit(case, stopped_after):
    optimizer = make(case)
    for gradient in gradients()[:stopped_after]:
        take(optimizer, gradient)
    saved = {name: array.copy() for name, array in optimizer.arrays().items()}
    restored = make(case, optimizer.values.numpy())
    restored.restore(saved)
    for gradient in gradients()[stopped_after:]:
        np.testing.assert_array_equal(take(restored, gradient), take(optimizer, gradient), strict=True)


@pytest.mark.parametrize("case", OPTIONS)
def test_restored_state_is_a_copy(case):
    optimizer = make(case)
    take(optimizer, gradients()[0])
    saved = {name: array.copy() for name, array in optimizer.arrays().items()}
    kept = {name: array.copy() for name, array in saved.items()}
    restored = make(case)
    restored.restore(saved)
    take(restored, gradients()[1])
    for name, array in kept.items():
        np.testing.assert_array_equal(saved[name], array)


@pytest.mark.parametrize("case", OPTIONS)
def test_no_state_lives_in_the_gradients_memory(case):
    """A gradient lies in a ring whose slot the next one overwrites."""
    optimizer = make(case)
    ring = make(case)
    slot = np.zeros(SIZE, np.float32)
    for gradient in gradients():
        slot[:] = gradient
        np.testing.assert_array_equal(take(ring, slot), take(optimizer, gradient))
        np.testing.assert_array_equal(slot, gradient)
        slot[:] = np.nan


@pytest.mark.parametrize(
    ("case", "vectors"),
    [
        ("sgd", set()),
        ("sgd with momentum", {"momentum_buffer"}),
        ("rmsprop", {"square_avg"}),
        ("rmsprop, centred", {"square_avg", "grad_avg"}),
        ("rmsprop, centred, with momentum", {"square_avg", "grad_avg", "momentum_buffer"}),
        ("adagrad", {"sum"}),
        ("adam", {"exp_avg", "exp_avg_sq"}),
    ],
)
def test_state_is_moments_as_long_as_the_shard_and_a_count(case, vectors):
    optimizer = make(case)
    take(optimizer, gradients()[0])
    arrays = optimizer.arrays()
    assert {name for name, array in arrays.items() if array.shape == (SIZE,)} == vectors
    assert arrays.keys() - vectors <= {"step"}
    assert all(array.ndim == 0 for name, array in arrays.items() if name == "step")


def test_slices_of_the_parameters_step_like_the_whole():
    """A server owns a slice; any number of servers must come to the same numbers."""
    for case in OPTIONS:
        whole, pieces = make(case), [(make(case, start()[b:e]), b, e) for b, e in ((0, 16), (16, SIZE))]
        for gradient in gradients():
            expected = take(whole, gradient)
            found = [take(piece, gradient[begin:end].copy()) for piece, begin, end in pieces]
            np.testing.assert_array_equal(np.concatenate(found), expected, err_msg=case)


@pytest.mark.parametrize("case", OPTIONS)
def test_the_rate_can_be_changed_between_steps(case):
    """A rate of 0 moves nothing (but for momentum), and the first rate is then what it was."""
    optimizer = make(case)
    take(optimizer, gradients()[0])
    optimizer.learning_rate = 0.0
    before = optimizer.values.numpy().copy()
    take(optimizer, gradients()[1])
    if "momentum" not in case:
        np.testing.assert_array_equal(optimizer.values.numpy(), before)
    optimizer.learning_rate = RATE
    take(optimizer, gradients()[2])
    assert (optimizer.values.numpy() != before).all()


def test_the_effective_rate_of_adagrad_falls_with_the_sum_of_squares():
    optimizer = Optimizer(torch.zeros(2), AdaGrad(1.0, 1.0), 0.6)
    assert optimizer.effective_rate() == pytest.approx(0.6 / (1 + 1))
    take(optimizer, np.array([np.sqrt(3), np.sqrt(8)], np.float32))
    assert optimizer.effective_rate() == pytest.approx((0.6 / (2 + 1) + 0.6 / (3 + 1)) / 2)
    optimizer.learning_rate = 1.2
    assert optimizer.effective_rate() == pytest.approx((1.2 / 3 + 1.2 / 4) / 2)


@pytest.mark.parametrize("case", ["sgd", "adam", "rmsprop, centred"])
def test_of_others_it_is_the_rate_itself(case):
    optimizer = make(case)
    take(optimizer, gradients()[0])
    assert optimizer.effective_rate() == RATE


@pytest.mark.parametrize("size", [1, BLOCK_ELEMENTS, 2 * BLOCK_ELEMENTS + 5])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", [case for case in OPTIONS if case.startswith("rmsprop") and "published" not in case])
def test_rmsprop_in_blocks_is_torchs_to_the_bit(case, threads, size):
    torchs_shard, rng, before = (
        nn.Parameter(torch.linspace(-1, 1, size)),
        np.random.default_rng(2),
        torch.get_num_threads(),
    )
    ours = make(case, torchs_shard.detach().numpy())
    torchs = torch.optim.RMSprop(
        [torchs_shard],
        lr=RATE,
        alpha=ours.rule.decay,
        eps=EPSILON,
        centered=ours.rule.centered,
        momentum=ours.rule.momentum,
        foreach=False,
    )
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            torchs_shard.grad = torch.from_numpy(rng.normal(size=size).astype(np.float32))
            torchs.step()
            np.testing.assert_array_equal(take(ours, torchs_shard.grad.numpy()), torchs_shard.detach().numpy())
    finally:
        torch.set_num_threads(before)
    assert ours.state.keys() == torchs.state[torchs_shard].keys()
    for name, value in torchs.state[torchs_shard].items():
        np.testing.assert_array_equal(ours.state[name].numpy(), value.numpy(), err_msg=name)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_with_epsilon_inside_the_root(centered):
    """The rule of the DQN paper: the first step moves by ``rate g / sqrt(v + epsilon)``."""
    gradient = np.array([0.0, 1e-3, 2.0])
    optimizer = Optimizer(torch.zeros(3), RMSProp(0.95, 0.01, centered, epsilon_inside_root=True), RATE)
    spread = 0.05 * gradient**2 - (0.05 * gradient) ** 2 * centered
    expected = -RATE * gradient / np.sqrt(spread + 0.01)
    np.testing.assert_allclose(take(optimizer, gradient.astype(np.float32)), expected, rtol=1e-5)


def test_no_optimizer_imports_torchs_compiler():
    """It takes a second and 70 MB, on every rank."""
    program = """
import sys, torch
from hpcrl.algorithms.optimizers import Optimizer, make_rule
for name in ("sgd", "rmsprop", "adagrad", "adam"):
    Optimizer(torch.zeros(9), make_rule(name, epsilon=1e-3), 0.1).step(torch.ones(9))
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
