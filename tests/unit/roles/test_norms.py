"""Norms of layers: which they are, and what they come to over the steps of a known optimizer."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.networks import Replica, make_network, mlp
from hpcrl.roles.norms import WHOLE, LayerNorms, layers_of


def test_layers_are_modules_with_parameters_in_flat_order():
    network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 1, bias=False), nn.LayerNorm(1)))
    assert layers_of(network) == [("0", 0, 9), ("2.0", 9, 12), ("2.1", 12, 14)]
    dueling = make_network("nature", (), (4, 84, 84), 6, np.uint8, dueling=True)
    layers = layers_of(dueling)
    assert len(layers) == 7
    assert layers[-1].end == sum(p.numel() for p in dueling.parameters())
    assert all(a.end == b.begin for a, b in zip(layers, layers[1:], strict=False))


@pytest.mark.parametrize("updates_between", [1, 3])
def test_rows_by_hand(updates_between):
    torch.manual_seed(0)
    replica, rows = Replica(mlp((1, 2), 1, (3,)), None, 1), []
    flat, start = replica.flat, replica.flat.values.clone()
    norms = LayerNorms(replica, start=start, period=2, report=lambda **row: rows.append(row))
    layers = {WHOLE: slice(None), 0: slice(0, 9), 1: slice(9, 13)}
    expected, values = [], start.numpy().astype(np.float64)
    rng = np.random.default_rng(0)
    for update in range(5):
        replica.versions[0] = update * updates_between
        gradient = rng.normal(size=13)
        flat.gradients.copy_(torch.from_numpy(gradient))
        norms.take(update)
        step = rng.normal(size=13)
        if update in (0, 2):
            for layer, part in layers.items():
                lengths = (np.linalg.norm(x[part]) for x in (values, values - start.numpy(), gradient, step))
                expected.append([layer, *lengths, updates_between, update * updates_between])
        values = values + step
        flat.values.copy_(torch.from_numpy(values))
    names = ("layer", "parameters", "distance", "gradient", "step", "step_updates", "global_update")
    np.testing.assert_allclose([[row[name] for name in names] for row in rows], expected, rtol=1e-4, atol=1e-5)
