"""Atari through ale-py: frame counts, lives, raw rewards, truncation, seeds."""

import builtins
import os
import sys

import ale_py
import numpy as np
import pytest
from acting import drive

from hpcrl.envs import env_spec, make_env
from hpcrl.errors import ConfigError


def make(game="Breakout", num_envs=2, seed=1, **keys):
    return make_env(num_envs, np.random.SeedSequence(seed), id=f"ALE/{game}-v5", **({"stack": 4} | keys))


def spy(env):
    """The infos of ale-py behind each later step of ``env``."""
    infos, receive = [], env._env.recv

    def recorded():
        result = receive()
        infos.append(result[-1])
        return result

    env._env.recv = recorded
    return infos


def play(env, steps, seed=0):
    """Random steps; yields each with the observation after it."""
    rng = np.random.default_rng(seed)
    env.reset()
    for _ in range(steps):
        yield env.step(rng.integers(env.spec.num_actions, size=env.num_envs)), env.observation


@pytest.mark.parametrize(
    ("game", "full", "num_actions"), [("Pong", False, 6), ("MsPacman", False, 9), ("Pong", True, 18)]
)
def test_spec(game, full, num_actions):
    spec = env_spec(id=f"ALE/{game}-v5", stack=4, full_action_space=full)
    assert spec == ((84, 84), np.dtype(np.uint8), 4, num_actions, 4, False)
    assert spec == make(game, 1, full_action_space=full).spec


