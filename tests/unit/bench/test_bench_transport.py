"""``hpcrl bench transport``: its rows and what it reads from its jobs; nothing is timed."""

import json

import pytest

from hpcrl.bench import _jobs, transport
from hpcrl.errors import HpcrlError

PAIRS = [[0.004, 0.002], [0.002, 0.001], [0.003, 0.006]]
"""seconds; the medians are 0.003 and 0.002"""


def test_transfers_are_rates_of_medians():
    rows = transport.figure_rows("pull.nature.2servers", "pull", PAIRS, 3_000_000)
    assert [row.name for row in rows] == [
        "pull.nature.2servers",
        "pull.nature.2servers.bound",
        "pull.nature.2servers.ratio",
    ]
    assert rows[0].value == pytest.approx(4e-3 * 3 / 0.003)
    assert rows[0].unit == "GB/s"
    assert rows[0].ratio == rows[2].value == pytest.approx(2 / 3)


def test_all_else_is_calls_per_second():
    for figure, unit in (("update.adam", "updates/s"), ("ring.batches", "records/s"), ("counter", "additions/s")):
        row, bound, _ = transport.figure_rows("x", figure, PAIRS, 3_000_000)
        assert (row.value, bound.value, row.unit) == (pytest.approx(1 / 0.003), pytest.approx(500.0), unit)


def test_names_tell_vector_and_servers_where_they_matter():
    assert transport.row_name("pull", "nature", 1) == "pull.nature.1server"
    assert transport.row_name("push", "100m", 4) == "push.100m.4servers"
    assert transport.row_name("update.sgd", "100m", 1) == "update.100m.sgd"
    assert transport.row_name("ring.singles", "nature", 1) == "ring.singles"


@pytest.mark.parametrize("times", [1, 0, 3])
def test_figures_are_read_among_whatever_else_a_job_prints(tmp_path, monkeypatch, times):
    def job(command, output, limit_seconds):
        assert command[:3] == ["mpiexec", "-n", "3"]
        assert command[-4:] == ["hpcrl.bench._transport_ranks", "1000", "pull", "push"]
        output.write_text("a warning\n" + times * (_jobs.MARK + json.dumps({"pull": PAIRS}) + "\n"))

    monkeypatch.setattr(_jobs, "run", job)
    if times == 1:
        assert transport.measure(["mpiexec"], 1000, 2, ["pull", "push"], tmp_path) == {"pull": PAIRS}
        return
    with pytest.raises(HpcrlError, match=f"got {times}: is mpiexec the launcher"):
        transport.measure(["mpiexec"], 1000, 2, ["pull", "push"], tmp_path)


def test_run_measures_every_vector_over_all_servers_and_writes_all_rows(tmp_path, monkeypatch, capsys):
    def measure(launcher, parameters, servers, parts, directory):
        return {{"update": "update.sgd", "ring": "ring.batches"}.get(part, part): PAIRS for part in parts}

    monkeypatch.setattr(transport, "measure", measure)
    transport.run(tmp_path / "rows.json")
    names = [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())]
    places = [f"{vector}.{servers}" for vector in ("nature", "100m") for servers in ("1server", "2servers", "4servers")]
    values = [f"{kind}.{place}" for kind in ("pull", "push") for place in places]
    values += ["update.nature.sgd", "update.100m.sgd", "ring.batches", "counter"]
    assert sorted(value + end for value in values for end in ("", ".bound", ".ratio")) == sorted(names)
    out = capsys.readouterr().out
    assert "update.*.bound = 1 / (t(the fastest of torch's optimizer steps, one thread) + t(one copy))" in out
    assert "counter: 3 pairs, ours 2 to 4 ms, ratio 0.500 to 2.000" in out
