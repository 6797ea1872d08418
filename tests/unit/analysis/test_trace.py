"""Spans of a run as a file for Perfetto, and as shares."""

import json

import pytest

from hpcrl.analysis.trace import transport_share, write_trace
from hpcrl.errors import ConfigError
from hpcrl.storage.runlog import RunLog
from hpcrl.storage.schema import ACTIVITIES

LABELS = ["rank 0 (parameter_server 0, monitor 0) on a", "rank 1 (actor 0, learner 0) on b"]
SPANS = [  # rank, activity, background, begin, seconds
    (0, "apply", 0, 1.0, 0.5),
    (0, "write", 1, 1.2, 3.0),
    (0, "wait", 0, 1.5, 1.5),
    (1, "gradient", 0, 2.0, 0.25),
    (1, "pull", 0, 2.5, 0.5),
]


@pytest.fixture
def run_dir(tmp_path):
    log = RunLog(tmp_path, {"config": "", "seed": 1, "ranks": json.dumps(LABELS)})
    for rank, activity, background, begin, seconds in SPANS:
        row = {"wall_seconds": begin, "total_frames": 4, "global_update": 7, "rank": rank, "seconds": seconds}
        log.append("spans", row | {"activity": ACTIVITIES.index(activity), "background": background})
    log.close()
    return tmp_path


def test_each_span_is_a_complete_event_on_its_ranks_track(run_dir):
    write_trace(run_dir, run_dir / "trace.json")
    events = json.loads((run_dir / "trace.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    names = {(e["pid"], e.get("tid")): e["args"]["name"] for e in events if e["name"].endswith("_name")}
    found = [(names[e["pid"], e["tid"]], e["name"], e["ts"], e["dur"]) for e in spans]
    server, bundle = (label.rpartition(" on ")[0] for label in LABELS)
    assert found == [
        (server, "apply", 1e6, 5e5),
        (server + ", in the background", "write", 1.2e6, 3e6),
        (server, "wait", 1.5e6, 1.5e6),
        (bundle, "gradient", 2e6, 2.5e5),
        (bundle, "pull", 2.5e6, 5e5),
    ]
    assert [names[e["pid"], None] for e in spans] == ["a", "a", "a", "b", "b"]
    assert all(event["args"] == {"global_update": 7} for event in spans)


def test_shares_are_of_the_time_between_a_ranks_first_and_last_span(run_dir):
    found = write_trace(run_dir, run_dir / "trace.json")
    assert found[LABELS[0]] == pytest.approx({"wait": 0.75, "apply": 0.25, "other": 0.0})
    assert found[LABELS[1]] == pytest.approx({"gradient": 0.25, "pull": 0.5, "other": 0.25})


def test_the_transport_share_is_what_a_bundle_does_besides_its_work():
    bundle = {"simulate": 0.1, "infer": 0.2, "gradient": 0.5, "pull": 0.05, "other": 0.15}
    assert transport_share(bundle) == pytest.approx(0.2)
    assert transport_share({"wait": 0.75, "apply": 0.25, "other": 0.0}) is None


def test_a_run_that_was_not_traced_says_what_to_do(tmp_path):
    RunLog(tmp_path, {"config": "", "seed": 1}).close()
    with pytest.raises(ConfigError, match="run it anew with --set log.trace=true"):
        write_trace(tmp_path, tmp_path / "trace.json")
