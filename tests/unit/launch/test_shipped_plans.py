"""`hpcrl plan` explains every shipped configuration, at the size that its first lines start it with."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpcrl.cli import app

CONFIGS = sorted((Path(__file__).parents[3] / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_plan_explains(path):
    started = re.search(r"^# +(?:mpiexec|srun)? *(?:-n (\d+) )?hpcrl train configs/(\S+)", path.read_text(), re.M)
    assert started, "the first lines say how it is started"
    assert started[2] == path.name
    nodes = re.search(r"--ranks (\d+) --nodes (\d+)", path.read_text())
    assert nodes is None or nodes[1] == started[1]
    arguments = ["plan", str(path), "--ranks", started[1] or "1", "--nodes", nodes[2] if nodes else "1"]
    done = CliRunner().invoke(app, [*arguments, "--cores-per-node", "16"])
    assert done.exit_code == 0, done.output
    for word in ("parameter_server 0", "learner 0", "actor 0", "parameters", "/dev/shm", "steps/s acted"):
        assert word in done.output
