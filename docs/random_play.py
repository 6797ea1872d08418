"""Random play beside the published scores: ``python docs/random_play.py [GAME ...]`` plays what is not there yet.

Each game is 60 episodes of the no-op protocol, a new action every 6th frame, as published. What came out is kept in
docs/measured/random/GAME.json, as `hpcrl evaluate --json` writes it; the table in docs/evaluation.md is made of these
files.
"""

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.analysis.runs import game_name
from hpcrl.analysis.scores import table

ROOT = Path(__file__).parents[1]
FILES, PAGE = ROOT / "docs" / "measured" / "random", ROOT / "docs" / "evaluation.md"
GAMES = (
    *("Asterix", "BeamRider", "Boxing", "Breakout", "Freeway", "MsPacman", "Pong", "Qbert", "Seaquest"),
    "SpaceInvaders",
)
EPISODES, PUBLISHED_EPISODES = 60, 30


class Row(NamedTuple):
    """What came of a game."""

    game: str
    mean: float
    deviation_of_episodes: float
    episodes: int
    published: float
    deviation: float
    """in standard errors of the difference, the published score taken as a mean of 30 episodes of the same spread"""


def rows() -> list[Row]:
    """Of all games that were played, by name."""
    found = []
    for file in sorted(FILES.glob("*.json")):
        record = json.loads(file.read_text())
        returns, published = np.array(record["returns"]), table("gorila_noop").scores["random"]
        expected = published[game_name(record["environment"])]
        error = returns.std(ddof=1) * np.sqrt(1 / len(returns) + 1 / PUBLISHED_EPISODES)
        off = float(returns.mean() - expected)
        deviation = off / error if error else 0.0
        found.append(
            Row(file.stem, float(returns.mean()), float(returns.std(ddof=1)), len(returns), expected, deviation)
        )
    return found


def lines() -> str:
    """The end of the page: the table, and what it comes to."""
    played = rows()
    head = "| game | mean | standard deviation | episodes | published | deviation |\n|---|---|---|---|---|---|\n"
    body = "".join(
        f"| {row.game} | {row.mean:,.2f} | {row.deviation_of_episodes:,.2f} | {row.episodes} | {row.published:,g} | "
        f"{row.deviation:+.1f} |\n"
        for row in played
    )
    greatest = max(abs(row.deviation) for row in played)
    told = f"The greatest of these {len(played)} deviations is {greatest:.1f} standard errors.\n"
    return f"{head}{body}\n{told}"


def page() -> str:
    """docs/evaluation.md with the table of the files at its end."""
    return re.sub(r"\| game \| mean \|.*\Z", lambda _: lines(), PAGE.read_text(), flags=re.S)


def main(games: list[str]) -> None:
    from hpcrl.launch import evaluate

    FILES.mkdir(parents=True, exist_ok=True)
    how = {"protocol": "noop", "episodes": EPISODES, "epsilon": None, "seed": 1}
    for game in games or GAMES:
        file = FILES / f"{game}.json"
        if not file.exists():
            player = evaluate.random_player(f"ALE/{game}-v5")
            evaluate.main(player, **how, starts_file=None, max_episode_frames=None, output=file)
    PAGE.write_text(page())


if __name__ == "__main__":
    main(sys.argv[1:])
