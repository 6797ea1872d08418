"""Compiled steps compute the same; where they cannot be compiled, the error says what to do."""

import numpy as np
import pytest
import torch

from hpcrl.algorithms.dqn import Dqn
from hpcrl.algorithms.rules import make_rule
from hpcrl.errors import MachineError
from hpcrl.launch.compiling import compile_step, example
from hpcrl.networks import Replica, make_network
from hpcrl.types import Batch, EnvSpec

SPEC = EnvSpec((84, 84), np.dtype(np.uint8), 4, 6, 4)
BATCH = 3


def learner(**options) -> Dqn:
    torch.manual_seed(0)
    online, target = (Replica(make_network("nature", (), (4, 84, 84), 6, np.uint8), None, 1) for _ in range(2))
    rule = make_rule("none", loss="huber", atoms=0, support=(-1.0, 1.0), device="cpu")
    return Dqn(online, target, rule=rule, double=True, max_gradient_norm=1.0, dtype=torch.float32, **options)


def minibatch(seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    frames = rng.integers(255, size=(2, BATCH, 4, 84, 84), dtype=np.uint8)
    numbers = rng.normal(size=(3, BATCH)).astype(np.float32)
    return Batch(frames[0], rng.integers(6, size=BATCH), numbers[0], numbers[1], frames[1], numbers[2])


@pytest.mark.long
def test_a_compiled_step_computes_the_same_gradients():
    """What is traced for a compiler; no code is made of it."""
    plain, compiled = learner(), learner(compiler="aot_eager")
    compile_step(compiled.gradient, example(SPEC, BATCH, weighted=True), {"CXX": "true"})
    for seed in range(3):
        expected, found = plain.gradient(minibatch(seed)), compiled.gradient(minibatch(seed))
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(compiled.online.flat.gradients, plain.online.flat.gradients, rtol=1e-4, atol=1e-6)
        compiled.online.flat.check()


def test_without_a_compiler_the_error_names_it():
    with pytest.raises(MachineError, match="expected a C.. compiler on this node, got no 'no-such-compiler'"):
        compile_step(None, None, {"CXX": "no-such-compiler"})


def test_what_the_compiler_says_is_passed_on_in_one_line():
    def fails(batch):
        raise RuntimeError("no good\nmany more words")

    with pytest.raises(MachineError, match="got RuntimeError: no good; set learner.compile to false"):
        compile_step(fails, None, {"CXX": "true"})
    assert torch._inductor.config.compile_threads == 1  # no workers, which would fork
