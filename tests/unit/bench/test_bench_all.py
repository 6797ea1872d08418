"""``hpcrl bench all``, and ratios beside those of an earlier run."""

import importlib
import inspect
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from hpcrl import bench, cli
from hpcrl.bench import Row, all
from hpcrl.errors import EXIT_FAULT, HpcrlError, StorageError


def rows(**values):
    return [Row(name.replace("_", "."), value, "1") for name, value in values.items()]


def test_ratios_alone_are_compared_and_may_fall_a_little():
    before = rows(a_ratio=0.8, b_ratio=0.8, c_ratio=0.8, a=100.0, gone_ratio=0.5)
    now = rows(a_ratio=0.73, b_ratio=0.71, c_ratio=0.9, a=1.0)
    assert bench.fallen(now, before, 0.1) == [
        "b.ratio: 0.800 in the baseline, 0.710 now",
        "gone.ratio: 0.500 in the baseline, not measured now",
    ]


def test_rows_are_read_as_they_were_written(tmp_path):
    written = bench.compared("x", 1.0, "1/s", 2.0)
    bench.write_json(written, tmp_path / "rows.json")
    assert bench.read_json(tmp_path / "rows.json") == written
    (tmp_path / "rows.json").write_text('[{"title": 1}]')
    with pytest.raises(StorageError, match="expected the rows of a benchmark"):
        bench.read_json(tmp_path / "rows.json")


@pytest.mark.parametrize("name", [*all.BENCHMARKS, "all"])
def test_every_benchmark_has_a_quick_form(name):
    arguments = inspect.signature(importlib.import_module(f"hpcrl.bench.{name}").run).parameters
    assert list(arguments) == ["json_path", "quick"]


def test_all_of_them_are_run_and_those_that_fail_are_told_at_the_end(tmp_path, monkeypatch):
    ran = []

    def start(command, check):
        if command[1:5] != ["-m", "hpcrl", "bench", command[4]]:
            return subprocess.CompletedProcess(command, 0)
        name, path = command[4], command[6]
        ran.append((name, "--quick" in command))
        if name == "dqn":
            return subprocess.CompletedProcess(command, 1)
        bench.write_json([Row(f"{name}.ratio", 1.0, "1")], all.Path(path))
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(all.subprocess, "run", start)
    monkeypatch.setattr(bench, "machine", lambda: {})
    with pytest.raises(HpcrlError, match="1 of 9 benchmarks failed, see above: dqn"):
        all.run(tmp_path / "rows.json", quick=True)
    assert ran == [(name, True) for name in all.BENCHMARKS]
    names = [row["name"] for row in json.loads((tmp_path / "rows.json").read_text())]
    assert names == [f"{name}.ratio" for name in all.BENCHMARKS if name != "dqn"]


def test_the_command_fails_where_ratios_have_fallen(tmp_path, monkeypatch):
    module = type(sys)("hpcrl.bench.parts")
    module.run = lambda path, *, quick: bench.write_json(rows(a_ratio=0.5), path)
    monkeypatch.setitem(sys.modules, "hpcrl.bench.parts", module)
    bench.write_json(rows(a_ratio=0.6), tmp_path / "before.json")
    arguments = ["bench", "parts", "--baseline", str(tmp_path / "before.json")]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == EXIT_FAULT
    assert "fallen: a.ratio: 0.600 in the baseline, 0.500 now" in result.stdout
    assert CliRunner().invoke(cli.app, [*arguments, "--tolerance", "0.2"]).exit_code == 0
