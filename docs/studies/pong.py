"""Pong by PPO and APPO on a workstation: curves over frames and over time, and when a mean return was reached.

    python docs/studies/pong.py read LABEL=RUN...     # adds to docs/studies/pong.json
    python docs/studies/pong.py draw                  # docs/pong_policy_gradients.png, and the table

Runs are those of `hpcrl train configs/pong_ppo.toml` and `configs/pong_appo.toml`, with `--set run.seed=S`.
"""

import json
import sys
from pathlib import Path

import numpy as np
from study import panels

from hpcrl.storage.runlog import read_runlog

HERE = Path(__file__).parent
RESULTS = HERE / "pong.json"
GOOD, EPISODES, POINTS = 18.0, 100, 120
FRAMES_PER_STEP = 4


def read(run_dir: Path) -> dict:
    """Mean return of the last 100 training episodes, in `POINTS` places along the run, and when it was first good."""
    episodes, progress = read_runlog(run_dir, "episodes"), read_runlog(run_dir, "progress")
    order = np.argsort(episodes["total_frames"], kind="stable")
    frames, returns = episodes["total_frames"][order], episodes["episode_return"][order]
    means = np.convolve(returns, np.full(EPISODES, 1 / EPISODES), "valid")
    at = frames[EPISODES - 1 :]
    seconds = np.interp(at, progress["total_frames"], progress["wall_seconds"])
    shown = np.unique(np.linspace(0, len(at) - 1, POINTS).astype(int))
    good = np.flatnonzero(means >= GOOD)
    return {
        "frames": at[shown].tolist(),
        "seconds": seconds[shown].round().tolist(),
        "mean_return_100": means[shown].round(2).tolist(),
        "good": [int(at[good[0]]), round(float(seconds[good[0]]))] if len(good) else None,
        "end": [int(progress["total_frames"][-1]), round(float(progress["wall_seconds"][-1]))],
        "best": round(float(means.max()), 2),
    }


def draw(results: dict[str, dict]) -> None:
    """The picture and the table."""
    figure, axes = panels(2)
    print(f"| | mean of {EPISODES} returns first {GOOD:g} | best | end |\n|---|---|---|---|")
    for label, one in results.items():
        axes[0].plot(np.array(one["frames"]) / FRAMES_PER_STEP / 1e6, one["mean_return_100"], label=label)
        axes[1].plot(np.array(one["seconds"]) / 60, one["mean_return_100"], label=label)
        print(f"| {label} | {_when(one['good'])} | {one['best']:.1f} | {_when(one['end'])} |")
    for axis, along in zip(axes, ("steps of all simulators [M]", "wall time [min]"), strict=False):
        axis.axhline(GOOD, color="black", linewidth=0.8, linestyle=":")
        axis.set(title="Pong", xlabel=along, ylabel=f"mean return of {EPISODES} episodes")
        axis.grid(alpha=0.3)
    axes[1].legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.02, 1))
    figure.savefig(HERE.parent / "pong_policy_gradients.png", bbox_inches="tight")


def _when(place: list[int] | None) -> str:
    if place is None:
        return "not reached"
    frames, seconds = place
    return f"{frames / FRAMES_PER_STEP / 1e6:.2f}M steps, {seconds / 60:.0f} min"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["read", *runs] if runs:
            found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
            found |= {label: read(Path(run)) for label, _, run in (told.partition("=") for told in runs)}
            RESULTS.write_text(json.dumps(found) + "\n")
        case ["draw"]:
            draw(json.loads(RESULTS.read_text()))
        case _:
            raise SystemExit(__doc__)
