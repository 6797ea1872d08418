"""Acting and learning in the configured proportion."""

import pytest

from hpcrl.roles.ratio import LocalTally, TrainingRatio


def make(**keys):
    return TrainingRatio(
        LocalTally(), **({"intensity": 8.0, "batch_size": 32, "learning_starts": 0, "slack_updates": 0} | keys)
    )


def play(ratio, turns, steps=1):
    """Whoever may go goes, the learner first; the turns as a string of a and L."""
    turn = ""
    for _ in range(turns):
        if ratio.learner_due():
            ratio.add_update()
            turn += "L"
        elif ratio.actor_may_step():
            ratio.add_steps(steps)
            turn += "a"
    return turn


def test_eight_per_step_is_an_update_of_32_every_four_steps():
    assert play(make(), 15) == "aaaaL" * 3


@pytest.mark.parametrize(
    ("intensity", "batch_size", "steps", "expected"),
    [
        (8.0, 32, 4, "aLaLaL"),
        (8.0, 32, 8, "aLLaLL"),
        (64.0, 32, 1, "aLLaLL"),
        (1.0, 32, 16, "aaLaaL"),
        (12.0, 32, 4, "aLaLLa"),  # 1.5 updates for every step of four simulators
        (0.1, 1, 1, "aaaaaaaaaaLaaaaaaaaaaL"),
    ],
)
def test_strict_alternation(intensity, batch_size, steps, expected):
    ratio = make(intensity=intensity, batch_size=batch_size)
    assert play(ratio, len(expected), steps) == expected


def test_learning_starts_counts_from_the_last_step_before_it():
    assert play(make(learning_starts=5), 20) == "aaaaa" + "aaaaL" * 3
    ratio = make(learning_starts=5)
    ratio.add_steps(5)
    assert not ratio.learner_due()


def test_exactly_one_side_may_go_without_slack():
    ratio = make(intensity=5.0, batch_size=7)
    for _ in range(300):
        assert ratio.learner_due() != ratio.actor_may_step()
        play(ratio, 1, steps=3)
    owed = 5 * ratio.tally.steps() - ratio.tally.trained()
    assert 0 <= owed < 7 + 3 * 5


@pytest.mark.parametrize("slack", [0, 1, 3])
def test_slack_lets_actors_run_ahead_by_so_many_updates(slack):
    ratio = make(slack_updates=slack)
    steps = 0
    while ratio.actor_may_step():
        ratio.add_steps(1)
        steps += 1
    assert steps == 4 * (1 + slack)
    assert ratio.learner_due()
    ratio.add_update()
    assert ratio.actor_may_step()
    assert ratio.learner_due() == (slack > 0)


def test_when_it_only_reports_nobody_waits_but_learning_has_a_start():
    ratio = make(block=False, learning_starts=5)
    assert [ratio.learner_due(), ratio.actor_may_step()] == [False, True]
    ratio.add_steps(5)
    for _ in range(100):  # learning far ahead of acting
        assert ratio.learner_due()
        ratio.add_update()
    ratio.add_steps(10**6)  # and far behind
    assert ratio.actor_may_step()


def test_ranks_that_share_a_memory_share_its_tally():
    tally = LocalTally()
    actor, learner = (
        TrainingRatio(tally, intensity=8.0, batch_size=32, learning_starts=0, slack_updates=0) for _ in range(2)
    )
    actor.add_steps(4)
    assert learner.learner_due()
    learner.add_update()
    assert actor.actor_may_step()


def work_done(block, slowness):
    """What two actors and a learner get done in 1,000 units of time, if a step of the second actor takes
    ``slowness`` units, one of the first takes 1 and an update 2; who may not go looks again a little later."""
    tally = LocalTally()
    ratio = TrainingRatio(tally, intensity=1.0, batch_size=4, learning_starts=8, slack_updates=1, block=block)
    seconds = {"first": 1.0, "second": slowness, "learner": 2.0}
    free_at, done = dict.fromkeys(seconds, 0.0), dict.fromkeys(seconds, 0)
    while (now := min(free_at.values())) < 1000:
        who = min(free_at, key=free_at.get)
        may = ratio.learner_due() if who == "learner" else ratio.actor_may_step()
        free_at[who] = now + (seconds[who] if may else 0.1)
        done[who] += may
        if may:
            ratio.add_update() if who == "learner" else ratio.add_steps(1)
    return done


def test_one_actor_slowed_ten_times_leaves_everyone_elses_rate():
    evenly, slowed = work_done(block=False, slowness=1.0), work_done(block=False, slowness=10.0)
    assert (evenly["first"], evenly["second"]) == (1000, 1000)
    assert slowed["second"] == 100
    assert slowed["first"] == 1000
    assert abs(slowed["learner"] - evenly["learner"]) <= 2  # it starts a few steps later
    # Held at the intensity, the learner goes no further than the experience does.
    assert work_done(block=True, slowness=10.0)["learner"] < 0.6 * work_done(block=True, slowness=1.0)["learner"]
