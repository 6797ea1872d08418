"""Parameters as flat views, and replicas that follow a vector."""

import numpy as np
import pytest
import torch
from torch import nn

from hpcrl.networks import FlatParameters, Replica, autocast, convolutional, count_parameters, mlp

# flat views --------------------------------------------------------------------------------------------------------


def test_values_and_gradients_are_views_in_the_order_of_the_module():
    module = mlp((1, 3), 2, (4,))
    before = torch.cat([p.detach().clone().reshape(-1) for p in module.parameters()])
    flat = FlatParameters(module)
    flat.check()
    assert len(flat) == before.numel()
    assert flat.values.dtype == flat.gradients.dtype == torch.float32
    assert torch.equal(flat.values, before)
    assert all(p.is_contiguous() and p.grad.is_contiguous() for p in module.parameters())
    flat.values.copy_(torch.arange(len(flat)))
    assert torch.equal(next(module.parameters()), torch.arange(12.0).view(4, 3))  # rows first: C order
    with torch.no_grad():
        list(module.parameters())[-1][1] = -7
    assert flat.values[-1] == -7


def test_backward_writes_into_the_flat_gradients():
    module = mlp((1, 3), 2, (4,))
    flat = FlatParameters(module)
    reference = mlp((1, 3), 2, (4,))
    reference.load_state_dict(module.state_dict())
    x = torch.randn(6, 1, 3)
    for _ in range(2):
        flat.gradients.zero_()
        module(x).square().sum().backward()
    reference(x).square().sum().backward()
    flat.check()
    torch.testing.assert_close(flat.gradients, torch.cat([p.grad.reshape(-1) for p in reference.parameters()]))


def test_gradients_may_lie_where_they_are_wanted():
    module, place = mlp((1, 3), 2, (4,)), torch.zeros(30)
    flat = FlatParameters(module, place[4:])
    module(torch.ones(1, 1, 3)).sum().backward()
    flat.check()
    assert place[4:].count_nonzero() > 0
    assert torch.equal(flat.gradients, place[4:])


def test_parameters_in_another_order_in_memory_come_out_in_c_order():
    module = nn.Conv2d(3, 2, 2).to(memory_format=torch.channels_last)
    expected = module.weight.detach().clone().contiguous().reshape(-1)
    flat = FlatParameters(module)
    assert torch.equal(flat.values[:24], expected)
    assert module.weight.is_contiguous()


def swap_data(module):
    module[1].weight.data = module[1].weight.data.clone()


@pytest.mark.parametrize(
    "detach",
    [
        lambda module: module.double(),
        lambda module: module.to(torch.bfloat16),
        lambda module: module.zero_grad(set_to_none=True),
        swap_data,
    ],
    ids=["double", "to", "zero_grad", "data"],
)
def test_check_notices_what_detaches_the_views(detach):
    module = mlp((1, 3), 2, (4,))
    flat = FlatParameters(module)
    detach(module)
    with pytest.raises(RuntimeError, match="no longer lies in the flat vector"):
        flat.check()


def test_check_notices_channels_last():
    module = nn.Conv2d(3, 2, 2)
    flat = FlatParameters(module)
    module.to(memory_format=torch.channels_last)
    with pytest.raises(RuntimeError, match="parameter weight"):
        flat.check()


# replicas ----------------------------------------------------------------------------------------------------------


class Vector:
    """Two shards, published by hand."""

    def __init__(self, size):
        self.values, self.versions = np.zeros(size, np.float32), np.zeros(2, np.int64)

    def publish(self, values, *versions):
        self.values[:], self.versions[:] = values, versions

    def pull(self, out, versions):
        if (versions == self.versions).all():
            return False
        out[:], versions[:] = self.values, self.versions
        return True


def test_a_replica_follows_its_vector():
    vector = Vector(26)
    replica = Replica(mlp((1, 3), 2, (4,)), vector, 2)
    assert replica.versions.tolist() == [-1, -1]
    vector.publish(np.arange(26), 5, 4)
    assert replica.pull()
    assert replica.versions.tolist() == [5, 4]
    assert replica.global_update == 5
    assert torch.equal(next(replica.network.parameters()), torch.arange(12.0).view(4, 3))
    assert not replica.pull()
    replica.flat.check()


def test_host_gradients_are_the_gradients_themselves():
    replica = Replica(mlp((1, 3), 2, (4,)), Vector(26), 2)
    replica.flat.gradients.fill_(3)
    assert replica.host_gradients().tolist() == [3.0] * 26
    assert np.shares_memory(replica.host_gradients(), replica.flat.gradients.numpy())


def test_a_frozen_replica_is_converted_after_every_pull():
    vector = Vector(26)
    replica = Replica(mlp((1, 3), 2, (4,)), vector, 2, frozen_dtype=torch.bfloat16)
    for version in (1, 2):
        values = np.random.default_rng(version).normal(size=26).astype(np.float32)
        vector.publish(values, version, version)
        assert replica.pull()
        frozen = torch.cat([p.reshape(-1) for p in replica.network.parameters()])
        assert frozen.dtype == torch.bfloat16
        assert torch.equal(frozen, torch.from_numpy(values).bfloat16())
        assert torch.equal(replica.flat.values, torch.from_numpy(values))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_restored_replica_holds_what_was_pulled(dtype):
    vector = Vector(26)
    vector.publish(np.arange(26), 5, 4)
    first, second = (Replica(mlp((1, 3), 2, (4,)), vector, 2, frozen_dtype=dtype) for _ in range(2))
    assert first.empty
    first.pull()
    assert not first.empty
    state = first.state()
    vector.publish(np.zeros(26), 6, 6)
    first.flat.check()
    second.restore(state)
    assert second.versions.tolist() == first.versions.tolist()
    for ours, theirs in zip(second.network.parameters(), first.network.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_the_frozen_network_is_used_under_autocast():
    torch.manual_seed(0)
    master = convolutional("nature", (4, 36, 36), 3)
    replica = Replica(
        master, Vector(count_parameters("nature", (), (4, 36, 36), 3, np.uint8)), 2, frozen_dtype=torch.bfloat16
    )
    frames = torch.randint(0, 256, (2, 4, 36, 36), dtype=torch.uint8)
    with torch.no_grad(), autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(replica.network(frames), master(frames), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("dueling", [False, True])
def test_weights_that_are_kept_in_low_precision_change_nothing_but_the_time(dueling):
    """Bit for bit, in forward passes and gradients, after every pull."""
    frames, found = torch.randint(256, (3, 4, 84, 84), dtype=torch.uint8), []
    for low_dtype in (None, torch.bfloat16):
        torch.manual_seed(0)
        module = convolutional("nature", (4, 84, 84), 3, dueling)
        vector = Vector(sum(p.numel() for p in module.parameters()))
        replica, results = Replica(module, vector, 2, low_dtype=low_dtype), []
        for version in (1, 2):
            vector.publish(np.random.default_rng(version).normal(0, 0.03, len(replica.flat)), version, version)
            assert replica.pull()
            replica.flat.zero_gradients()
            with autocast("cpu", torch.bfloat16):
                with torch.inference_mode():
                    results.append(replica.network(frames).float())
                replica.network(frames).float().square().sum().backward()
            results.append(replica.flat.gradients.clone())
        found.append(results)
    assert all(torch.equal(without, kept) for without, kept in zip(*found, strict=True))
    assert not torch.equal(found[0][0], found[0][2])
