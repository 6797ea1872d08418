"""Gymnasium environments: what replay gets over the ends of episodes, written out by hand."""

import gymnasium
import numpy as np
import pytest
from acting import drive, transitions

from hpcrl.envs import env_spec, make_env
from hpcrl.errors import ConfigError
from hpcrl.replay import UniformReplay

FRAMES = gymnasium.spaces.Box(0, 100, (2,), np.float64)


class Count(gymnasium.Env):
    """Frame ``[episode, t]``, reward ``10 episode + t``. Episode 0 terminates after 2 steps, episode 1 is truncated
    after 3, and so on in turn. It hands out one buffer, as some environments do."""

    def __init__(self, both: bool = False):
        self.observation_space = FRAMES
        self.action_space = gymnasium.spaces.Discrete(2, start=5)
        self._frame = np.array([-1.0, 0.0])
        self._both = both

    def reset(self, *, seed=None, options=None):
        self._frame += (1, 0)
        self._frame[1] = 0
        return self._frame, {}

    def step(self, action):
        assert action in self.action_space
        self._frame[1] += 1
        episode, t = self._frame
        terminated = episode % 2 == 0 and t == 2
        truncated = episode % 2 == 1 and t == 3
        return self._frame, 10 * episode + t, terminated, truncated or (terminated and self._both), {}


class Many(gymnasium.Env):
    observation_space = FRAMES
    action_space = gymnasium.spaces.MultiBinary(3)


