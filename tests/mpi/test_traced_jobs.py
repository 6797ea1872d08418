"""A job whose ranks are traced."""

import json

from launching import ROOT, train

from hpcrl.analysis.trace import write_trace


def test_what_servers_and_bundles_did_is_in_the_run_log(tmp_path):
    overrides = ("log.trace=true", "run.total_updates=60", "log.display=plain")
    result = train(2, ROOT / "configs" / "catch_bundled.toml", tmp_path / "run", "topology.bundles=1", *overrides)
    assert result.returncode == 0, result.stderr
    shares = write_trace(tmp_path / "run", tmp_path / "trace.json")
    server, bundle = (next(v for k, v in shares.items() if k.startswith(f"rank {rank} ")) for rank in (0, 1))
    assert {"apply", "publish", "wait"} <= server.keys()
    assert {"simulate", "infer", "sample", "gradient", "pull", "push"} <= bundle.keys()
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    gradients = [event for event in events if event["name"] == "gradient"]
    applied = [event for event in events if event["name"] == "apply"]
    assert len(gradients) >= 60
    assert len(applied) == 60
    # On one clock: the last gradient to be applied was computed before.
    assert gradients[0]["ts"] + gradients[0]["dur"] <= applied[0]["ts"] + 1e3
