"""The shipped score tables give the counts and means of the papers, and are never mixed."""

import numpy as np
import pytest

from hpcrl.analysis import scores
from hpcrl.analysis.scores import beats, human_normalised, normalise, reaches, sign_flips, table
from hpcrl.errors import ConfigError

HUMAN_STARTS, NOOP, ATARI57 = map(table, ("gorila_human_starts", "gorila_noop", "atari57_noop"))


def test_tables_name_their_source_and_protocol():
    assert scores.tables() == ("gorila_noop", "gorila_human_starts", "atari57_noop")
    assert [len(table(name).games) for name in scores.tables()] == [49, 49, 57]
    assert set(NOOP.games) == set(HUMAN_STARTS.games) < set(ATARI57.games)
    assert [table(name).protocol for name in scores.tables()] == ["noop", "human starts", "noop"]
    assert all(table(name).source for name in scores.tables())


def test_gorila_beats_dqn_on_41_games_with_human_starts_and_on_31_with_noops():
    assert len(beats(HUMAN_STARTS, "gorila", "dqn")) == 41
    assert len(beats(NOOP, "gorila", "dqn")) == 31
    lost = set(HUMAN_STARTS.games) - set(beats(HUMAN_STARTS, "gorila", "dqn"))
    assert lost == {
        "assault",
        "beam_rider",
        "enduro",
        "freeway",
        "hero",
        "kangaroo",
        "space_invaders",
        "star_gunner",
    }


def test_gorila_doubles_dqn_on_22_games_and_has_five_times_its_score_on_11():
    assert sum(reaches(HUMAN_STARTS, "gorila", 2, reference="dqn").values()) == 22
    assert sum(reaches(HUMAN_STARTS, "gorila", 5, reference="dqn").values()) == 11
    # Seven of them are games on which the DQN is no better than random play, where no ratio says anything.
    no_better_than_random = sign_flips(HUMAN_STARTS, "dqn")
    assert len(no_better_than_random) == 7
    assert sum(reaches(HUMAN_STARTS, "gorila", 5, reference="dqn")[game] for game in no_better_than_random) == 7


def test_gorila_has_three_quarters_of_the_human_score_on_25_games_one_of_them_video_pinball():
    reached = reaches(HUMAN_STARTS, "gorila", 0.75)
    by_formula = normalise(*map(HUMAN_STARTS.of, ("gorila", "random", "human"))) >= 0.75
    assert (by_formula.sum(), sum(reached.values())) == (24, 25)
    assert {game for game, yes in reached.items() if yes} - {
        game for game, yes in zip(HUMAN_STARTS.games, by_formula, strict=True) if yes
    } == {"video_pinball"}


def test_video_pinball_alone_has_a_human_below_random_play():
    assert sign_flips(HUMAN_STARTS) == ["video_pinball"]
    assert sign_flips(NOOP) == sign_flips(ATARI57) == []
    assert human_normalised(HUMAN_STARTS, "video_pinball", 112093.37) == pytest.approx(-19.05, abs=0.01)


@pytest.mark.parametrize(
    ("scored", "player", "mean", "median"),
    [
        (HUMAN_STARTS, "dqn", 122.2, 47.5),
        (HUMAN_STARTS, "gorila", 215.2, 71.3),
        (NOOP, "dqn", 241.1, 93.5),
        (NOOP, "gorila", 495.2, 96.4),
    ],
)
def test_published_means_and_medians_come_out(scored, player, mean, median):
    """The first two rows stand in Mnih et al. 2016, table 1."""
    percent = 100 * normalise(scored.of(player), scored.of("random"), scored.of("human"))
    assert percent.mean() == pytest.approx(mean, abs=0.05)
    assert np.median(percent) == pytest.approx(median, abs=0.05)


def test_the_two_human_tables_differ_so_a_score_needs_a_table():
    assert human_normalised(NOOP, "beam_rider", 5774.7) == 1
    assert human_normalised(ATARI57, "beam_rider", 5774.7) == pytest.approx(0.327, abs=0.001)
    for game in NOOP.games:
        assert NOOP.scores["random"][game] == ATARI57.scores["random"][game]


def test_what_a_table_does_not_have_is_an_error():
    with pytest.raises(ConfigError, match="gorila_noop.*does not have the game 'skiing'"):
        human_normalised(NOOP, "skiing", 0.0)
    with pytest.raises(ConfigError, match="expected one of random, human, got 'gorila'"):
        ATARI57.of("gorila")
    with pytest.raises(ConfigError, match="expected a score table"):
        table("atari")
