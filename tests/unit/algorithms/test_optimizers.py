"""Every optimizer against its rule written out in NumPy, and its state put away and taken back."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.algorithms.optimizers import (
    BLOCK_ELEMENTS,
    RMSprop,
    learning_rates,
    make_optimizer,
    optimizer_arrays,
    restore_optimizer,
    set_learning_rate,
)

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


def make(case):
    shard = nn.Parameter(torch.from_numpy(start()))
    name = case.partition(" ")[0].rstrip(",")
    return shard, make_optimizer(name, shard, learning_rate=RATE, epsilon=EPSILON, **OPTIONS[case])


def take(shard, optimizer, gradient):
    shard.grad = torch.from_numpy(gradient)
    optimizer.step()
    return shard.detach().numpy().copy()


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
    shard, optimizer = make(case)
    for t, (gradient, expected) in enumerate(zip(gradients(), rule(case), strict=True)):
        np.testing.assert_allclose(
            take(shard, optimizer, gradient), expected, rtol=2e-5, atol=2e-6, err_msg=f"step {t + 1}"
        )


@pytest.mark.parametrize("case", OPTIONS)
@pytest.mark.parametrize("stopped_after", [0, 1, 7])
def test_state_comes_back_bit_for_bit(case, stopped_after):
    shard, optimizer = make(case)
    for gradient in gradients()[:stopped_after]:
        take(shard, optimizer, gradient)
    saved = {name: array.copy() for name, array in optimizer_arrays(optimizer).items()}
    values = shard.detach().numpy().copy()
    restored_shard, restored = make(case)
    restored_shard.detach().numpy()[:] = values
    restore_optimizer(restored, saved)
    for gradient in gradients()[stopped_after:]:
        np.testing.assert_array_equal(
            take(restored_shard, restored, gradient), take(shard, optimizer, gradient), strict=True
        )


@pytest.mark.parametrize("case", OPTIONS)
def test_restored_state_is_a_copy(case):
    shard, optimizer = make(case)
    take(shard, optimizer, gradients()[0])
    saved = {name: array.copy() for name, array in optimizer_arrays(optimizer).items()}
    kept = {name: array.copy() for name, array in saved.items()}
    restored_shard, restored = make(case)
    restore_optimizer(restored, saved)
    take(restored_shard, restored, gradients()[1])
    for name, array in kept.items():
        np.testing.assert_array_equal(saved[name], array)


@pytest.mark.parametrize("case", OPTIONS)
def test_no_state_lives_in_the_gradients_memory(case):
    """A gradient lies in a ring whose slot the next one overwrites."""
    shard, optimizer = make(case)
    shard_of_ring, ring = make(case)
    slot = np.zeros(SIZE, np.float32)
    for gradient in gradients():
        slot[:] = gradient
        np.testing.assert_array_equal(take(shard_of_ring, ring, slot), take(shard, optimizer, gradient))
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
    shard, optimizer = make(case)
    take(shard, optimizer, gradients()[0])
    arrays = optimizer_arrays(optimizer)
    assert {name for name, array in arrays.items() if array.shape == (SIZE,)} == vectors
    assert arrays.keys() - vectors <= {"step"}
    assert all(array.ndim == 0 for name, array in arrays.items() if name == "step")


def test_slices_of_the_parameters_step_like_the_whole():
    """A server owns a slice; any number of servers must come to the same numbers."""
    for case in OPTIONS:
        shard, whole = make(case)
        pieces = []
        for begin, end in ((0, 16), (16, SIZE)):
            piece = nn.Parameter(torch.from_numpy(start()[begin:end].copy()))
            name = case.partition(" ")[0].rstrip(",")
            optimizer = make_optimizer(name, piece, learning_rate=RATE, epsilon=EPSILON, **OPTIONS[case])
            pieces.append((piece, optimizer, begin, end))
        for gradient in gradients():
            expected = take(shard, whole, gradient)
            found = [take(piece, opt, gradient[begin:end].copy()) for piece, opt, begin, end in pieces]
            np.testing.assert_array_equal(np.concatenate(found), expected, err_msg=case)


@pytest.mark.parametrize("case", OPTIONS)
def test_the_rate_can_be_changed_between_steps(case):
    """A rate of 0 moves nothing (but for momentum), and the first rate is then what it was."""
    shard, optimizer = make(case)
    take(shard, optimizer, gradients()[0])
    set_learning_rate(optimizer, 0.0)
    before = shard.detach().numpy().copy()
    take(shard, optimizer, gradients()[1])
    if "momentum" not in case:
        np.testing.assert_array_equal(shard.detach().numpy(), before)
    set_learning_rate(optimizer, RATE)
    assert learning_rates(optimizer)[0] == RATE
    take(shard, optimizer, gradients()[2])
    assert (shard.detach().numpy() != before).all()


def test_the_effective_rate_of_adagrad_falls_with_the_sum_of_squares():
    shard = nn.Parameter(torch.zeros(2))
    optimizer = make_optimizer("adagrad", shard, learning_rate=0.6, epsilon=1.0, initial_accumulator=1.0)
    assert learning_rates(optimizer) == pytest.approx((0.6, 0.6 / (1 + 1)))
    take(shard, optimizer, np.array([np.sqrt(3), np.sqrt(8)], np.float32))
    assert learning_rates(optimizer) == pytest.approx((0.6, (0.6 / (2 + 1) + 0.6 / (3 + 1)) / 2))
    set_learning_rate(optimizer, 1.2)
    assert learning_rates(optimizer) == pytest.approx((1.2, (1.2 / 3 + 1.2 / 4) / 2))


@pytest.mark.parametrize("case", ["sgd", "adam", "rmsprop, centred"])
def test_of_others_it_is_the_rate_itself(case):
    shard, optimizer = make(case)
    take(shard, optimizer, gradients()[0])
    assert learning_rates(optimizer) == (RATE, RATE)


@pytest.mark.parametrize("size", [1, BLOCK_ELEMENTS, 2 * BLOCK_ELEMENTS + 5])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", [case for case in OPTIONS if case.startswith("rmsprop")])
def test_rmsprop_in_blocks_is_torchs_to_the_bit(case, threads, size):
    options = {"lr": RATE, "alpha": 0.95, "eps": EPSILON, "centered": OPTIONS[case]["rmsprop_centered"]}
    options["momentum"] = OPTIONS[case].get("momentum", 0.0)
    rng, before = np.random.default_rng(2), torch.get_num_threads()
    shards = [nn.Parameter(torch.linspace(-1, 1, size)) for _ in range(2)]
    optimizers = [RMSprop([shards[0]], **options), torch.optim.RMSprop([shards[1]], foreach=False, **options)]
    torch.set_num_threads(threads)
    try:
        for _ in range(3):
            gradient = rng.normal(size=size).astype(np.float32)
            ours, torchs = (take(shard, opt, gradient) for shard, opt in zip(shards, optimizers, strict=True))
            np.testing.assert_array_equal(ours, torchs)
    finally:
        torch.set_num_threads(before)
    ours, torchs = map(optimizer_arrays, optimizers)
    assert ours.keys() == torchs.keys()
    for name, array in torchs.items():
        np.testing.assert_array_equal(ours[name], array, err_msg=name)


@pytest.mark.parametrize("centered", [False, True])
def test_rmsprop_with_epsilon_inside_the_root(centered):
    """The rule of the DQN paper: the first step moves by ``rate g / sqrt(v + epsilon)``."""
    shard, gradient = nn.Parameter(torch.zeros(3)), np.array([0.0, 1e-3, 2.0])
    optimizer = RMSprop([shard], lr=RATE, alpha=0.95, eps=0.01, centered=centered, epsilon_inside_root=True)
    spread = 0.05 * gradient**2 - (0.05 * gradient) ** 2 * centered
    expected = -RATE * gradient / np.sqrt(spread + 0.01)
    np.testing.assert_allclose(take(shard, optimizer, gradient.astype(np.float32)), expected, rtol=1e-5)
