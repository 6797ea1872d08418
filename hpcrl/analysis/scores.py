"""Published score tables, and scores put in relation to them.

Two tables of human scores are in use, and they differ by up to a factor of four on the same game: the one of the DQN
and Gorila papers (49 games, for each of two protocols), and a later one of 57 games. A result names its table, and no
function takes values of two.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from hpcrl.errors import ConfigError


class ScoreTable(NamedTuple):
    """Mean scores of several players on the same games, under one protocol."""

    name: str
    """``"gorila_noop"``, ``"gorila_human_starts"`` or ``"atari57_noop"``"""
    title: str
    protocol: str
    """how an episode starts: ``"noop"`` or ``"human starts"``"""
    source: str
    """where the numbers are from"""
    scores: Mapping[str, Mapping[str, float]]
    """player (``"random"``, ``"human"``, and in Gorila's tables ``"dqn"`` and ``"gorila"``) to game to score"""

    @property
    def games(self) -> list[str]:
        """Names of the games as ale-py writes them: ``"ms_pacman"``."""
        return list(self.scores["random"])

    def of(self, player: str) -> np.ndarray:
        """float64 ``[games]`` scores of a player, in the order of :attr:`games`.

        Raises
        ------
        ConfigError
            The table has no such player.
        """
        if player not in self.scores:
            raise ConfigError(f"score table {self.name}: expected one of {', '.join(self.scores)}, got {player!r}")
        return np.array([self.scores[player][game] for game in self.games])


def tables() -> tuple[str, ...]:
    """Names of the shipped tables."""
    return tuple(_shipped())


def table(name: str) -> ScoreTable:
    """A shipped table.

    Raises
    ------
    ConfigError
        There is none of that name.
    """
    if name not in _shipped():
        raise ConfigError(f"expected a score table ({', '.join(_shipped())}), got {name!r}")
    return ScoreTable(name, **_shipped()[name])


@cache
def _shipped() -> dict[str, dict]:
    return json.loads(files("hpcrl.analysis").joinpath("data/score_tables.json").read_text())


def normalise(score, random, reference):
    """``(score - random) / (reference - random)``: 0 as good as random play, 1 as good as the reference.

    With the human score as the reference, the human-normalised score of the DQN and Gorila papers (which write it in
    percent). It keeps their sign where the reference is below random play (see :func:`sign_flips`): published means
    contain it so. Numbers, or arrays of one shape.
    """
    return (np.asarray(score) - random) / (np.asarray(reference) - random)


def human_normalised(scores: ScoreTable, game: str, score):
    """:func:`normalise` with the random and human scores that a table gives for a game.

    Raises
    ------
    ConfigError
        The table does not have the game.
    """
    if game not in scores.scores["random"]:
        raise ConfigError(f"score table {scores.name} ({scores.title}) does not have the game {game!r}")
    return normalise(score, scores.scores["random"][game], scores.scores["human"][game])


def sign_flips(scores: ScoreTable, reference: str = "human") -> list[str]:
    """Games on which the reference is not better than random play, so that a better score normalises to a lower one.

    Against the human score one: Video Pinball with human starts (random 20,452, human 15,641).
    """
    below = scores.of(reference) <= scores.of("random")
    return [game for game, flips in zip(scores.games, below, strict=True) if flips]


def reaches(scores: ScoreTable, player: str, share: float, reference: str = "human") -> dict[str, bool]:
    """For each game, whether a player has at least ``share`` of the reference's lead over random play.

    Where the reference has no lead, whoever is better than random play has any share of it. By this rule the counts of
    the Gorila paper come out: of 75 % of the human score, of twice and of five times the DQN's.
    """
    random, other = scores.of("random"), scores.of(reference)
    gained, lead = scores.of(player) - random, other - random
    reached = np.where(lead > 0, gained >= share * lead, gained > 0)
    return dict(zip(scores.games, reached.tolist(), strict=True))


def beats(scores: ScoreTable, player: str, other: str) -> list[str]:
    """Games on which a player's score is greater than another's."""
    better = scores.of(player) > scores.of(other)
    return [game for game, is_better in zip(scores.games, better, strict=True) if is_better]
