"""Learning rate and epsilon of large minibatches, and of many simulators."""

from types import SimpleNamespace

import pytest

from hpcrl.config import from_dict
from hpcrl.launch.build import learning_rate_schedule
from hpcrl.launch.learners import optimizer_rule


def job(learners=1, synchronous=False, **learning):
    raw = {"learning": {"optimizer": "adam", **learning}, "env": {"simulators": 8}}
    plan = SimpleNamespace(num=lambda kind: learners)
    return SimpleNamespace(
        config=from_dict(raw), plan=plan, learners=range(learners), synchronous=synchronous, frames=lambda: 50
    )


@pytest.mark.parametrize(("synchronous", "transitions"), [(False, 512), (True, 2048)])
def test_epsilon_follows_the_minibatch_of_an_update(synchronous, transitions):
    made = job(4, synchronous, batch_size=512, optimizer_epsilon_per_batch=0.01)
    assert optimizer_rule(made).epsilon == 0.01 / transitions
    assert optimizer_rule(job(4, synchronous, batch_size=512)).epsilon == 1.5e-4


@pytest.mark.parametrize(
    ("by", "synchronous", "factor"), [("batch_size", False, 8), ("batch_size", True, 16), ("simulators", False, 0.5)]
)
def test_the_rate_grows_with_minibatch_or_simulators(by, synchronous, factor):
    keys = {"batch_size": 256, "learning_rate": 1e-3, "learning_rate_final": 0.0, "learning_rate_decay": "frames"}
    keys |= {"learning_rate_decay_length": 100, "learning_rate_scaling_by": by}
    rate = learning_rate_schedule(job(2, synchronous, learning_rate_scaling="linear", **keys))
    assert rate(0) == pytest.approx(factor * 0.5e-3)
    root = learning_rate_schedule(job(2, synchronous, learning_rate_scaling="sqrt", **keys))
    assert root(0) == pytest.approx(factor**0.5 * 0.5e-3)
    assert learning_rate_schedule(job(2, synchronous, **keys))(0) == pytest.approx(0.5e-3)
