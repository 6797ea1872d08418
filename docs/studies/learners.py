"""Two learners in each way of updating, rarer visits to the store, and its locks; the pictures of learners.md.

    python docs/studies/learners.py run DIR GROUP...    # writes docs/studies/learners.json
    python docs/studies/learners.py atari DIR           # the group "atari": some 16 minutes on 2 cores
    python docs/studies/learners.py locks               # writes docs/studies/locks.json; one minute
    python docs/studies/learners.py draw                # docs/learners_*.png, and the tables

Groups are ``ways``, ``periods`` and ``combine`` (all of catch), and ``atari``; those that are not named stay as they
are. Runs that are done are not run again, and one that was stopped goes on. Needs mpiexec beside this Python, and
matplotlib.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from study import POINTS, Case, Results, collect, draw, panels, save, table

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
CATCH, BOXING = CONFIGS / "catch_bundled.toml", CONFIGS / "boxing_dqn.toml"
RESULTS, LOCKS = HERE / "learners.json", HERE / "locks.json"
CHUNKS, LEARNERS = (1, 2, 3, 6, 12), (1, 2, 4)
SYNCHRONOUS = ("topology.layout=sampler_learner", "learning.update=allreduce")


@dataclass(frozen=True)
class Group:
    """Cases that are compared with each other, and the picture of them."""

    title: str
    cases: tuple[Case, ...]
    frames: int
    good: float
    """a return, of which the table says when it was first reached"""
    seeds: tuple[int, ...] = (1, 2, 3)
    points: int = POINTS


def groups() -> dict[str, Group]:
    """What is compared."""
    frames = 16_000
    common = (f"run.total_frames={frames}", "exploration.decay_length=4000")
    store = (*common, "learning.update=store")
    # An update is of both learners' minibatches: of half the size, so that all make as many updates per frame.
    ways = (
        Case("serial DQN", CATCH, 0, (*common, "topology.layout=serial")),
        Case("server (asynchronous)", CATCH, 3, common),
        Case("store (asynchronous)", CATCH, 3, store),
        Case("allreduce (synchronous)", CATCH, 2, (*common, *SYNCHRONOUS, "learning.batch_size=16")),
    )
    periods = tuple(
        Case(f"n = {n}", CATCH, 3, (*store, *((f"learner.sync_period_updates={n}",) if n > 1 else ())))
        for n in (1, 4, 16, 64)
    )
    combine = (
        Case("each gradient by itself", CATCH, 5, common),
        Case("gradients of the node together", CATCH, 5, (*common, "learning.node_combine=true")),
    )
    return {
        "ways": Group("catch, 2 learners", ways, frames, good=0.9),
        "periods": Group("updates between two visits to the store, 2 learners", periods, frames, good=0.9),
        "combine": Group("catch, 4 bundles on a node", combine, frames, good=0.9),
        "atari": _atari(400_000),
    }


def _atari(frames: int) -> Group:
    """Boxing with the small network, few simulators, and a rate that suits so short a run."""
    common = (f"run.total_frames={frames}", "topology.layout=bundled", "network.kind=a3c_net", "env.simulators=2")
    common += ("replay.capacity_steps=60000", "replay.learning_starts_steps=1000", "replay.n_step=3")
    common += ("exploration.decay_length=60000", "exploration.epsilon_end=0.02", "learning.loss=huber")
    common += ("learning.double=true", "learning.learning_rate=2.5e-4", "learning.target_period_updates=500")
    common += ("checkpoint.period_seconds=600", "checkpoint.keep_last=1")
    cases = (
        Case("server (asynchronous)", BOXING, 3, common),
        Case("allreduce (synchronous)", BOXING, 2, (*common, *SYNCHRONOUS, "learning.batch_size=16")),
    )
    return Group("Boxing, 2 learners", cases, frames, good=5, seeds=(1,), points=10)


def run(directory: Path, names: list[str]) -> None:
    """Make the groups anew, and keep the others."""
    results: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        group = groups()[name]
        found = collect({name: group.cases}, group.seeds, directory / "learners", group.frames, group.points)
        save(results := {**results, **found}, RESULTS)


def measure_locks() -> None:
    """Visits per second to all chunks of a store, by numbers of chunks and of learners that do nothing else."""
    found: dict[str, dict[str, float]] = {}
    for learners in LEARNERS:
        for chunks in CHUNKS:
            command = [Path(sys.executable).with_name("mpiexec"), "-n", learners + 1, sys.executable]
            command += [HERE / "store_visits.py", chunks]
            done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, timeout=60)
            found.setdefault(str(learners), {})[str(chunks)] = float(done.stdout)
    LOCKS.write_text(json.dumps(found, indent=1) + "\n")


def picture(title: str, cases: list[dict], name: str) -> None:
    """A group over frames and over wall time."""
    figure, axes = panels(2)
    draw({title: cases}, "frames", axes[0], "frames of all learners")
    draw({title: cases}, "seconds", axes[1], "wall time [s]")
    figure.savefig(HERE.parent / f"learners_{name}.png", bbox_inches="tight")


def draw_locks() -> None:
    """The rates that `measure_locks` found."""
    found = json.loads(LOCKS.read_text())
    figure, axes = panels(1)
    print(f"\n| learners | {' | '.join(f'{chunks} chunks' for chunks in CHUNKS)} |\n|---{'|---' * len(CHUNKS)}|")
    for learners, rates in found.items():
        axes[0].plot([int(chunks) for chunks in rates], list(rates.values()), marker=".", label=f"{learners} learners")
        print(f"| {learners} | {' | '.join(f'{rate:.0f}' for rate in rates.values())} |")
    axes[0].set(
        title="visits to a store of 20 MB", xlabel="chunks", ylabel="visits of all learners [1/s]", ylim=(0, None)
    )
    axes[0].legend(fontsize=8)
    axes[0].grid(alpha=0.3)
    figure.savefig(HERE.parent / "learners_locks.png", bbox_inches="tight")


def draw_all() -> None:
    """Pictures and tables of all results that there are."""
    results = json.loads(RESULTS.read_text())
    for name, group in groups().items():
        if name not in results:
            continue
        picture(group.title, results[name], name)
        print(f"\n{group.title}\n\n{table(results[name], group.good)}\n")
        for case in results[name]:
            seconds, updates = np.mean([times[-1] for times in case["seconds"]]), np.mean(case["updates"])
            gradients = np.mean([sum(count for _, count in delays) for delays in case["delays"]])
            print(
                f"| {case['label']} | {seconds:.0f} s | {updates / seconds:,.0f} updates/s "
                f"| {gradients / updates:.2f} gradients per update |"
            )
    if LOCKS.exists():
        draw_locks()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", runs, *names]:
            run(Path(runs), names)
        case ["atari", runs]:
            run(Path(runs), ["atari"])
        case ["locks"]:
            measure_locks()
        case ["draw"]:
            draw_all()