def direct_frames(game, actions):
    """Frames of 104x80 computed from the emulator's own screens: grey, maximum of the last two, two rows cropped below,
    means of two by two pixels, halves rounded up."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.setInt("random_seed", 0)
    ale.loadROM(ale_py.roms.get_rom_path(game))
    ale.reset_game()
    moves = ale.getMinimalActionSet()
    for action in actions:
        screens = []
        for _ in range(4):
            ale.act(moves[action])
            screens.append(ale.getScreenGrayscale())
        pooled = np.maximum(screens[-2], screens[-1])[:-2].astype(int)
        blocks = pooled.reshape(104, 2, 80, 2).sum(axis=(1, 3))
        yield (blocks + 2) // 4


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("game", ["Pong", "Freeway", "Boxing", "MsPacman"])
def test_halved_screens_equal_a_direct_computation(game, exact):
    """Accelerated Methods, section A.1; on recorded screens of 80 steps."""
    env = make(game, 1, screen="104x80", exact=exact)
    assert env.spec == env_spec(id=f"ALE/{game}-v5", stack=4, screen="104x80")
    assert env.reset().shape == (1, 104, 80)
    actions = np.random.default_rng(1).integers(env.spec.num_actions, size=80)
    rom = {"MsPacman": "ms_pacman"}.get(game, game.lower())
    for action, expected in zip(actions, direct_frames(rom, actions), strict=True):
        step = env.step(np.array([action]))
        np.testing.assert_array_equal(step.frame[0], expected)
        np.testing.assert_array_equal(env.observation[0, -1], expected)


def test_screens_that_cannot_be_halved_to_104x80_are_refused():
    with pytest.raises(ConfigError, match=r'env.screen: expected "84x84" for ALE/JourneyEscape-v5, .* 230x160'):
        env_spec(id="ALE/JourneyEscape-v5", stack=4, screen="104x80")
    with pytest.raises(ConfigError, match="env.kwargs: expected none of img_height and img_width"):
        env_spec(id="ALE/Pong-v5", stack=4, screen="104x80", kwargs={"img_height": 50})


def test_an_episode_without_reward_is_truncated_when_it_is_stuck():
    """A chicken that never moves: 40 frames are 10 steps, then a reset in a step of its own; the game goes on."""
    env = make("Freeway", stuck_frames=40)
    infos = spy(env)
    env.reset()
    ends, resets = [], []
    for t in range(34):
        step = env.step(np.zeros(2, np.int64))
        assert not step.terminated.any()
        np.testing.assert_array_equal(step.truncated, step.episode_over)
        ends += [t] if step.truncated.all() else []
        resets += [t] if step.reset.all() else []
        assert step.truncated.all() == step.truncated.any()
        if step.reset.all():
            assert not env.observation[:, :3].any()
    assert ends == [9, 20, 31]
    assert resets == [10, 21, 32]
    assert (infos[-1]["episode_frame_number"] <= 8).all()


def test_a_reward_ends_the_wait_for_one():
    env = make("Pong", 1, stuck_frames=400)
    waited = np.zeros(1, int)
    for step, _ in play(env, 260):
        waited = np.where((step.reward == 0) & ~step.reset, waited + 1, 0)
        assert step.truncated[0] == (waited[0] >= 100)
        assert waited[0] <= 100


def test_random_starts_are_out_of_phase_and_repeat_with_the_seed():
    """Episodes are cut after 30 steps; simulators that have begun up to 20 of them earlier are cut so much sooner."""

    def first_ends(seed):
        env, ends = make("Pong", 6, seed, random_start_steps=20, max_episode_frames=120), np.zeros(6, int)
        for t, (step, _) in enumerate(play(env, 30)):
            ends[step.truncated & (ends == 0)] = t + 1
        return ends

    ends = first_ends(3)
    assert ((ends >= 10) & (ends <= 30)).all()
    assert len(set(ends)) >= 3  # of 6 draws from 21
    np.testing.assert_array_equal(ends, first_ends(3))


def test_a_second_reset_has_no_random_starts():
    env = make("Freeway", 2, random_start_steps=20, max_episode_frames=120)
    env.reset()
    steps = [step.truncated.any() for step, _ in play(env, 29)]
    assert not any(steps)


def test_a_step_is_four_emulator_frames():
    env = make("Pong")
    infos = spy(env)
    for step, _ in play(env, 50):
        assert not step.episode_over.any()
    counts = np.array([info["frame_number"] for info in infos])
    assert len(counts) == 50
    assert (np.diff(counts, axis=0) == 4).all()


def test_arrays_types_and_the_newest_frame():
    env = make()
    frame = env.reset()
    assert (frame.shape, frame.dtype) == ((2, 84, 84), np.uint8)
    assert not env.observation[:, :3].any()
    kept, copy = frame, frame.copy()
    before = env.observation
    for step, observation in play(env, 6):
        assert step.reward.dtype == np.float32
        np.testing.assert_array_equal(observation[:, -1], step.frame)
        before = observation
    step = env.step(np.zeros(2, np.int64))
    np.testing.assert_array_equal(env.observation[:, :3], before[:, 1:])
    np.testing.assert_array_equal(kept, copy)


def test_rewards_are_raw():
    rewards = {float(reward) for step, _ in play(make("MsPacman"), 150) for reward in step.reward}
    assert max(rewards) >= 10


@pytest.mark.parametrize(
    ("life_loss", "autoreset"), [("terminate", "next_step"), ("terminate", "same_step"), ("ignore", "next_step")]
)
def test_a_game_of_five_lives_has_one_end(life_loss, autoreset):
    env = make(life_loss=life_loss, autoreset=autoreset, fire_reset=True)
    terminated, games = np.zeros(2, int), np.zeros(2, int)
    for step, observation in play(env, 500):
        terminated += step.terminated
        assert not step.truncated.any()
        for e in np.flatnonzero(step.episode_over):
            assert step.terminated[e]
            assert terminated[e] == (5 if life_loss == "terminate" else 1)
            terminated[e] = 0
            games[e] += 1
        for e in np.flatnonzero(step.terminated & ~step.episode_over):
            assert observation[e].any(axis=(1, 2)).all()  # the game, and its history, go on
        if autoreset == "same_step":
            assert not step.reset.any()
    assert (games >= 1).all()


def test_next_step_reset():
    env = make(num_envs=1)
    over = False
    for step, observation in play(env, 900):
        assert step.reset[0] == over
        if over:
            assert (step.reward[0], step.terminated[0], step.truncated[0]) == (0, False, False)
            assert not observation[0, :3].any()
            break
        over = bool(step.episode_over[0])
    else:
        pytest.fail("no game ended")


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_the_frame_limit_truncates(autoreset):
    env = make("Pong", max_episode_frames=40, autoreset=autoreset)
    lanes = drive(env, np.zeros((33, 2), np.int64))
    for lane in range(2):
        written = lanes.memory[lane, : lanes.cursors.committed()[lane]]
        assert np.flatnonzero(written["truncated"]).tolist() == [9, 20, 31]
        assert np.flatnonzero(written["final"]).tolist() == [10, 21, 32]
        assert not written["terminated"].any()
        assert written["frame"][10].any()


def test_both_autoresets_record_the_same_games():
    """Sticky actions and no-ops included: only the step that resets is saved."""
    keys = {"max_episode_frames": 40, "sticky_probability": 0.25, "noop_max": 30}
    actions = np.random.default_rng(2).integers(6, size=(33, 2))
    next_step = drive(make("Pong", **keys), actions)
    same_step = drive(make("Pong", autoreset="same_step", **keys), np.delete(actions, [10, 21, 32], axis=0))
    for lane in range(2):
        assert next_step.memory[lane, :33].tobytes() == same_step.memory[lane, :33].tobytes()


def test_a_life_lost_on_the_frame_limit_is_a_termination():
    """Where and when a life is lost is found first; then the limit is put on that step."""
    keys = {"num_envs": 1, "life_loss": "terminate", "fire_reset": True}
    lost = next(t for t, (step, _) in enumerate(play(make(**keys), 300)) if step.terminated[0])
    *_, (step, _) = play(make(max_episode_frames=4 * (lost + 1), **keys), lost + 1)
    assert (step.terminated[0], step.truncated[0], step.episode_over[0]) == (True, False, True)


class Script:
    """Stands for ale-py: returns (terminated, truncated, lives) line by line for one simulator."""

    def __init__(self, lines):
        self._lines = iter(lines)

    def send(self, actions):
        pass

    def recv(self):
        terminated, truncated, lives = next(self._lines)
        obs = np.zeros((1, 4, 84, 84), np.uint8)
        ends = np.array([terminated], bool), np.array([truncated], bool)
        return obs, np.zeros(1, np.int32), *ends, {"lives": np.array([lives]), "final_obs": obs}


@pytest.mark.parametrize(
    ("autoreset", "lines", "terminated"),
    [
        # No lives are left for two steps before the game is over, then it is reset.
        ("next_step", [(0, 0, 2), (0, 0, 1), (0, 0, 0), (1, 0, 0), (0, 0, 3), (0, 0, 2)], [0, 1, 0, 1, 0, 1]),
        # A player who has won a life is cut off and reset to fewer.
        ("next_step", [(0, 0, 2), (0, 0, 4), (0, 1, 4), (0, 0, 3), (0, 0, 3)], [0, 0, 0, 0, 0]),
        ("same_step", [(0, 0, 2), (0, 0, 4), (0, 1, 3), (0, 0, 3), (0, 0, 2)], [0, 0, 0, 0, 1]),
    ],
)
def test_which_lives_count_as_lost(autoreset, lines, terminated):
    env = make(num_envs=1, life_loss="terminate", autoreset=autoreset)
    env._env, env._lives = Script(lines), np.array([2])
    steps = [env.step(np.zeros(1, np.int64)) for _ in lines]
    assert [int(step.terminated[0]) for step in steps] == terminated
    assert [bool(step.episode_over[0]) for step in steps] == [bool(over or cut) for over, cut, _ in lines]


def test_no_ops_are_at_most_noop_max():
    env = make("Pong", 1, noop_max=2)
    counts = {int(env._env.reset(seed=np.array([seed]))[1]["episode_frame_number"][0]) for seed in range(12)}
    least = int(make("Pong", 1)._env.reset(seed=np.array([0]))[1]["episode_frame_number"][0])
    assert counts == {least, least + 1, least + 2}


def test_seeds_repeat_and_differ():
    def screens(seed):
        env = make("Breakout", 3, seed, noop_max=30, sticky_probability=0.25, fire_reset=True)
        rng = np.random.default_rng(0)
        frames = [env.reset()]
        for _ in range(40):
            frames.append(env.step(np.repeat(rng.integers(4), 3)).frame)
        return np.stack(frames, axis=1)

    once = screens(1)
    np.testing.assert_array_equal(once, screens(1))
    assert len({game.tobytes() for game in np.concatenate([once, screens(2)])}) == 6


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux schedules each thread of a process by itself")
@pytest.mark.parametrize("enough", [True, False])
def test_threads_of_simulators_preempt_nobody_and_keep_to_a_core_each_where_there_are_as_many(enough):
    cores, before = sorted(os.sched_getaffinity(0)), set(os.listdir("/proc/self/task"))
    number = len(cores) if enough else max(1, len(cores) - 1)
    env = make(num_envs=number, threads=number)
    threads = sorted(int(thread) for thread in set(os.listdir("/proc/self/task")) - before)
    assert len(threads) == number
    assert {os.sched_getscheduler(thread) for thread in threads} == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    kept = [sorted(os.sched_getaffinity(thread)) for thread in threads]
    assert kept == ([[core] for core in cores] if number == len(cores) else [cores] * number)
    env.close()


def test_a_closed_environment_has_ended_its_threads():
    env = make()
    env.reset()
    env.close()
    assert env._env is None


@pytest.mark.parametrize(
    ("id", "kwargs", "why"),
    [
        ("ALE/Brekout-v5", {}, 'did you mean "ALE/Breakout-v5"'),
        ("ALE/Pong", {}, 'did you mean "ALE/Pong-v5"'),
        ("ALE/Pong-v5", {"difficulty": 1}, "Atari takes img_height and img_width, got difficulty"),
    ],
)
def test_what_cannot_be_made_is_a_config_error(id, kwargs, why):
    with pytest.raises(ConfigError, match=why):
        env_spec(id=id, stack=4, kwargs=kwargs)
    with pytest.raises(ConfigError, match=why):
        make_env(1, np.random.SeedSequence(0), id=id, stack=4, kwargs=kwargs)


@pytest.mark.parametrize("id", ["ALE/Pong-v5", "Breakout"])
def test_without_ale_py_the_message_says_what_to_install(id, monkeypatch):
    found = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "ale_py":
            raise ModuleNotFoundError("No module named 'ale_py'")
        return found(name, *rest)

    for module in [name for name in sys.modules if name.partition(".")[0] == "ale_py"]:
        monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(sys.modules, "hpcrl.envs.atari", raising=False)
    monkeypatch.delattr("hpcrl.envs.atari", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match="pip install ale-py"):
        env_spec(id=id, stack=4)
