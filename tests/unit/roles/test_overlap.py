"""Parts of a gradient are begun in one order, each as soon as a backward pass has made it, and not before."""

import numpy as np
import pytest
import torch

from hpcrl.networks import FlatParameters, WideLinear, make_network
from hpcrl.roles.overlap import Overlap, buckets_of

FRAMES = (4, 84, 84)


class Recording:
    """A reduction that keeps what it was given, at that moment."""

    def __init__(self):
        self.begun = []

    def begin(self, own, total):
        self.begun.append((own.storage_offset(), own.clone()))
        total.copy_(own)

    def finish(self, total):
        pass


class Alone:
    """One rank."""

    def gather(self, word):
        return [word]


@pytest.fixture
def flat():
    torch.manual_seed(0)
    return FlatParameters(make_network("nature", (), FRAMES, 6, np.uint8, dueling=True))


def backward(flat):
    flat.zero_gradients()
    frames = torch.from_numpy(np.random.default_rng(0).integers(255, size=(2, *FRAMES), dtype=np.uint8))
    flat.module(frames).square().sum().backward()


@pytest.mark.parametrize("least", [1, 50_000, 10**9])
def test_buckets_cover_the_gradient_from_its_end(flat, least):
    buckets = buckets_of(flat, least)
    bounds = [len(flat)]
    for part, awaited in buckets:
        assert part.stop == bounds[-1]
        assert part.stop - part.start >= least or part.start == 0
        assert awaited
        bounds.append(part.start)
    assert bounds[-1] == 0
    assert len(buckets) == {1: 14 - 2, 50_000: 4, 10**9: 1}[least]
    wide = [layer for layer in flat.module.modules() if isinstance(layer, WideLinear)]
    assert len(wide) == 2
    for layer in wide:  # the weights, of which no hook tells, are with their bias
        begin, end = layer.weight.storage_offset(), layer.bias.storage_offset()
        assert any(part.start <= begin < end < part.stop for part, _ in buckets)


@pytest.mark.parametrize("least", [1, 50_000])
def test_each_part_is_begun_when_it_is_computed(flat, least):
    reduction = Recording()
    overlap = Overlap(flat, reduction, Alone(), least=least)
    for finished in range(2):
        reduction.begun.clear()
        backward(flat)
        assert [begin for begin, _ in reduction.begun] == [part.start for part, _ in overlap.buckets]
        for begin, own in reduction.begun:
            assert own.any()
            torch.testing.assert_close(own, flat.gradients[begin : begin + len(own)], rtol=0, atol=0)
        overlap.begin_rest()
        assert len(reduction.begun) == len(overlap.buckets)
        torch.testing.assert_close(overlap.finish(), flat.gradients, rtol=0, atol=0)
        assert overlap.finished == finished + 1
    overlap.free()
    backward(flat)
    assert len(reduction.begun) == len(overlap.buckets)


def test_without_a_backward_pass_all_is_begun_at_the_end(flat):
    reduction = Recording()
    overlap = Overlap(flat, reduction, Alone())
    assert not reduction.begun
    overlap.begin_rest()
    assert len(reduction.begun) == len(overlap.buckets)
    overlap.finish()
    overlap.free()


def test_a_second_backward_pass_is_refused(flat):
    overlap = Overlap(flat, Recording(), Alone())
    backward(flat)
    with pytest.raises(RuntimeError, match="must be made by one backward pass"):
        backward(flat)
    overlap.finish()
    overlap.free()
