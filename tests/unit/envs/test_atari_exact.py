"""Atari on single emulators: the same games as ale-py's vector environment gives, and a state that can be put back."""

import numpy as np
import pytest

from hpcrl.envs import make_env
from hpcrl.errors import ConfigError, StorageError

NOISY = {"noop_max": 5, "sticky_probability": 0.25, "life_loss": "terminate", "fire_reset": True}


def make(game="Breakout", num_envs=2, seed=1, exact=True, **keys):
    sequence = np.random.SeedSequence(seed)
    return make_env(num_envs, sequence, id=f"ALE/{game}-v5", exact=exact, **({"stack": 4} | keys))


def fields(step, env):
    return [*step, env.observation]


@pytest.mark.parametrize(
    ("game", "keys"),
    [
        ("Breakout", {"fire_reset": True, "life_loss": "terminate"}),
        ("MsPacman", {"full_action_space": True, "max_episode_frames": 202}),  # truncated within a step
        ("Pong", {"frame_skip": 3, "max_episode_frames": 300}),
        ("Seaquest", {"frame_skip": 1, "stack": 1}),
        ("Freeway", {"screen": "104x80"}),
        ("Boxing", {"screen": "104x80"}),
        ("Freeway", {"stuck_frames": 50}),
        ("Pong", {"random_start_steps": 12}),
        ("Pong", {"kwargs": {"img_height": 50, "img_width": 100}}),
        ("Pong", {"kwargs": {"img_height": 210, "img_width": 160}, "max_episode_frames": 60}),
    ],
)
def test_without_random_numbers_it_equals_the_vector_environment(game, keys):
    exact, vector = make(game, **keys), make(game, exact=False, **keys)
    assert exact.spec == vector.spec
    np.testing.assert_array_equal(exact.reset(), vector.reset())
    rng, ends = np.random.default_rng(0), 0
    for _ in range(120):
        actions = rng.integers(vector.spec.num_actions, size=2)
        steps = exact.step(actions), vector.step(actions)
        for ours, theirs in zip(fields(steps[0], exact), fields(steps[1], vector), strict=True):
            np.testing.assert_array_equal(ours, theirs, strict=True)
        ends += np.count_nonzero(steps[0].terminated | steps[0].truncated)
    if "max_episode_frames" in keys or game == "Breakout":
        assert ends >= 2


@pytest.mark.parametrize("cut", [0, 59, 60, 61, 100])
def test_a_restored_environment_goes_on_bit_for_bit(cut):
    keys = {"max_episode_frames": 240, **NOISY}  # an episode of 60 steps, then a reset
    first, second = make(seed=1, **keys), make(seed=2, **keys)
    rng = np.random.default_rng(cut)
    first.reset()
    second.reset()
    for _ in range(cut):
        first.step(rng.integers(4, size=2))
    for _ in range(7):
        second.step(rng.integers(4, size=2))
    state = {name: np.array(value) for name, value in first.state().items()}
    assert all(value.dtype.kind in "biu" for value in state.values())
    second.restore(state)
    np.testing.assert_array_equal(first.observation, second.observation)
    for _ in range(70):
        actions = rng.integers(4, size=2)
        steps = first.step(actions), second.step(actions)
        for ours, theirs in zip(fields(steps[0], first), fields(steps[1], second), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_frames_that_were_handed_out_are_never_written_to_again():
    env = make()
    kept = [env.reset(), env.observation]
    copies = [array.copy() for array in kept]
    state = {name: value.copy() for name, value in env.state().items()}
    for _ in range(5):
        env.step(np.ones(2, np.int64))
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
    env.restore(state)
    np.testing.assert_array_equal(env.observation, copies[1])


def test_sticky_actions_repeat_the_one_before_with_the_given_probability():
    env = make("Pong", 1, sticky_probability=0.25)
    env.reset()
    held, repeats, changes = env._env._held, 0, 0
    act = env._env._act

    def watched(e, action):
        nonlocal repeats, changes
        before = held[e]
        reward = act(e, action)
        if action != before:
            changes += 1
            repeats += held[e] == before
        return reward

    env._env._act = watched
    for k in range(300):
        env.step(np.array([2 + k % 2]))
    # Every step asks for another action than the one before; each frame until it is taken repeats with p = 0.25.
    assert changes > 300
    assert repeats / changes == pytest.approx(0.25, abs=0.07)


@pytest.mark.parametrize("spoil", [lambda d: d[:100], lambda d: np.zeros_like(d), lambda d: d[:0]])
def test_what_is_no_state_is_a_clear_error(spoil):
    env = make(num_envs=1)
    env.reset()
    state = env.state()
    state["emulators"] = spoil(state["emulators"])
    state["emulator_bytes"] = np.array([state["emulators"].size])
    with pytest.raises(StorageError, match="a simulator cannot be restored"):
        env.restore(state)


def test_only_a_step_of_its_own_resets():
    with pytest.raises(ConfigError, match="next_step"):
        make(autoreset="same_step")
