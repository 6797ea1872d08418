"""``hpcrl bench dqn``: rows, faults, and how a run's rate is read from its log; nothing is timed."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcrl import config
from hpcrl.bench import _jobs, dqn
from hpcrl.bench._dqn_bound import PARTS, Variant
from hpcrl.errors import HpcrlError, StorageError
from hpcrl.storage.schema import ACTIVITIES

TIMES = dict(zip(PARTS, (0.001, 0.0005, 0.004, 0.002, 0.0005), strict=True))
"""seconds; 8 ms in all: 500 steps/s of one process with 4 simulators"""
CHOICE = dict.fromkeys(PARTS, Variant("bfloat16", "channels_last", 1))
GORILA, SERIAL = dqn.JOBS
UPDATES = dqn.WARM_UPDATES / 8
"""per second, so that the warm-up ends with the ninth row of `progress`"""


def progress(rows=12, steps=4 * UPDATES, updates=UPDATES):
    """A run log with a row each second, the last two of them after the run's limit and without progress."""
    number = np.arange(rows + 2)
    running = np.minimum(number, rows - 1)
    return {"wall_seconds": number.astype(float), "total_steps": running * steps, "global_update": running * updates}


def test_rows_are_well_formed_and_of_medians():
    slow = {part: 3 * seconds for part, seconds in TIMES.items()}
    rows = dqn.job_rows(GORILA, [600.0, 900.0, 750.0], [TIMES, slow, TIMES])
    named = {row.name: row for row in rows}
    assert list(named) == ["dqn.gorila", "dqn.gorila.bound", "dqn.gorila.ratio", *(f"dqn.part.{p}" for p in PARTS)]
    ours = named["dqn.gorila"]
    assert (ours.value, ours.unit, ours.bound) == (750.0, "steps/s", pytest.approx(1000.0))
    assert ours.ratio == ours.value / ours.bound == named["dqn.gorila.ratio"].value
    assert named["dqn.gorila.bound"].value == ours.bound
    milliseconds = [named[f"dqn.part.{part}"].value for part in PARTS]
    assert milliseconds == pytest.approx([1.0, 0.5, 4.0, 2.0, 0.5])
    assert GORILA.bundles * dqn.SIMULATORS * 1e3 / sum(milliseconds) == pytest.approx(ours.bound)


def test_a_serial_job_is_held_against_one_process():
    assert dqn.bound_rate(SERIAL, TIMES) == pytest.approx(4 / 7.5e-3)  # nothing is published
    assert dqn.bound_rate(GORILA, TIMES) == pytest.approx(1000.0)
    assert dqn.bound_rate(dqn.FREE_SERVER, TIMES) == pytest.approx(8 / 5.5e-3)


def test_rate_is_read_after_warm_up_and_before_the_limit():
    table = progress()
    table["total_steps"][:3] += 50  # whatever happened before the warm-up was over
    assert dqn.steady_rate(table, 11.2) == pytest.approx(4 * UPDATES)


def test_a_run_that_hardly_learned_gives_no_rate():
    with pytest.raises(HpcrlError, match="got 2: this machine is too slow"):
        dqn.steady_rate(progress(), 9.9)
    with pytest.raises(HpcrlError, match="intensity of 8, got 4"):
        dqn.steady_rate(progress(rows=30, updates=UPDATES / 2), 29.0)


@pytest.mark.parametrize("job", dqn.JOBS, ids=lambda job: job.layout)
def test_the_job_is_the_one_described(tmp_path, monkeypatch, job):
    asked = {}

    def wait(command, output, limit_seconds, look, period_seconds):
        asked["command"], asked["config"] = command, config.load(next(tmp_path.glob("*.toml")))
        (tmp_path / "job").mkdir()
        return 85

    monkeypatch.setattr(_jobs, "_wait", wait)
    monkeypatch.setattr(
        dqn, "read_runlog", lambda run_dir, table: progress(rows=30, steps=16 * UPDATES, updates=4 * UPDATES)
    )
    assert dqn.train(job, ["mpiexec"], tmp_path / "job") == pytest.approx(16 * UPDATES)
    launch = ["mpiexec", "-n", "3"] if job.layout == "bundled" else []
    assert asked["command"][: len(launch) + 4] == [*launch, sys.executable, "-m", "hpcrl", "train"]
    loaded = asked["config"]
    assert (loaded.topology.layout, loaded.topology.servers) == (job.layout, 1)
    assert (loaded.env.id, loaded.env.simulators, loaded.network.kind) == ("ALE/Pong-v5", 4, "nature")
    assert (loaded.learning.batch_size, loaded.learning.training_intensity) == (32, 8.0)
    assert loaded.learning.optimizer == "adagrad"
    assert loaded.run.time_limit_seconds == job.seconds


