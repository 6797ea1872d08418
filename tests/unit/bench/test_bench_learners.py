"""``hpcrl bench learners``: its rows."""

import pytest

from hpcrl.bench import learners


def test_rows_are_rates_of_medians_beside_their_bounds():
    ours, bound, ratio = learners.figure_rows("mpi", [(0.2, 0.1), (0.4, 0.2), (0.8, 0.4)])
    assert (ours.name, ours.value, ours.unit) == ("learners.mpi", 2.5, "updates/s")
    assert bound.value == 5.0
    assert ratio.value == pytest.approx(0.5)
