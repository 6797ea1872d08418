"""Pages that can be wrong: what they name exists, and what they show runs."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "0.1.0" / "run"
STATUSES = {"test", "table", "small", "differs", "open", "cluster"}


def rows(page):
    """Cells of the rows of all tables of three columns, without their heads."""
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    return [[cell.strip(" |") for cell in cells] for cells in lines if cells[0] != "the paper says"]


def test_every_claim_has_a_status_and_what_stands_for_it_exists():
    claims = rows((ROOT / "docs" / "claims.md").read_text())
    assert len(claims) >= 28
    for claim in claims:
        assert claim[1] in STATUSES or claim[1].startswith("every algorithm"), claim
        named = re.findall(r"`((?:tests|docs|configs)/[^`]+)`", " ".join(claim[1:]))
        assert named or claim[1] in ("table", "open", "cluster"), claim
        for path in named:
            assert (ROOT / path).exists(), f"{path}, of: {claim[0]}"


def test_the_blocks_of_the_page_on_python_run_on_a_stored_run():
    pytest.importorskip("pandas", reason="pandas is not installed (extra `analysis`)")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "analysis.md").read_text(), re.S)
    assert len(blocks) >= 7
    names = {"RUN": GOLDEN}
    for block in blocks:
        exec(block, names)
    assert len(names["curve"].mean) > 1
    assert names["delays"].sum() > 0
