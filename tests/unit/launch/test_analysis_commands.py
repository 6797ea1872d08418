"""Every command that analyses a run, on runs in every state and on what is none: a right result or a clear error.

All are run by one process, which is also asked what it has imported: torch takes seconds to begin.
"""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import pytest

from hpcrl.analysis import load
from hpcrl.storage import runlock, schema
from hpcrl.storage.runlog import RunLog

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "0.1.0" / "run"
ARRAY = ["plan", str(ROOT / "configs" / "catch_serial.toml"), "--array", str(ROOT / "configs" / "atari49.txt")]
COMMANDS = {
    "inspect": ["inspect", "RUN"],
    "watch": ["watch", "RUN", "--display", "plain"],
    "report": ["report", "RUN", "--output", "OUT.html"],
    "plot": ["plot", "RUN", "--output", "OUT.svg"],
    "csv": ["export", "RUN", "--to", "csv", "--output", "OUT_csv"],
    "tensorboard": ["export", "RUN", "--to", "tensorboard", "--output", "OUT_tensorboard"],
    "minari": ["export", "RUN", "--to", "minari", "--output", "OUT_minari"],
    "weights": ["export", "RUN", "--to", "weights", "--output", "OUT.h5"],
    "state_dict": ["export", "RUN", "--to", "state_dict", "--output", "OUT.pt"],
    "evaluate": ["evaluate", "RUN", "--episodes", "6"],
    "record": ["record", "RUN", "--output", "OUT.gif"],
    "trace": ["trace", "RUN", "--output", "OUT.json"],
    "plan": [*ARRAY, "--like", "RUN"],
}
RUN = """
import contextlib, io, json, logging, sys
from hpcrl.cli import main
found = {}
for key, arguments in json.load(sys.stdin).items():
    out, err, code = io.StringIO(), io.StringIO(), 0
    sys.argv = ["hpcrl", *arguments]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as exit:
            code = exit.code or 0
        except BaseException as error:
            code = repr(error)
    found[key] = [code, out.getvalue(), err.getvalue()]
print(json.dumps([found, [name for name in ("mpi4py", "mpi4py.MPI") if name in sys.modules]]))
"""
WROTE = r"wrote \S+"
HEALTHY = {
    "inspect": r"not running\n",
    "watch": r"95 updates",
    "report": WROTE,
    "plot": WROTE,
    "csv": r"progress.csv\n.*\n.*\n.*evaluations.csv",
    "tensorboard": WROTE,
    "minari": r"28 whole episodes",
    "weights": r"435 parameters of \S+step-000000000080",
    "state_dict": r"435 parameters of \S+step-000000000080",
    "evaluate": r"update 80\ncatch .* over 6 episodes",
    "record": rf"{WROTE}: 9 steps|error: hpcrl record needs imageio",
    "trace": r"error: \S+ has no record of what its ranks did",
    "plan": r"49 jobs like",
}
"""What each says of a run of 95 updates, whose newest checkpoint is of update 80."""
OLDER = r"step-000000000040"
EXPECTED = {
    "restarted": HEALTHY,
    "live": HEALTHY | {"inspect": r"running \(host"},
    # Its newest checkpoint is damaged, so that what needs one goes back to the one before.
    "killed": HEALTHY
    | {"inspect": r"its last job was killed .*(\n.*)*DAMAGED(.*\n)*damaged: \S+runlog-002.h5", "watch": r"was killed"}
    | {"minari": r"24 whole episodes", "weights": OLDER, "state_dict": OLDER, "evaluate": rf"{OLDER}, update 40"},
    "begun": dict.fromkeys(COMMANDS, "error: .* holds no checkpoint that can be used")
    | {"inspect": r"not running\nno checkpoint", "watch": "0 updates", "csv": "has logged nothing yet"}
    | {"report": WROTE, "plot": WROTE, "tensorboard": WROTE, "trace": "error: .* holds no run log"}
    | {"plan": "error: --like .*: expected a run that has trained and written a checkpoint"},
    "other_directory": dict.fromkeys(COMMANDS, r"error: \S+: expected a run directory \(with config.toml\)")
    | {"trace": "error: .* holds no run log"},
    "text_file": dict.fromkeys(COMMANDS, r"error: \S+: expected a run directory \(with config.toml\)")
    | dict.fromkeys(("weights", "state_dict", "evaluate", "record"), r"error: cannot read \S+: it is no HDF5 file")
    | {"trace": r"error: cannot read \S+: Not a directory"},
    "hdf5_file": dict.fromkeys(COMMANDS, r"error: \S+: expected a run directory \(with config.toml\)")
    | dict.fromkeys(
        ("weights", "state_dict", "evaluate", "record"),
        r"error: \S+: expected an hpcrl file of type 'weights', found type None",
    )
    | {"trace": r"error: cannot read \S+: Not a directory"},
}


