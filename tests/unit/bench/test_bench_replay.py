"""``hpcrl bench replay``: its rows, and what it measures."""

import numpy as np
import pytest

from hpcrl.bench import replay


def test_rows_are_rates_of_medians_beside_their_bounds():
    pairs = [(2e-6, 1e-6), (4e-6, 2e-6), (8e-6, 4e-6)]
    ((name, pairs),) = replay.named({"add.remote": pairs}, ".2servers").items()
    ours, bound, ratio = replay.figure_rows(name, pairs)
    assert (ours.name, ours.value, ours.unit) == ("replay.add.remote.2servers", 4 / 4e-6, "records/s")
    assert (bound.name, bound.value) == ("replay.add.remote.2servers.bound", 4 / 2e-6)
    assert ratio.value == pytest.approx(0.5)
    assert "3 pairs" in replay.spread(name, pairs)
    (row,) = replay.figure_rows("replay.sample.prioritized", [(2e-4, None)] * 3)
    assert (row.value, row.unit, row.bound) == (5000, "batches/s", None)


def test_both_sides_move_the_same_bytes():
    from hpcrl.bench._replay_ranks import BareRing, Stepper, local_lanes

    lanes = local_lanes(4, (84, 84), np.uint8, capacity=50, stack=4, n_step=1)
    stepper = Stepper(lanes)
    stepper.append()
    ring = BareRing(stepper, capacity=50)
    ring.append()
    np.testing.assert_array_equal(ring.frames[:, 0], lanes.memory["frame"][:, 0])
    assert sum(field[:, 0].nbytes for field in (ring.actions, ring.rewards, *ring.flags)) == 4 * 12
    s_tm1, *_, s_t = ring.sample()
    assert s_tm1.shape == s_t.shape == (32, 4, 84, 84)
