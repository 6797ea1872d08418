"""An evaluation is the same on any number of ranks."""

import json
from pathlib import Path

import pytest
from launching import run_ranks

GOLDEN = Path(__file__).parents[1] / "golden" / "0.1.0" / "run"


def returns(ranks, tmp_path):
    output = tmp_path / f"{ranks}.json"
    done = run_ranks(
        ranks,
        ["-m", "hpcrl", "evaluate", GOLDEN, "--epsilon", "0.5", "--json", output, "--episodes", "40"],
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("mean return") == 1
    record = json.loads(output.read_text())
    return record["returns"], record["steps"]


@pytest.mark.one_mpi
@pytest.mark.parametrize("ranks", [2, pytest.param(5, marks=pytest.mark.long)])
def test_returns_do_not_depend_on_the_number_of_ranks(ranks, tmp_path):
    alone = returns(0, tmp_path)
    assert len(set(alone[0])) > 1
    assert returns(ranks, tmp_path) == alone
