"""Two learners in each way of updating, rarer visits to the store, and its locks; the pictures of learners.md.

    python docs/studies/learners.py run runs/studies        # writes docs/studies/learners.json
    python docs/studies/learners.py locks                   # writes docs/studies/locks.json; one minute
    python docs/studies/learners.py draw                    # docs/learners_*.png, and the tables

Needs mpiexec beside this Python, and matplotlib.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from study import Case, Results, collect, draw, panels, save, table

HERE = Path(__file__).parent
CONFIG = HERE.parents[1] / "configs" / "catch_bundled.toml"
SEEDS = (1, 2)
FRAMES, GOOD = 16_000, 0.9
WAYS, PERIODS = "2 learners", "updates between two visits to the store, 2 learners"
COMMON = (f"run.total_frames={FRAMES}", "exploration.decay_length=4000")
CHUNKS, LEARNERS = (1, 2, 3, 6, 12), (1, 2, 4)


def groups() -> dict[str, list[Case]]:
    """What is compared, by title."""
    store = "learning.update=store"
    # An update is of both learners' minibatches: of half the size, so that all make as many updates per frame.
    synchronous = ("topology.layout=sampler_learner", "learning.update=allreduce", "learning.batch_size=16")
    return {
        WAYS: [
            Case("serial DQN", CONFIG, 0, (*COMMON, "topology.layout=serial")),
            Case("server (asynchronous)", CONFIG, 3, COMMON),
            Case("store (asynchronous)", CONFIG, 3, (*COMMON, store)),
            Case("allreduce (synchronous)", CONFIG, 2, (*COMMON, *synchronous)),
        ],
        PERIODS: [
            Case(f"n = {n}", CONFIG, 3, (*COMMON, store, *((f"learner.sync_period_updates={n}",) if n > 1 else ())))
            for n in (1, 4, 16, 64)
        ],
    }


def measure_locks() -> None:
    """Visits per second to all chunks of a store, by numbers of chunks and of learners that do nothing else."""
    found: dict[str, dict[str, float]] = {}
    for learners in LEARNERS:
        for chunks in CHUNKS:
            command = [Path(sys.executable).with_name("mpiexec"), "-n", learners + 1, sys.executable]
            command += [HERE / "store_visits.py", chunks]
            done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True, timeout=60)
            found.setdefault(str(learners), {})[str(chunks)] = float(done.stdout)
    (HERE / "locks.json").write_text(json.dumps(found, indent=1) + "\n")


def picture(results: Results, name: str) -> None:
    """A group over frames and over wall time."""
    figure, axes = panels(2)
    draw(results, "frames", axes[0], "frames of all learners")
    draw(results, "seconds", axes[1], "wall time [s]")
    figure.savefig(HERE.parent / f"learners_{name}.png", bbox_inches="tight")


def draw_locks() -> None:
    """The rates that `measure_locks` found."""
    found = json.loads((HERE / "locks.json").read_text())
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
    results = json.loads((HERE / "learners.json").read_text())
    for title, name in ((WAYS, "ways"), (PERIODS, "periods")):
        picture({title: results[title]}, name)
        print(f"\n{title}\n\n{table(results[title], GOOD)}\n")
        for case in results[title]:
            seconds = np.mean([times[-1] for times in case["seconds"]])
            updates = np.mean(case["updates"])
            print(f"| {case['label']} | {FRAMES / seconds:,.0f} frames/s | {updates / seconds:,.0f} updates/s |")
    if (HERE / "locks.json").exists():
        draw_locks()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", runs]:
            save(collect(groups(), SEEDS, Path(runs) / "learners", FRAMES), HERE / "learners.json")
        case ["locks"]:
            measure_locks()
        case ["draw"]:
            draw_all()