def test_the_transport_share_is_that_of_the_bundles_while_they_learn(tmp_path, monkeypatch):
    def spans(rank, activity, begin, seconds):
        return {
            **{"rank": rank, "background": 0, "activity": ACTIVITIES.index(activity), "wall_seconds": begin},
            **{"seconds": seconds, "global_update": dqn.WARM_UPDATES if begin >= 1 else 0, "total_frames": 0},
        }

    rows = [
        *(spans(0, "apply", 1.0, 2.0), spans(0, "wait", 3.0, 7.0)),
        *(spans(1, name, begin, 2.0) for name, begin in (("simulate", 1.0), ("infer", 3.0), ("gradient", 5.0))),
        *(spans(1, "wait", 0.0, 1.0), spans(1, "pull", 7.0, 2.0), spans(1, "gradient", 99.0, 5.0)),
    ]
    table = {name: np.array([row[name] for row in rows]) for name in rows[0]}
    monkeypatch.setattr(dqn, "_run", lambda job, launcher, run_dir, *options: None)
    monkeypatch.setattr(dqn, "read_spans", lambda run_dir: (table, ["server", "bundle"]))
    assert dqn.transport(GORILA, [], tmp_path) == pytest.approx(0.25)


class FakeLoops:
    """Bare loops that take less time the more of bfloat16, channels last and one thread there is in their parts."""

    parts = tuple(TIMES)

    def __init__(self, processes=2):
        self.asked = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def measure(self, choice, seconds, processes):
        self.asked.append((processes, choice))
        return {
            part: TIMES[part] * (1 + (v.precision == "float32") + (v.layout == "contiguous") + v.threads)
            for part, v in choice.items()
        }


def test_the_fastest_variant_of_each_part_is_chosen():
    loops = FakeLoops()
    choice = dqn.fastest(loops, 2)
    assert choice == CHOICE
    tried = {asked["gradient"] for _, asked in loops.asked}
    assert {(v.precision, v.layout) for v in tried} == {
        (p, layout) for p in ("float32", "bfloat16") for layout in ("contiguous", "channels_last")
    }
    assert {1, 2} <= {v.threads for v in tried}


def test_what_disturbs_one_measurement_does_not_choose_the_variants():
    class Disturbed(FakeLoops):
        def measure(self, choice, seconds, processes):
            # Alone it is the best; then it is twice among the last candidates: of all, and of those with a thread.
            again = choice == CHOICE and self.asked.count((processes, choice)) in (1, 2)
            times = super().measure(choice, seconds, processes)
            return {part: 100 * time for part, time in times.items()} if again else times

    assert dqn.fastest(Disturbed(), 2) == CHOICE


def test_run_measures_in_turns_and_writes_all_rows(tmp_path, monkeypatch, capsys):
    events, path = [], tmp_path / "figures.json"

    class Loops(FakeLoops):
        def measure(self, choice, seconds, processes):
            events.append(("bound", processes))
            return TIMES

    def train(job, launcher, run_dir):
        events.append(("ours", job.bundles))
        return 400.0 * job.bundles

    monkeypatch.setattr(dqn, "BareLoops", Loops)
    monkeypatch.setattr(dqn, "fastest", lambda loops, processes: CHOICE)
    monkeypatch.setattr(dqn, "train", train)
    monkeypatch.setattr(dqn, "transport", lambda job, launcher, run_dir: 0.07 if job == GORILA else 1.0)
    dqn.run(path)
    pair = [("ours", 2), ("bound", 2), ("ours", 1), ("bound", 1)]
    assert events == dqn.PAIRS * pair
    assert dqn.PAIRS >= 7
    rows = {row["name"]: row for row in json.loads(path.read_text())}
    for name in ("dqn.gorila", "dqn.serial"):
        assert rows[name]["ratio"] == rows[name]["value"] / rows[name]["bound"] == rows[f"{name}.ratio"]["value"]
        assert rows[name]["ratio"] == pytest.approx(0.8 if name == "dqn.gorila" else 0.75)
    assert rows["dqn.gorila.free_server"]["value"] == rows["dqn.gorila"]["value"]
    assert rows["dqn.gorila.free_server.ratio"]["value"] == pytest.approx(0.55)
    assert rows["dqn.gorila.transport"]["value"] == 0.07
    out = capsys.readouterr().out
    assert "2 x 4 / (1.000 + 0.500 + 4.000 + 2.000 + 0.500 ms) = 1,000 steps/s" in out
    assert "gradient bfloat16 channels_last, 1 thread" in out


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(dqn, "BareLoops", None)
    with pytest.raises(StorageError, match="cannot be written"):
        dqn.run(tmp_path / "missing" / "figures.json")


def test_bare_loops_answer_and_end():
    with dqn.BareLoops(1) as loops:
        times = loops.measure(dict.fromkeys(PARTS, Variant("float32", "contiguous", 1)), 0.0, 1)
        (process,) = loops._processes
    assert set(times) == set(PARTS)
    assert process.poll() is not None


def test_a_bare_loop_that_died_is_told(monkeypatch, tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit(1)")
    monkeypatch.setattr(dqn._dqn_bound, "__file__", str(broken))
    with dqn.BareLoops(1) as loops, pytest.raises(HpcrlError, match="has failed"):
        loops.measure(CHOICE, 0.0, 1)


def test_the_process_that_starts_jobs_has_not_loaded_mpi():
    code = "import hpcrl.bench.dqn, sys; sys.exit('mpi4py' in sys.modules)"
    root = Path(__file__).parents[3]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False).returncode == 0