class Continuous(gymnasium.Env):
    """Frames are the last action."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Box(np.array([-1, -np.inf]), np.array([3, np.inf]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return action.astype(np.float32), 0.0, False, False, {}


class Dictionary(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(position=FRAMES)
    action_space = gymnasium.spaces.Discrete(2)


class Noise(gymnasium.Env):
    """Frames are one random byte."""

    observation_space = gymnasium.spaces.Box(0, 255, (1,), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.np_random.integers(256, size=1, dtype=np.uint8), {}

    def step(self, action):
        return self.np_random.integers(256, size=1, dtype=np.uint8), 0.0, False, False, {}


class Chatty(Count):
    """Its infos change their shape, and its observations are lists."""

    def step(self, action):
        frame, *rest, _ = super().step(action)
        return frame.tolist(), *rest, {"seen": np.zeros(int(frame[1])), "final_obs": "none"}


def several_at_once():
    return gymnasium.make_vec("CartPole-v1", num_envs=2)


def make(name, num_envs=1, seed=1, **keys):
    return make_env(num_envs, np.random.SeedSequence(seed), id=f"{__name__}:{name}", **({"stack": 1} | keys))


EPISODES = [
    # frame, action, reward, next frame, terminated, truncated
    ([0, 0], 1, 1, [0, 1], False, False),
    ([0, 1], 1, 2, [0, 2], True, False),
    ([1, 0], 1, 11, [1, 1], False, False),
    ([1, 1], 1, 12, [1, 2], False, False),
    ([1, 2], 1, 13, [1, 3], False, True),
    ([2, 0], 1, 21, [2, 1], False, False),
    ([2, 1], 1, 22, [2, 2], True, False),
]


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize(("autoreset", "steps"), [("next_step", 9), ("same_step", 7)])
def test_replay_holds_the_episodes_and_nothing_else(autoreset, steps, num_envs):
    env = make("Count", num_envs, autoreset=autoreset)
    lanes = drive(env, np.ones((steps, num_envs), np.int64))
    for lane in range(num_envs):
        assert transitions(lanes, lane) == EPISODES


@pytest.mark.parametrize(("autoreset", "steps"), [("next_step", 9), ("same_step", 7)])
def test_samples_are_the_episodes(autoreset, steps):
    lanes = drive(make("Count", autoreset=autoreset), np.ones((steps, 1), np.int64))
    batch = UniformReplay(lanes, n_step=1, discount=0.5, reward_clip=None).sample(300, np.random.default_rng(0))
    sampled = {
        (*frame, action, reward, *after, discount)
        for frame, action, reward, after, discount in zip(
            batch.s_tm1[:, 0].tolist(),
            batch.a_tm1.tolist(),
            batch.r_t.tolist(),
            batch.s_t[:, 0].tolist(),
            batch.discount_t.tolist(),
            strict=True,
        )
    }
    assert sampled == {
        (*frame, action, reward, *after, 0.0 if terminated else 0.5)
        for frame, action, reward, after, terminated, _ in EPISODES
    }


def test_next_step_marks_the_step_that_only_resets():
    env = make("Count")
    env.reset()
    steps = [env.step(np.array([0])) for _ in range(4)]
    assert [bool(step.episode_over[0]) for step in steps] == [False, True, False, False]
    assert [bool(step.reset[0]) for step in steps] == [False, False, True, False]
    assert [step.frame[0].tolist() for step in steps] == [[0, 1], [0, 2], [1, 0], [1, 1]]
    assert steps[2].reward[0] == 0
    np.testing.assert_array_equal(steps[1].final_frame, steps[1].frame)


def test_same_step_keeps_the_final_frame_of_an_environment_that_reuses_its_buffer():
    env = make("Count", autoreset="same_step")
    env.reset()
    env.step(np.array([0]))
    step = env.step(np.array([0]))
    assert step.episode_over[0]
    assert not step.reset[0]
    assert step.final_frame[0].tolist() == [0, 2]
    assert step.frame[0].tolist() == [1, 0]


def test_a_termination_on_the_time_limit_is_a_termination():
    env = make("Count", kwargs={"both": True})
    env.reset()
    env.step(np.array([0]))
    step = env.step(np.array([0]))
    assert (step.terminated[0], step.truncated[0], step.episode_over[0]) == (True, False, True)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_the_stack_never_crosses_an_episode(autoreset):
    env = make("Count", stack=3, autoreset=autoreset)
    env.reset()
    for _ in range(30):
        env.step(np.array([0]))
        stack = env.observation[0]
        episode, t = stack[-1]
        for age in range(3):
            expected = [episode, t - age] if age <= t else [0, 0]
            assert stack[2 - age].tolist() == expected


def test_what_was_handed_out_stays_as_it_was():
    env = make("Count", stack=2)
    kept = [(env.reset(), None, env.observation)]
    kept += [(*env.step(np.array([0]))[::6], env.observation) for _ in range(8)]
    copies = [[None if array is None else array.copy() for array in arrays] for arrays in kept]
    for _ in range(8):
        env.step(np.array([0]))
    for arrays, before in zip(kept, copies, strict=True):
        for array, copy in zip(arrays, before, strict=True):
            np.testing.assert_array_equal(array, copy)


def test_seeds_differ_between_simulators_and_repeat():
    def bytes_of(seed):
        env = make("Noise", 4, seed)
        first = env.reset()
        return np.concatenate([first, *(env.step(np.zeros(4, np.int64)).frame for _ in range(10))], axis=1)

    once = bytes_of(1)
    np.testing.assert_array_equal(once, bytes_of(1))
    assert len({row.tobytes() for row in np.concatenate([once, bytes_of(2)])}) == 8


def test_a_second_reset_goes_on_with_the_random_numbers():
    env = make("Noise", 4)
    assert env.reset().tobytes() != env.reset().tobytes()


def test_pixels_stay_bytes_and_the_rest_is_float32():
    assert make("Noise").reset().dtype == np.uint8
    assert make("Count").reset().dtype == np.float32
    assert env_spec(id=f"{__name__}:Count", stack=2) == ((2,), np.dtype(np.float32), 2, 2, 1, False)


def test_cartpole():
    env = make_env(2, np.random.SeedSequence(0), id="CartPole-v1", stack=1)
    assert env.spec == env_spec(id="CartPole-v1", stack=1) == ((4,), np.dtype(np.float32), 1, 2, 1, False)
    lanes = drive(env, np.random.default_rng(0).integers(2, size=(200, 2)))
    env.close()
    for lane in range(2):
        steps = transitions(lanes, lane)
        assert {reward for _, _, reward, *_ in steps} == {1.0}
        assert sum(terminated for *_, terminated, _ in steps) >= 3


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_it_is_gymnasiums_own_vector_environment(autoreset):
    """Three CartPoles, seeded alike, give what SyncVectorEnv gives, step by step."""
    env = make_env(3, np.random.SeedSequence(5), id="CartPole-v1", stack=1, autoreset=autoreset)
    theirs = gymnasium.vector.SyncVectorEnv(
        [lambda: gymnasium.make("CartPole-v1")] * 3,
        autoreset_mode={"next_step": "NextStep", "same_step": "SameStep"}[autoreset],
    )
    observation, _ = theirs.reset(seed=np.random.SeedSequence(5).generate_state(3).tolist())
    np.testing.assert_array_equal(env.reset(), observation)
    for action in np.random.default_rng(0).integers(2, size=(120, 3)):
        step, (observation, reward, terminated, truncated, info) = env.step(action), theirs.step(action)
        np.testing.assert_array_equal(step.frame, observation)
        np.testing.assert_array_equal(step.reward, reward)
        np.testing.assert_array_equal(step.terminated, terminated)
        np.testing.assert_array_equal(step.truncated, truncated)
        for e in np.flatnonzero(step.episode_over & (autoreset == "same_step")):
            np.testing.assert_array_equal(step.final_frame[e], info["final_obs"][e])


@pytest.mark.parametrize(("autoreset", "steps"), [("next_step", 9), ("same_step", 7)])
def test_infos_and_containers_of_any_kind_do_no_harm(autoreset, steps):
    lanes = drive(make("Chatty", 2, autoreset=autoreset), np.ones((steps, 2), np.int64))
    assert transitions(lanes, 1) == EPISODES


def test_vectors_are_scaled_to_the_bounds_of_the_environment_and_clipped():
    arguments = {"id": f"{__name__}:Continuous", "stack": 1}
    spec = env_spec(**arguments)
    assert (spec.continuous, spec.num_actions) == (True, 2)
    env = make_env(4, np.random.SeedSequence(0), **arguments)
    env.reset()
    actions = np.array([[-1, 7], [1, -7], [0, 0.5], [-4, 0]], np.float32)
    # the first number goes from -1 to 3, the second has no bounds
    assert env.step(actions).frame.tolist() == [[-1, 7], [3, -7], [1, 0.5], [-1, 0]]
    env.close()


@pytest.mark.parametrize(
    ("id", "kwargs", "why"),
    [
        ("Cartpole-v1", {}, 'did you mean "CartPole-v1"'),
        ("CartPole", {}, 'did you mean "CartPole-v1"'),
        ("breakout", {}, 'did you mean "ALE/Breakout-v5"'),
        ("PongNoFrameskip-v4", {}, 'named "ALE/<Game>-v5"'),
        ("no_such_module:Env", {}, "No module named 'no_such_module'"),
        (f"{__name__}:Nothing", {}, "has no attribute 'Nothing'"),
        (f"{__name__}:Many", {}, "Discrete, or Box vectors"),
        (f"{__name__}:Dictionary", {}, "needs observations in one array"),
        (f"{__name__}:several_at_once", {}, "one simulator .a gymnasium.Env.* got .*CartPoleVectorEnv"),
        ("collections:OrderedDict", {}, "one simulator .a gymnasium.Env.* got collections.OrderedDict"),
        (f"{__name__}:Count", {"speed": 1}, "unexpected keyword argument 'speed'"),
        ("CartPole-v1", {"speed": 1}, "unexpected keyword argument 'speed'"),
    ],
)
def test_what_cannot_be_made_is_a_config_error(id, kwargs, why):
    with pytest.raises(ConfigError, match=why):
        env_spec(id=id, stack=1, kwargs=kwargs)
    with pytest.raises(ConfigError, match=why):
        make_env(1, np.random.SeedSequence(0), id=id, stack=1, kwargs=kwargs)
