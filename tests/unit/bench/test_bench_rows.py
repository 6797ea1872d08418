"""The rows that every benchmark ends with."""

import io
import json

import pytest
from rich.console import Console

from hpcrl import bench
from hpcrl.errors import StorageError


def test_a_compared_figure_makes_itself_its_bound_and_their_ratio():
    rows = bench.compared("a.b", 30.0, "steps/s", 40.0)
    assert rows == [
        ("a.b", 30.0, "steps/s", 40.0, 0.75),
        ("a.b.bound", 40.0, "steps/s", None, None),
        ("a.b.ratio", 0.75, "1", None, None),
    ]


def test_medians_are_taken_entry_by_entry():
    assert bench.medians([{"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 7.0}, {"a": 2.0, "b": 8.0}]) == {"a": 2.0, "b": 8.0}


def test_the_machine_is_described():
    machine = bench.machine()
    assert set(machine) == {"CPU", "cores", "torch", "MPI"}
    assert all(machine.values())
    assert machine["MPI"] != "none"


def test_json_holds_the_rows(tmp_path):
    path = tmp_path / "rows.json"
    rows = [*bench.compared("a", 1.0, "ms", 2.0), bench.Row("a.part", 0.5, "ms")]
    bench.write_json(rows, path)
    read = json.loads(path.read_text())
    assert [set(row) for row in read] == [{"name", "value", "unit", "bound", "ratio"}] * 4
    assert [bench.Row(**row) for row in read] == rows


def test_a_file_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    with pytest.raises(StorageError, match="cannot be written"):
        bench.check_writable(tmp_path / "missing" / "rows.json")
    with pytest.raises(StorageError, match="cannot be written"):
        bench.write_json([], tmp_path)


def test_the_table_shows_machine_rows_and_notes():
    text = io.StringIO()
    rows = [*bench.compared("figure", 1234.5, "steps/s", 2000.0), bench.Row("figure.part", 0.012344, "ms")]
    console = Console(file=text, width=100)
    bench.print_rows(rows, title="title", header={"CPU": "[some] model"}, notes=["a note [1]"], console=console)
    lines = text.getvalue().splitlines()
    assert lines[0] == "CPU: [some] model"
    assert lines[-1] == "a note [1]"
    assert [word for line in lines for word in line.split() if word.startswith("figure")] == [row.name for row in rows]
    assert {"1,234", "2,000", "0.6172", "0.01234"} <= set(text.getvalue().split())


def test_a_long_name_is_whole_on_a_narrow_terminal():
    text, name = io.StringIO(), "sampler.128.inference.groups_2.hours_per_50M_steps"
    row, console = bench.Row(name, 6.0, "h, extrapolated"), Console(file=text, width=60)
    bench.print_rows([row], title="title", header={}, notes=[], console=console)
    cells = [line.split("│")[1].strip() for line in text.getvalue().splitlines() if line.startswith("│")]
    assert "".join(cells) == name
