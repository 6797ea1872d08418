"""One process against bundles, no-op and human starts (Gorila, section 5): ``python docs/starts.py RUNS [FRAMES]``.

Both train for the same number of frames of Road Runner, docs/starts.toml, from which the paper's question is asked in
small: who keeps more of what it scores from no-op starts, when it starts in games that somebody else has played? The
starts are of random play. What is done is not done again; the result is docs/measured/starts.json.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[1]
RESULT, CONFIG = ROOT / "docs" / "measured" / "starts.json", ROOT / "docs" / "starts.toml"
GAME, FRAMES, EPISODES, STARTS = "ALE/RoadRunner-v5", 400_000, 30, 30
PLAYERS = {"serial": 0, "bundled": 3}
"""Ranks of each; 0: without a launcher."""


def call(*arguments: object, ranks: int = 0) -> None:
    """Run hpcrl to its end."""
    command = [sys.executable, "-m", "hpcrl", *arguments]
    if ranks:
        command = [Path(sys.executable).with_name("mpiexec"), "-n", ranks, *command]
    if subprocess.run(list(map(str, command)), cwd=ROOT, check=False).returncode:
        raise SystemExit(f"failed: {command}")


def train(player: str, runs: Path, frames: int) -> None:
    """Train until the frames are played; a run that was stopped goes on."""
    keys = [f"run.total_frames={frames}", *(["topology.layout=serial"] if player == "serial" else [])]
    options = [part for key in keys for part in ("--set", key)]
    call("train", CONFIG, "--run-dir", runs / player, *options, ranks=PLAYERS[player])


def evaluate(player: str, runs: Path, protocol: str) -> dict[str, float]:
    """Mean, standard deviation and number of the episodes of a protocol."""
    file = runs / f"{player}-{protocol}.json"
    starts = ["--starts", runs / "starts.h5"] if protocol == "human" else []
    if not file.exists():
        how = ["--protocol", protocol, *starts, "--episodes", EPISODES, "--epsilon", "0.05"]
        call("evaluate", runs / player, *how, "--json", file)
    returns = np.array(json.loads(file.read_text())["returns"])
    return {"mean": float(returns.mean()), "deviation": float(returns.std(ddof=1)), "episodes": len(returns)}


def main(runs: Path, frames: int = FRAMES) -> None:
    runs.mkdir(parents=True, exist_ok=True)
    for player in PLAYERS:
        train(player, runs, frames)
    if not (runs / "starts.h5").exists():
        call("starts", "record", GAME, "--random", "--count", STARTS, "--output", runs / "starts.h5")
    players = {who: {protocol: evaluate(who, runs, protocol) for protocol in ("noop", "human")} for who in PLAYERS}
    record = {"game": "Road Runner", "training": f"{frames:,} frames each, one seed", "players": players}
    RESULT.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).resolve(), *map(int, sys.argv[2:]))
