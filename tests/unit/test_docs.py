"""Pages that can be wrong: what they name exists, and what they show runs."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "0.1.0" / "run"


@pytest.fixture
def docs(monkeypatch):
    """Programs beside the pages can be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))


def test_the_page_of_claims_is_that_of_the_claims_and_of_the_files_that_they_name(docs):
    import claims

    assert claims.PAGE.read_text() == claims.text(), "run python docs/claims.py"


def test_every_claim_has_a_verdict_and_what_it_names_exists(docs):
    import claims

    all_claims = [claim for of_paper in claims.claims().values() for claim in of_paper]
    assert len(all_claims) >= 80
    assert len({claim["says"] for claim in all_claims}) == len(all_claims)
    for claim in all_claims:
        assert claim.keys() <= {"says", "section", "here", "found", "config", "keys", "by", "figure", "rows"}, claim
        verdict, _ = claims.judged(claim)
        assert verdict in claims.MEANING, claim
        named = claim.get("by", [])
        assert named or verdict in (claims.OPEN, "not testable here"), claim
        for path in named:
            assert (ROOT / path).exists(), f"{path}, of: {claim['says']}"


def test_a_claim_whose_files_say_otherwise_is_not_reproduced(docs, monkeypatch):
    import claims

    assert claims.better("gorila_noop", 32)[0] == claims.NOT
    assert claims.keys_are("breakout_gorila", {"topology.servers": 30})[0] == claims.NOT
    fewer = {label: {"returns": [[value] * 4]} for value, label in enumerate(reversed(claims.BUNDLES))}
    monkeypatch.setattr(claims, "_study", lambda name, title: fewer)
    assert (claims.bundles_better()[0], claims.bundles_worse()[0]) == (claims.NOT, claims.SMALL)


def test_verdicts_on_large_minibatches_and_second_learners_follow_their_studies(docs, monkeypatch):
    import claims

    flat = lambda value: {"returns": [[value] * 4], "frames": [1, 2, 3, 4]}  # noqa: E731
    cases = {f"batch {batch}": flat(value) for batch, value in ((32, 0.9), (512, 0.85), (2048, 0.1))}
    second = {
        "returns": [[0.9] * 4],
        "first_returns": [[0.9] * 4],
        "second_returns": [[0.2] * 4],
        "first_norm": [[5.0]],
        "second_norm": [[9.0]],
    }
    cases["64 acts, 2048 beside it"] = second
    monkeypatch.setattr(claims, "_study", lambda name, title: cases if title == "second learner" else batches)
    batches = {label: case for label, case in cases.items() if label.startswith("batch")}
    assert claims.batches_alike({"DQN, RMSProp": 512})[0] == claims.SMALL
    assert claims.batches_alike({"DQN, RMSProp": 2048})[0] == claims.NOT
    assert claims.second_learner(64, 2048, False)[0] == claims.SMALL
    assert claims.second_learner(64, 2048, True)[0] == claims.NOT


def test_a_difference_within_the_noise_is_no_verdict(docs, monkeypatch, tmp_path):
    import claims

    def players(bundled):
        noop = {"mean": 1000.0, "deviation": 300.0, "episodes": 30}
        return {
            who: {"noop": noop, "human": noop | {"mean": mean}}
            for who, mean in (("serial", 500.0), ("bundled", bundled))
        }

    monkeypatch.setattr(claims, "MEASURED", tmp_path)
    for bundled, verdict in ((550.0, claims.OPEN), (900.0, claims.SMALL), (100.0, claims.NOT)):
        record = {"game": "A game", "training": "a while", "players": players(bundled)}
        (tmp_path / "starts.json").write_text(json.dumps(record))
        assert claims.generalisation()[0] == verdict


def test_rows_of_benchmarks_stand_in_the_page_where_they_are_kept(docs, monkeypatch, tmp_path):
    import claims

    monkeypatch.setattr(claims, "MEASURED", tmp_path)
    assert claims.judged({"here": "not tested yet", "rows": ["a.b"]}) == ("not tested yet", "")
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "some.json").write_text('[{"name": "a.b", "value": 12345.6, "unit": "steps/s"}]')
    assert claims.judged({"here": "not tested yet", "rows": ["a.b"]})[1] == "`a.b` here: 12,350 steps/s"


def test_the_table_of_random_play_is_that_of_its_files(docs):
    import random_play

    assert random_play.rows()
    assert random_play.PAGE.read_text() == random_play.page(), "run python docs/random_play.py"


def test_the_blocks_of_the_page_on_python_run_on_a_stored_run():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "analysis.md").read_text(), re.S)
    assert len(blocks) >= 7
    names = {"RUN": GOLDEN}
    for block in blocks:
        exec(block, names)
    assert len(names["curve"].mean) > 1
    assert names["delays"].sum() > 0
