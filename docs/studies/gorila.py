"""Gorila in small: what parallel bundles and old gradients do to learning, and what helps; the pictures of gorila.md.

    python docs/studies/gorila.py run catch runs/studies [PART...]   # writes docs/studies/gorila_catch.json
    python docs/studies/gorila.py run breakout runs/studies          # needs pip install minatar
    python docs/studies/gorila.py draw                               # docs/gorila_*.png, and the tables

With parts of titles, say "delay 30", only the groups that have one of them are run; the results of the others stay.
Needs mpiexec beside this Python, and matplotlib.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

from study import Case, Results, collect, draw, draw_delays, panels, save, table

HERE = Path(__file__).parent
SEEDS = (1, 2, 3)
BUNDLES = (1, 2, 4, 8)
PARALLEL, DELAYED = "parallel bundles", "one learner, older gradients"
SIMULATORS = "simulators in all"


class Task(NamedTuple):
    """A game, and how long it is played.

    Memories and starts of learning are those of all bundles together, so that their number changes neither how old
    experience is nor when learning begins.
    """

    config: Path
    frames: int
    capacity_steps: int
    learning_starts_steps: int
    decay_frames: int
    """until exploration is at its end"""
    good: float
    """a training return, for the tables"""
    delays: tuple[int, ...]


TASKS = {
    "catch": Task(
        HERE.parents[1] / "configs" / "catch_bundled.toml", 16_000, 12_000, 600, 4_000, 0.9, (0, 10, 30, 100)
    ),
    "breakout": Task(HERE / "minatar_breakout.toml", 30_000, 60_000, 1_600, 10_000, 2.0, (0, 1, 2, 5, 10, 30, 100)),
}


def case(task: Task, label: str, *overrides: str, bundles: int = 0) -> Case:
    """1 server and some bundles; 0: one process."""
    share = max(bundles, 1)
    common = (
        f"run.total_frames={task.frames}",
        f"exploration.decay_length={task.decay_frames}",
        f"replay.capacity_steps={task.capacity_steps // share}",
        f"replay.learning_starts_steps={task.learning_starts_steps // share}",
        *(() if bundles else ("topology.layout=serial",)),
    )
    return Case(label, task.config, bundles + 1 if bundles else 0, (*common, *overrides))


def delayed(task: Task, label: str, delay: int | str, *overrides: str) -> Case:
    """One process whose gradients are made so many updates old."""
    return case(task, label, f"learning.virtual_delay={delay}", *overrides)


def whole_memory(task: Task) -> tuple[str, ...]:
    """One memory for all bundles."""
    return (
        "replay.place=global",
        f"replay.capacity_steps={task.capacity_steps}",
        f"replay.learning_starts_steps={task.learning_starts_steps}",
    )


def optimizer(name: str, rate: float, epsilon: float) -> tuple[str, ...]:
    return (
        f"learning.optimizer={name}",
        f"learning.learning_rate={rate}",
        f"learning.optimizer_epsilon={epsilon}",
    )


OPTIMIZERS = {
    "Adam 1e-3": (),
    "RMSProp 1e-3": optimizer("rmsprop", 1e-3, 1e-5),
    "AdaGrad 1e-1": optimizer("adagrad", 1e-1, 1e-10),
    "SGD 1e-1": optimizer("sgd", 1e-1, 1e-8),
}


def groups(name: str) -> dict[str, list[Case]]:
    """What is compared, by title."""
    task = TASKS[name]
    found = {
        PARALLEL: [
            case(task, "serial DQN"),
            *(case(task, f"{n} bundle{'s' * (n > 1)}", bundles=n) for n in BUNDLES),
        ],
        DELAYED: [delayed(task, f"delay {delay}", delay) for delay in task.delays],
    }
    if name == "breakout":
        found[SIMULATORS] = [
            case(task, "serial, 8"),
            case(task, "serial, 64", "env.simulators=64"),
            case(task, "8 bundles of 1", "env.simulators=1", bundles=8),
            case(task, "8 bundles of 8", bundles=8),
        ]
        found["memory of 8 bundles"] = [
            case(task, "one each", bundles=8),
            case(task, "one for all", *whole_memory(task), bundles=8),
        ]
        found["learning rate of Adam, delays 0 and 5"] = [
            delayed(task, f"{rate:g}, {delay}", delay, f"learning.learning_rate={rate}")
            for rate in (1e-3, 3e-4, 1e-4)
            for delay in (0, 5)
        ]
        found["learning rate of Adam, 8 bundles"] = [
            case(task, f"{rate:g}", f"learning.learning_rate={rate}", bundles=8) for rate in (1e-3, 3e-4, 1e-4)
        ]
    if name == "catch":
        mixed = "0:1, 30:1, 100:1"
        found |= {
            "learning rate of Adam, delay 100": [
                delayed(task, f"{rate:g}", 100, f"learning.learning_rate={rate}") for rate in (1e-3, 3e-4, 1e-4)
            ],
            "optimizer, delay 0": [delayed(task, name, 0, *how) for name, how in OPTIMIZERS.items()],
            "optimizer, delay 30": [delayed(task, name, 30, *how) for name, how in OPTIMIZERS.items()],
            "target period [updates], delay 30": [
                delayed(task, f"{period}", 30, f"learning.target_period_updates={period}") for period in (25, 100, 400)
            ],
            "staleness bound [updates], mixed delays": [
                delayed(task, f"{bound}", mixed, f"server.staleness_bound_updates={bound}") for bound in (10, 50, 500)
            ],
        }
    return found


def picture(results: Results, path: Path) -> None:
    """All groups over frames, the bundles over wall time too, and their delays."""
    figure, axes = panels(len(results) + 2)
    bundles, *others = [{title: cases} for title, cases in results.items()]
    draw(bundles, "frames", axes[0], "frames, all bundles together")
    draw(bundles, "seconds", axes[1], "wall time [s]")
    draw_delays(bundles[PARALLEL][1:], axes[2])
    for group, where in zip(others, axes[3:], strict=False):
        draw(group, "frames", where, "frames")
    figure.savefig(path)


def draw_all() -> None:
    """Pictures and tables of all results that there are."""
    for name, task in TASKS.items():
        path = HERE / f"gorila_{name}.json"
        if path.exists():
            results = json.loads(path.read_text())
            picture(results, HERE.parent / f"gorila_{name}.png")
            for title, cases in results.items():
                print(f"\n{name}: {title}\n\n{table(cases, task.good)}")
            print(f"\n{name}: distinct frames\n")
            for found in results[PARALLEL]:
                pairs = zip(found["distinct_frames"], found["held_frames"], strict=True)
                print(f"| {found['label']} | {', '.join(f'{distinct:,} of {held:,}' for distinct, held in pairs)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["draw"]:
        draw_all()
    else:
        _, _, task_name, runs, *parts = sys.argv
        path = HERE / f"gorila_{task_name}.json"
        wanted = {
            title: cases
            for title, cases in groups(task_name).items()
            if not parts or any(part in title for part in parts)
        }
        kept = json.loads(path.read_text()) if parts else {}
        save(kept | collect(wanted, SEEDS, Path(runs) / task_name, TASKS[task_name].frames), path)
