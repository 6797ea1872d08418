"""``learner.compile``: torch compiles a learner's step while the job is wired, so that training need not wait."""

import os
import shutil
from collections.abc import Callable, Mapping

import numpy as np

from hpcrl.errors import MachineError
from hpcrl.types import Batch, EnvSpec

START_SECONDS = 900.0
"""Limit of the watchdogs until the loop begins: a dozen files are compiled, on cores that ranks may share."""


def example(spec: EnvSpec, batch_size: int, *, weighted: bool) -> Batch:
    """A minibatch of the shapes and dtypes of all others."""
    states = np.zeros((batch_size, spec.stack, *spec.obs_shape), spec.obs_dtype)
    numbers = np.zeros(batch_size, np.float32)
    actions = np.zeros(batch_size, np.int64)
    return Batch(states, actions, numbers, numbers, states, numbers if weighted else None)


def compile_step(gradient: Callable[[Batch], object], batch: Batch, environ: Mapping[str, str] = os.environ) -> None:
    """Compute a gradient for the first time, for which its step is compiled.

    MPI runs by then, and nothing may fork. So torch makes no workers, which would; it starts the compiler from this
    process, which Python does by vfork and exec, without a copy of it. What was compiled before comes from torch's own
    cache on this node, for which ranks wait for each other.

    Raises
    ------
    MachineError
        There is no C++ compiler, or it fails.
    """
    compiler = environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise MachineError(
            f"learner.compile: expected a C++ compiler on this node, got no {compiler!r} (its name is taken from CXX); "
            f"load the site's compiler, or set learner.compile to false"
        )
    from torch._inductor import config  # only now: it takes longer than all other imports together

    config.compile_threads = 1
    try:
        gradient(batch)
    except Exception as error:  # of torch, the compiler, or what it made
        (first, *_) = str(error).strip().splitlines() or [""]
        raise MachineError(
            f"learner.compile: expected torch.compile to make a step that runs on this node, got "
            f"{type(error).__name__}: {first}; set learner.compile to false"
        ) from error
