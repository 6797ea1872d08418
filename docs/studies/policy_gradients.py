"""Policy gradients on CartPole in small: simulators, lag, and learners that wait for each other or not.

    python docs/studies/policy_gradients.py run runs/studies GROUP...   # writes docs/studies/policy_gradients.json
    python docs/studies/policy_gradients.py draw                        # docs/policy_gradients.png, and the tables

Groups are ``lag``, ``simulators`` (of A3C and APPO: ``asynchronous``), ``learners`` and ``periods``; those that are not
named stay as they are. Needs mpiexec beside this Python, and matplotlib.
"""

import json
from pathlib import Path

import numpy as np
from study import Case, Results, collect, draw, last_quarter, main, panels, save

from hpcrl.storage.runlog import read_runlog

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
RESULTS = HERE / "policy_gradients.json"
SHORT, LONG = 60_000, 200_000
FRAMES = {"lag": SHORT, "simulators": LONG, "asynchronous": LONG, "learners": SHORT, "periods": SHORT}
SEEDS = (1, 2, 3)
LAGS = (0, 4, 16)
SIMULATORS = (8, 32, 128, 256)
ROLLOUT_STEPS = 1024
"""of PPO's simulators together, whatever their number"""
ALONE = ("topology.layout=serial", "topology.simulator_ranks=0", "learning.update=server")


def length(frames: int) -> tuple[str, str]:
    """Of a run, and of the fall of its learning rate."""
    return f"run.total_frames={frames}", f"learning.learning_rate_decay_length={frames}"


def lagging(algorithm: str, lag: int) -> Case:
    """One process whose actor's policy is so many updates old."""
    overrides = (
        *length(SHORT),
        *ALONE,
        f"learning.algorithm={algorithm}",
        f"policy.lag_updates={lag}",
        "policy.rollouts=1",
    )
    return Case(f"lag {lag}", CONFIGS / "cartpole_impala.toml", 0, overrides)


def simulating(name: str, simulators: int) -> Case:
    """So many simulators in one process, or of both learners; A2C's rate grows with the root of their number.

    PPO's rollouts stay as large as they are. A2C's and A3C's get larger, as they are as long as before.
    """
    ranks, overrides = (0, (*length(LONG), "topology.evaluators=0"))
    if name in ("a3c", "appo"):
        ranks, overrides = 3, length(LONG)
    overrides += (f"env.simulators={simulators // 2 if ranks else simulators}",)
    if name in ("ppo", "appo"):
        overrides += (f"policy.horizon_steps={max(2, ROLLOUT_STEPS // simulators)}",)
    elif name == "a2c":
        overrides += ("policy.gradient_diversity=true", "learning.learning_rate_scaling=sqrt")
        overrides += ("learning.learning_rate_scaling_by=simulators", "learning.learning_rate_scaling_reference=16")
    return Case(f"{simulators} simulators", CONFIGS / f"cartpole_{name}.toml", ranks, overrides)


def learning(label: str, config: str, ranks: int, *overrides: str) -> Case:
    """Two learners."""
    return Case(label, CONFIGS / config, ranks, (*length(SHORT), *overrides))


TOGETHER = ("topology.layout=sampler_learner", "topology.evaluators=0", "learning.update=allreduce")
GROUPS: dict[str, dict[str, list[Case]]] = {
    "lag": {
        "IMPALA, policy older by [updates]": [lagging("impala", lag) for lag in LAGS],
        "GA3C, policy older by [updates]": [lagging("ga3c", lag) for lag in LAGS],
    },
    "simulators": {
        "PPO": [simulating("ppo", count) for count in (*SIMULATORS, 512)],
        "A2C": [simulating("a2c", count) for count in SIMULATORS],
    },
    "asynchronous": {
        "A3C, 2 learners": [simulating("a3c", count) for count in SIMULATORS],
        "APPO, 2 learners": [simulating("appo", count) for count in SIMULATORS],
    },
    "learners": {
        "A2C and A3C, 2 learners": [
            learning("A2C", "cartpole_a3c.toml", 2, *TOGETHER),
            learning("A3C", "cartpole_a3c.toml", 3),
        ],
        "PPO and APPO, 2 learners": [
            learning("PPO", "cartpole_appo.toml", 2, *TOGETHER, "learner.sync_period_updates=1"),
            learning("APPO", "cartpole_appo.toml", 3),
        ],
    },
    "periods": {
        "APPO, updates between two visits to the store": [
            learning(f"{n} updates", "cartpole_appo.toml", 3, f"learner.sync_period_updates={n}") for n in (1, 4, 16)
        ],
    },
}


def policies(run_dir: Path, _: np.ndarray) -> dict[str, float | None]:
    """Mean lag [updates], and diversity of the gradients of halves in the second half of a run; None: not known."""
    rows = read_runlog(run_dir, "policies")
    late = rows["global_update"] > rows["global_update"].max() / 2
    found = {}
    for name, chosen in (("lag", slice(None)), ("diversity", late)):
        values = rows[name][chosen]
        found[name] = round(float(np.nanmean(values)), 3) if np.isfinite(values).any() else None
    return found


def run(directory: Path, names: list[str]) -> None:
    """Make the groups anew, and keep the others."""
    results: Results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in names:
        results |= collect(GROUPS[name], SEEDS, directory, FRAMES[name], more=policies)
        save(results, RESULTS)


def table(cases: list[dict]) -> str:
    """Returns of the last quarter of each seed, and what else is known."""
    lines = ["| | return of the last quarter | mean | lag [updates] | gradient diversity |", "|---|---|---|---|---|"]
    for case in cases:
        mean = np.nanmean([returns[-len(returns) // 4 :] for returns in case["returns"]])
        known = [
            f"{np.mean(values):.2f}" if None not in (values := case[name]) else "" for name in ("lag", "diversity")
        ]
        lines.append(f"| {case['label']} | {last_quarter(case, digits=0)} | {mean:.0f} | {' | '.join(known)} |")
    return "\n".join(lines)


def picture(results: Results) -> None:
    """All groups over frames, and those of two learners over time too."""
    timed = [title for title in results if title in GROUPS["learners"]]
    figure, axes = panels(len(results) + len(timed))
    for axis, title in zip(axes, results, strict=False):
        draw({title: results[title]}, "frames", axis, "frames")
    for axis, title in zip(axes[len(results) :], timed, strict=False):
        draw({title: results[title]}, "seconds", axis, "wall time [s]")
    figure.savefig(HERE.parent / "policy_gradients.png")


if __name__ == "__main__":
    main(RESULTS, list(GROUPS), run, picture, table)
