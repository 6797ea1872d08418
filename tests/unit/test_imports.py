"""Imports go one way, and heavy packages are imported only where they belong and when they are used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

LAYERS = (
    ("types", "errors", "seeding"),
    ("config", "logs"),
    ("networks", "algorithms", "replay", "envs", "transport", "storage"),
    ("sampling", "roles", "analysis"),
    ("launch", "bench"),
    ("cli", "__main__"),
)
"""Each imports what stands above it, and itself."""

BESIDE = {
    ("algorithms", "networks"),
    ("roles", "sampling"),
    ("bench", "launch"),
    ("__main__", "cli"),
}
"""Who may import whom within a layer."""

ONLY_IN = {
    "mpi4py": {"transport", "launch", "bench"},
    "h5py": {"storage"},
    "hdf5plugin": {"storage"},
    "gymnasium": {"envs"},
    "ale_py": {"envs", "bench"},
    "torch": {"networks", "algorithms", "sampling", "roles", "launch", "bench"},
    "typer": {"cli"},
    "hpcrl.config": {"config", "launch", "bench", "cli"},
}
"""Packages, and the parts of hpcrl that may import them; benchmarks also measure the bare packages."""

MODULES = {path: path.relative_to(ROOT / "hpcrl") for path in sorted((ROOT / "hpcrl").rglob("*.py"))}


def part_of(relative: Path) -> str:
    """``roles`` for ``roles/actor.py``, ``cli`` for ``cli.py``, empty for the package itself."""
    part = relative.parts[0].removesuffix(".py")
    return {"__init__": ""}.get(part, part)


PARTS = {part_of(relative) for relative in MODULES.values()}
LAYER = {part: number for number, parts in enumerate(LAYERS) for part in parts}


def imported(source: str) -> set[str]:
    """Dotted names of all modules that a source imports, also inside functions; ``?`` for a relative import."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names} if not node.level else {"?"}
    return names


def faults(part: str, names: set[str]) -> list[str]:
    """What is wrong with a part's imports."""
    found = []
    for name in sorted(names):
        if name == "?":
            found.append("a relative import")
        top, _, rest = name.partition(".")
        other = rest.partition(".")[0]
        if top == "hpcrl" and other in PARTS and other != part and part:
            upwards = LAYER[other] >= LAYER[part]
            if upwards and (part, other) not in BESIDE:
                found.append(f"{part} imports {name}")
        for package, places in ONLY_IN.items():
            if (name == package or name.startswith(package + ".")) and part not in places:
                found.append(f"{part} imports {package}, which only {', '.join(sorted(places))} may")
    return found


def test_every_part_has_its_layer():
    assert PARTS - {""} <= LAYER.keys()


@pytest.mark.parametrize("path", MODULES, ids=[str(relative) for relative in MODULES.values()])
def test_imports_go_one_way(path):
    assert faults(part_of(MODULES[path]), imported(path.read_text())) == []


@pytest.mark.parametrize(
    ("part", "source", "fault"),
    [
        ("transport", "import hpcrl.roles.actor", "transport imports hpcrl.roles.actor"),
        ("replay", "from hpcrl.envs import make_env", "replay imports hpcrl.envs.make_env"),
        ("networks", "from hpcrl import algorithms", "networks imports hpcrl.algorithms"),
        ("roles", "def f():\n from mpi4py import MPI", "roles imports mpi4py"),
        ("roles", "from hpcrl.config import Config", "roles imports hpcrl.config"),
        ("roles", "from .actor import Actor", "a relative import"),
        ("launch", "import h5py", "launch imports h5py"),
        ("cli", "import gymnasium as gym", "cli imports gymnasium"),
        ("transport", "import torch.nn", "transport imports torch"),
    ],
)
def test_a_broken_rule_is_found(part, source, fault):
    assert any(found.startswith(fault) for found in faults(part, imported(source)))


def test_what_is_allowed_is_not():
    source = "import mpi4py.MPI, torch\nfrom hpcrl.config import load\nfrom hpcrl.roles import loop"
    assert faults("launch", imported(source)) == []
    assert faults("algorithms", imported("from hpcrl.networks import Replica\nimport torch")) == []


def loaded_after(code: str) -> list[set[str]]:
    """Top-level modules in a fresh interpreter, wherever ``code`` calls ``look()``."""
    before = "import sys\ndef look(): print('LOADED', *{name.partition('.')[0] for name in sys.modules})\n"
    run = subprocess.run(
        [sys.executable, "-c", before + code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    return [set(line.split()[1:]) for line in run.stdout.splitlines() if line.startswith("LOADED")]


def test_help_and_keys_load_neither_torch_nor_mpi():
    code = """
import hpcrl.cli
look()
for arguments in (["--help"], ["plan", "--keys"]):
    sys.argv = ["hpcrl", *arguments]
    try:
        hpcrl.cli.main()
    except SystemExit as end:
        assert not end.code, end.code
    look()
"""
    looks = loaded_after(code)
    assert len(looks) == 3
    for modules in looks:
        assert "typer" in modules
        assert not modules & {"torch", "mpi4py", "h5py", "gymnasium", "ale_py", "numpy"}


def test_what_is_light_loads_nothing_heavy():
    heavy = {"torch", "mpi4py", "gymnasium", "ale_py"}
    (modules,) = loaded_after("import hpcrl.config, hpcrl.launch.topology, hpcrl.launch.forecast\nlook()")
    assert not modules & (heavy | {"numpy", "h5py"})
    roles = ", ".join(f"hpcrl.roles.{name}" for name in ("actor", "learner", "updates", "monitor", "checkpointing"))
    (modules,) = loaded_after(f"import {roles}, hpcrl.launch.train, hpcrl.launch.tracing\nlook()")
    assert "torch" not in modules  # ranks of hpcrl bench scale that serve nothing do without
    (modules,) = loaded_after("import hpcrl.storage.runlog, hpcrl.storage.checkpoint, hpcrl.replay\nlook()")
    assert not modules & heavy
    (modules,) = loaded_after("from hpcrl.envs import env_spec\nenv_spec(id='catch', stack=1)\nlook()")
    assert not modules & heavy


def test_training_sizes_its_thread_pools_before_numpy_and_torch_are_loaded():
    (modules,) = loaded_after("import hpcrl.launch.train\nlook()")
    assert "mpi4py" in modules
    assert not modules & {"torch", "numpy"}