def row(update):
    clocks = {"wall_seconds": float(update), "total_frames": 1000 + update, "global_update": update}
    return dict.fromkeys(schema.TABLES["progress"], 0.0) | clocks


def add_segment(run_dir, updates, resumed=None):
    start = {"resumed_update": resumed, "resumed_frames": 1000 + resumed} if resumed else {}
    log = RunLog(run_dir, {"seed": 1, **start})
    for update in updates:
        log.append("progress", row(update))
    log.flush()
    return log


def kill_a_job(run_dir):
    """Leave what a job leaves that dies while it writes: its lock, half a segment, half a checkpoint."""
    code = f"import os; from hpcrl.storage import runlock; runlock.acquire({str(run_dir)!r}); os._exit(9)"
    subprocess.run([sys.executable, "-c", code], check=False)
    add_segment(run_dir, [200]).close()
    torn = run_dir / "runlog-002.h5"
    torn.write_bytes(torn.read_bytes()[:600])
    os.utime(torn, (0, 0))
    newest = run_dir / "checkpoints" / "step-000000000080"
    shutil.copytree(newest, newest.with_name("step-000000000120.tmp"))
    shard = newest / "parameter_server-0.h5"
    shard.write_bytes(shard.read_bytes()[:-100])


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """What each state looks like on the disk."""
    root = tmp_path_factory.mktemp("states")
    runs = {name: root / name for name in ("live", "killed", "restarted", "begun", "other_directory")}
    for name in ("live", "killed", "restarted"):
        shutil.copytree(GOLDEN, runs[name])
    lock, log = runlock.acquire(runs["live"]), add_segment(runs["live"], [90, 95], 80)
    kill_a_job(runs["killed"])
    for updates, resumed in (([90, 100], 80), ([95], 90)):
        add_segment(runs["restarted"], updates, resumed).close()
    for name in ("begun", "other_directory"):
        runs[name].mkdir()
    shutil.copy(GOLDEN / "config.toml", runs["begun"])
    (runs["other_directory"] / "notes.txt").write_text("nothing of hpcrl's\n")
    runs["text_file"], runs["hdf5_file"] = root / "notes.toml", root / "other.h5"
    runs["text_file"].write_text("[other]\nkey = 1\n")
    with h5py.File(runs["hdf5_file"], "w") as file:
        file["data"] = [1, 2, 3]
    yield runs
    log.close()
    lock.release()


@pytest.fixture(scope="module")
def answers(places, tmp_path_factory):
    out, calls = tmp_path_factory.mktemp("out"), {}
    for state, path in places.items():
        for name, arguments in COMMANDS.items():
            if (state, name) != ("live", "watch"):  # it would follow the run until its end
                to = str(out / f"{state}_{name}")
                calls[f"{state} {name}"] = [
                    re.sub("^OUT", lambda _, to=to: to, argument.replace("RUN", str(path))) for argument in arguments
                ]
    command = [sys.executable, "-c", RUN]
    done = subprocess.run(command, cwd=ROOT, input=json.dumps(calls), capture_output=True, text=True, timeout=300)
    found, imported = json.loads(done.stdout.splitlines()[-1])
    return found, imported, out


def test_none_of_them_imports_mpi(answers):
    assert answers[1] == []


@pytest.mark.parametrize(
    ("state", "name"),
    [(state, name) for state in EXPECTED for name in COMMANDS if (state, name) != ("live", "watch")],
)
def test_the_right_result_or_a_clear_error(answers, state, name):
    code, out, err = answers[0][f"{state} {name}"]
    expected = EXPECTED[state][name]
    assert re.search(expected, out + err), (out, err)
    failed = "hpcrl: error:" in err or (state, name) == ("killed", "inspect")
    assert (code != 0) == failed, (code, out, err)
    assert "Traceback" not in err
    assert err.count("left out:") <= 1


@pytest.mark.parametrize("state", ["live", "restarted", "killed"])
def test_what_is_written_is_of_the_rows_that_count(answers, places, state):
    updates = load(GOLDEN).tables["progress"]["global_update"].tolist()
    if state != "killed":
        updates += [90, 95]
    assert load(places[state]).tables["progress"]["global_update"].tolist() == updates
    _, _, out = answers
    with open(out / f"{state}_csv_csv" / "progress.csv", newline="") as stream:
        assert [int(row["global_update"]) for row in csv.DictReader(stream)] == updates
    page = (out / f"{state}_report.html").read_text()
    cells = re.findall(r'data-value="([^"]*)"', page.partition('id="runs-table"')[2].partition("</table>")[0])
    frames = 1095 if state != "killed" else int(load(GOLDEN).last("total_frames"))
    assert [int(cell) for cell in cells[:3]] == [load(places[state]).starts, frames, updates[-1]]
