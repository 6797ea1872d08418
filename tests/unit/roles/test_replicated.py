"""A learner that is alone, and synchronous: nothing of it is on its way, and its parameters are the master copy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from mpi4py import MPI

from hpcrl.algorithms.optimizers import Optimizer, make_rule
from hpcrl.roles.reduction import MpiReduction
from hpcrl.roles.replicated import AllreduceUpdate, OwnReplica, ReplicatedParameters
from hpcrl.roles.updates import APPLIED, DROPPED, NO_DELAY
from hpcrl.transport.agreement import Agreement
from hpcrl.transport.collectives import Collectives

RATE = 0.5


@pytest.fixture
def alone():
    """Its update, of a network with weights ``[1, 1]``."""
    module = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(module.weight)
    online = OwnReplica(module, "cpu")
    online.clock = ReplicatedParameters(
        optimizer=Optimizer(online.flat.values, make_rule("sgd", epsilon=0.0), RATE),
        learning_rate=lambda version: RATE,
        target_period=10,
        last_update=0,
        at_end=lambda: None,
        announce=lambda version: None,
        reporter=SimpleNamespace(),
    )
    agreement = Agreement(MPI.COMM_SELF, names={"stop": 0, "total_frames": 0}, own=(), note_bytes=8)
    everyone = Collectives(MPI.COMM_SELF)
    yield AllreduceUpdate(
        online,
        None,
        parameters=online.clock,
        agreement=agreement,
        everyone=everyone,
        reduction=MpiReduction(everyone),
        max_gradient_norm=0.0,
        verify_period=0,
        labels=["learner"],
    )
    agreement.free()
    everyone.free()


def give(update, gradient, accepted=True):
    update.online.flat.gradients.copy_(torch.tensor(gradient))
    update.give(0, accepted=accepted)


def test_a_gradient_is_applied_as_it_is_given(alone):
    for gradient, accepted, version, fates in (
        ([1.0, -1.0], True, 1, [(APPLIED, 0)]),
        ([8.0, 8.0], False, 1, []),
        ([float("nan"), 8.0], True, 1, [(DROPPED, NO_DELAY)]),
        ([1.0, -1.0], True, 2, [(APPLIED, 0)]),
    ):
        give(alone, gradient, accepted)
        assert alone.parameters.state()["version"] == version
        assert alone.fates() == fates
    np.testing.assert_array_equal(alone.parameters.shard, [0.0, 2.0])


def test_restoring_the_learner_leaves_the_restored_master_copy_alone(alone):
    give(alone, [1.0, -1.0])
    alone.pull(0)
    state = alone.online.state()
    np.testing.assert_array_equal(state["params"], [0.5, 1.5])
    alone.online.restore({"params": np.zeros(2, np.float32), "versions": np.array([0, 0])})
    np.testing.assert_array_equal(alone.parameters.shard, [0.5, 1.5])
    assert alone.online.global_update == 0
    alone.pull(1)
    assert alone.online.global_update == 1
