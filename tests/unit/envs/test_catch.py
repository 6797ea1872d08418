"""Catch: its rules, both kinds of autoreset, and a save in the middle of an episode."""

import numpy as np
import pytest
from acting import drive, transitions

from hpcrl.envs import env_spec, make_env
from hpcrl.errors import ConfigError


def make(num_envs=3, seed=1, **keys):
    return make_env(num_envs, np.random.SeedSequence(seed), id="catch", **({"stack": 1} | keys))


def ball_and_paddle(frame):
    """Row and column of the ball, column of the paddle, of a frame with the ball above the bottom row."""
    (row,), (column,) = np.nonzero(frame[:-1])
    return row, column, int(np.flatnonzero(frame[-1])[0])


def test_spec():
    spec = env_spec(id="catch", stack=1, kwargs={"rows": 8, "columns": 6})
    assert spec == make(kwargs={"rows": 8, "columns": 6}).spec
    assert spec == ((8, 6), np.dtype(np.uint8), 1, 3, 1, False)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_following_the_ball_always_catches_it(autoreset):
    env = make(num_envs=4, autoreset=autoreset)
    frame, episodes = env.reset(), 0
    for _ in range(60):
        actions = np.ones(4, np.int64)
        for e in range(4):
            if np.count_nonzero(frame[e]) == 2 and not frame[e][-1].all():
                lit = np.argwhere(frame[e])
                if lit[0][0] < 9:
                    _, column, paddle = ball_and_paddle(frame[e])
                    actions[e] = 1 + np.sign(column - paddle)
        step = env.step(actions)
        episodes += step.episode_over.sum()
        assert (step.reward == step.episode_over).all()
        frame = step.frame
    assert episodes == 24  # 60 steps: six episodes of 9 steps and, with NEXT_STEP, six resets


def test_an_episode_step_by_step():
    env = make(num_envs=1)
    row, column, paddle = ball_and_paddle(env.reset()[0])
    assert (row, paddle) == (0, 2)
    for t in range(1, 9):
        step = env.step(np.array([0]))
        assert ball_and_paddle(step.frame[0]) == (t, column, max(0, 2 - t))
        assert not step.episode_over[0]
        assert step.reward[0] == 0
    step = env.step(np.array([0]))
    assert step.terminated[0]
    assert step.episode_over[0]
    assert not step.truncated[0]
    assert step.reward[0] == (1 if column == 0 else -1)
    assert step.final_frame[0][-1, column] == 255
    step = env.step(np.array([0]))
    assert step.reset[0]
    assert (step.reward[0], step.episode_over[0]) == (0, False)
    assert ball_and_paddle(step.frame[0])[::2] == (0, 2)


@pytest.mark.parametrize("stack", [1, 3])
def test_both_autoresets_record_the_same_episodes(stack):
    """The same balls fall: SAME_STEP saves the step that only resets, nothing else differs."""
    actions = np.random.default_rng(0).integers(3, size=(100, 1))
    next_step = transitions(drive(make(num_envs=1, stack=stack), np.repeat(actions, 1, axis=0)), 0)
    played = np.delete(actions, np.arange(9, 100, 10), axis=0)
    same_step = transitions(drive(make(num_envs=1, stack=stack, autoreset="same_step"), played), 0)
    assert len(next_step) >= 89
    assert next_step[:89] == same_step[:89]


def test_the_stack_is_zero_before_the_first_frame():
    env = make(num_envs=1, stack=3)
    env.reset()
    assert not env.observation[0, :2].any()
    for _ in range(10):
        before = env.observation
        step = env.step(np.array([1]))
        if not step.reset[0]:
            np.testing.assert_array_equal(env.observation[:, :2], before[:, 1:])
        np.testing.assert_array_equal(env.observation[:, -1], step.frame)
    assert step.reset[0]
    assert not env.observation[0, :2].any()


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_a_restored_game_goes_on_exactly(autoreset):
    env, other = make(autoreset=autoreset), make(seed=2, autoreset=autoreset)
    env.reset()
    actions = np.random.default_rng(3).integers(3, size=(60, 3))
    for action in actions[:29]:
        env.step(action)
    other.restore({name: array.copy() for name, array in env.state().items()})
    np.testing.assert_array_equal(env.observation, other.observation)
    for action in actions[29:]:
        for mine, its in zip(env.step(action), other.step(action), strict=True):
            np.testing.assert_array_equal(mine, its)


def test_seeds_decide_the_balls():
    def columns(seed):
        env = make(num_envs=50, seed=seed)
        return env.reset().argmax(axis=2)[:, 0].tolist()

    assert columns(1) == columns(1)
    assert columns(1) != columns(2)
    assert set(columns(1)) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("kwargs", [{"row": 3}, {"rows": 1}])
def test_wrong_kwargs(kwargs):
    with pytest.raises(ConfigError, match=r"env\.kwargs: catch"):
        make(kwargs=kwargs)


def test_wrong_autoreset():
    with pytest.raises(ConfigError, match='expected "next_step" or "same_step", got "never"'):
        make(autoreset="never")
