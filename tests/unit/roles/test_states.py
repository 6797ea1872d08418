"""What roles keep in a checkpoint: put back, they go on as if nothing had happened, or say what begins anew."""

import numpy as np
import pytest
from fakes import FakeReplica, Reports

from hpcrl.envs import make_env
from hpcrl.replay import local_lanes
from hpcrl.roles.actor import Actor
from hpcrl.roles.evaluator import Episodes, Evaluator
from hpcrl.roles.ratio import LocalTally, TrainingRatio
from hpcrl.seeding import generator, generator_state, restore_generator, seed_sequence
from hpcrl.storage.statefile import flatten, read_state, write_state


class Policy:
    """Acts at random."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def act(self, observation, epsilon):
        return self.rng.integers(3, size=len(observation))


class Parameters(FakeReplica):
    """A replica whose only parameter is the version it was pulled at."""

    def state(self):
        return {"params": np.float32(self.versions[0]), "versions": self.versions.copy()}

    def restore(self, state):
        assert state["params"] == state["versions"][0]
        self.versions[:] = state["versions"]


def stored(state, tmp_path, kind):
    """The state as it comes back from a file."""
    path = tmp_path / f"{kind}.h5"
    path.unlink(missing_ok=True)
    write_state(path, kind, state, {})
    return read_state(path, kind)[0]


def catch(seed):
    return make_env(3, np.random.SeedSequence(seed), id="catch", stack=2)


def make_ratio(**keys):
    sizes = {"intensity": 8.0, "batch_size": 32, "learning_starts": 64, "slack_updates": 1}
    return TrainingRatio(LocalTally(), **(sizes | keys))


def make_actor(seed, lanes, keeps_episodes=True):
    return Actor(
        0,
        replica=FakeReplica(),
        policy=Policy(seed),
        env=catch(seed),
        lanes=lanes,
        first_lane=0,
        newcomers=None,
        ratio=make_ratio(block=False),
        sync_period=1,
        epsilon=lambda global_update, total_frames: 0.1,
        count=lambda steps: steps,
        reporter=Reports().reporter,
        keeps_episodes=keeps_episodes,
    )


def make_lanes():
    return local_lanes(3, (10, 5), np.dtype(np.uint8), capacity=50, stack=2, n_step=1)


@pytest.mark.parametrize("cut", [3, 9, 10, 11, 40])
def test_an_actor_goes_on_in_the_middle_of_its_episodes(cut, tmp_path):
    lanes = make_lanes()
    actor = make_actor(1, lanes)
    for _ in range(cut):
        actor.step()
    state = stored(actor.state(), tmp_path, "actor")
    again = make_lanes()
    again.memory[:] = lanes.memory
    again.cursors.reserve(np.arange(3), lanes.cursors.committed())
    again.cursors.commit(np.arange(3), lanes.cursors.committed())
    other = make_actor(2, again)
    other.restore(state)
    assert (other.steps, other.acted_steps) == (actor.steps, actor.acted_steps)
    for _ in range(30):
        actor.step()
        other.step()
    assert again.memory.tobytes() == lanes.memory.tobytes()
    np.testing.assert_array_equal(again.cursors.committed(), lanes.cursors.committed())
    assert again.check_valid() == (True, "")
    np.testing.assert_array_equal(other.episode_return, actor.episode_return)


def test_an_actor_that_keeps_no_episodes_begins_new_ones_with_its_random_numbers(tmp_path):
    actor = make_actor(1, make_lanes(), keeps_episodes=False)
    for _ in range(5):
        actor.step()
    state = stored(actor.state(), tmp_path, "actor")
    assert not [name for name in state if name.startswith("episodes")]
    other = make_actor(2, make_lanes(), keeps_episodes=False)
    other.restore(state)
    assert other.first.all()
    assert (other.steps, other.acted_steps) == (5, 15)
    assert other.policy.rng.random() == actor.policy.rng.random()


def make_evaluator(seed, source, keeps_episodes=True, episodes=6):
    reports = Reports()
    evaluator = Evaluator(
        0,
        replica=Parameters(source),
        episodes=Episodes(catch(seed), Policy(seed), episodes=episodes, epsilon=0.05),
        period=10,
        total_frames=lambda: 77,
        reporter=reports.reporter,
        keeps_episodes=keeps_episodes,
    )
    return evaluator, reports


@pytest.mark.parametrize("steps", [0, 1, 13, 25])
def test_an_evaluation_under_way_goes_on_at_its_own_parameters(steps, tmp_path):
    evaluator, reports = make_evaluator(1, (12,))
    for _ in range(steps):
        evaluator.step()
    other, others = make_evaluator(2, (12,))
    other.restore(stored(evaluator.state(), tmp_path, "evaluator"))
    sent = len(reports.of("evaluator"))
    for each in (evaluator, other):
        each.replica.source[:] = 19  # below the next evaluation, and not what the current one plays with
        for _ in range(40):
            each.step()
    assert others.of("evaluator") == reports.of("evaluator")[sent:]
    assert other.next_update == evaluator.next_update == 20


@pytest.mark.parametrize("why", ["simulators cannot be saved", "other number of episodes"])
def test_an_evaluation_that_cannot_go_on_begins_again(why, tmp_path):
    savable = why != "simulators cannot be saved"
    evaluator, _ = make_evaluator(1, (12,), keeps_episodes=savable)
    for _ in range(5):
        evaluator.step()
    other, others = make_evaluator(2, (14,), keeps_episodes=savable, episodes=3)
    other.restore(stored(evaluator.state(), tmp_path, "evaluator"))
    for _ in range(11):
        other.step()
    (evaluation,) = others.of("evaluator")
    assert evaluation["global_update"] == 14


def put_back(ratio, held, **changes):
    """The ratio of a start of the run with `changes`, after it took over from `ratio`."""
    other = make_ratio(**changes)
    other.restore(flatten(ratio.state()), held)
    return other


def trained(ratio, steps):
    """Updates made while an actor takes ``steps`` steps as soon as it may."""
    updates = 0
    for _ in range(steps):
        while not ratio.actor_may_step():
            assert ratio.learner_due()
            ratio.add_update()
            updates += 1
        ratio.add_steps(1)
    return updates


def test_the_training_ratio_goes_on_exactly():
    ratio = make_ratio(intensity=0.3, batch_size=7)
    trained(ratio, 1000)
    other = put_back(ratio, held=500, intensity=0.3, batch_size=7)
    assert (other.tally.steps(), other.tally.trained()) == (ratio.tally.steps(), ratio.tally.trained())


def test_before_learning_has_started_too():
    ratio = make_ratio()
    ratio.add_steps(40)
    assert put_back(ratio, held=40).tally.steps() == 40


@pytest.mark.parametrize(
    "changes", [{"intensity": 32.0}, {"intensity": 0.5}, {"learning_starts": 0}, {"batch_size": 8}]
)
def test_a_changed_ratio_holds_from_now_on_and_makes_nobody_catch_up(changes):
    ratio = make_ratio()
    trained(ratio, 5000)
    other = put_back(ratio, held=2000, **changes)
    per_step = other.intensity / other.batch_size
    assert trained(other, 400) == pytest.approx(400 * per_step, abs=4)


def test_without_its_replay_a_memory_is_refilled_first_and_then_learned_from_at_the_usual_rate():
    ratio = make_ratio()
    trained(ratio, 5000)
    other = put_back(ratio, held=0)
    assert trained(other, 64) == 0
    assert trained(other, 400) == pytest.approx(100, abs=3)


def test_what_lagged_behind_without_blocking_is_not_caught_up_with_either():
    ratio = make_ratio(block=False)
    ratio.add_steps(10_000)
    other = put_back(ratio, held=2000, learning_starts=65)
    assert trained(other, 40) <= 10 + 3


def test_random_numbers_go_on():
    rng = generator(1, "actor", 3)
    rng.integers(5, size=3, dtype=np.int32)  # leaves half a word for the next draw
    other = generator(2, "actor", 3)
    restore_generator(other, generator_state(rng))
    assert other.bit_generator.state == rng.bit_generator.state


def test_a_start_of_the_run_draws_other_numbers_than_those_before():
    streams = {seed_sequence(1, "actor env", 0, start).generate_state(4).tobytes() for start in range(4)}
    assert len(streams) == 4
    assert seed_sequence(1, "actor env", 0, 0).generate_state(4).tobytes() in streams
    assert seed_sequence(1, "actor env", 0, 0).spawn_key == seed_sequence(1, "actor env", 0).spawn_key
