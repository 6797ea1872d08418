"""The actor: what reaches replay over the ends of episodes, when it pulls, what it counts."""

import itertools

import numpy as np
import pytest
from fakes import FakeReplica, Reports

from hpcrl.replay import local_lanes
from hpcrl.replay.newcomers import Newcomers
from hpcrl.roles.actor import Actor
from hpcrl.roles.ratio import LocalTally, TrainingRatio
from hpcrl.types import EnvStep

LENGTHS = ((2, 3, 1, 1), (1, 2), (4, 1))
"""Steps of the episodes of each simulator, over and over."""
LIFE_LOST_AT = 2
"""Every episode that long loses a life in this step, which counts as terminated and ends nothing."""


class Tagged:
    """Frame ``[simulator, episode, t]``; the reward of a step to time t is ``100 episode + t``.

    Even episodes terminate, odd ones are truncated. ``story[e]`` is what replay must hold of simulator ``e``, written
    down as the simulator is played.
    """

    def __init__(self, lengths, autoreset):
        self.lengths, self.num_envs, self.same_step = lengths, len(lengths), autoreset == "same_step"

    def reset(self):
        self.episode, self.t = np.zeros(self.num_envs, np.int64), np.zeros(self.num_envs, np.int64)
        self.to_reset = np.zeros(self.num_envs, bool)
        self.story = [[] for _ in range(self.num_envs)]
        return self._frame()

    def _frame(self):
        frame = np.stack([np.arange(self.num_envs), self.episode, self.t], axis=1).astype(np.float32)
        self.observation = frame[:, None]
        return frame

    def _restart(self, who):
        self.episode[who] += 1
        self.t[who] = 0

    def step(self, actions):
        before, reset = self._frame(), self.to_reset.copy()
        self._restart(reset)
        self.t[~reset] += 1
        length = np.array([row[episode % len(row)] for row, episode in zip(self.lengths, self.episode, strict=True)])
        over = (self.t == length) & ~reset
        terminated = over & (self.episode % 2 == 0)
        truncated = over & ~terminated
        terminated |= (self.t == LIFE_LOST_AT) & ~over
        reward = np.where(reset, 0, 100 * self.episode + self.t).astype(np.float32)
        final_frame = self._frame()
        for e in np.flatnonzero(~reset):
            flags = (bool(terminated[e]), bool(truncated[e]), self.t[e] == 1, False)
            self.story[e].append((before[e].tolist(), int(actions[e]), float(reward[e]), *flags))
            if over[e]:
                self.story[e].append((final_frame[e].tolist(), 0, 0.0, False, False, False, True))
        if self.same_step:
            self._restart(over)
        else:
            self.to_reset = over
        frame = self._frame()
        final_frame = np.where(over[:, None], final_frame, frame)
        return EnvStep(frame, reward, terminated, truncated, over, reset, final_frame)


class Policy:
    """Acts at random and remembers what it was given."""

    def __init__(self):
        self.rng, self.seen = np.random.default_rng(0), []

    def act(self, observation, epsilon):
        self.seen.append((observation.copy(), epsilon))
        self.values = np.repeat(observation[:, 0, :2].sum(axis=1, keepdims=True), 4, axis=1)
        return self.rng.integers(4, size=len(observation))


def make(
    lengths=LENGTHS, autoreset="next_step", *, first_lane=0, lanes=None, newcomers=None, ratio=None, sync_period=1
):
    env, reports, replica = Tagged(lengths, autoreset), Reports(), FakeReplica((7,))
    lanes = lanes or local_lanes(first_lane + env.num_envs, (3,), np.float32, capacity=500, stack=1, n_step=1)
    counted = [1000]

    def count(steps):
        counted[0] += 4 * steps
        return counted[0]

    actor = Actor(
        3,
        replica=replica,
        policy=Policy(),
        env=env,
        lanes=lanes,
        first_lane=first_lane,
        newcomers=newcomers,
        ratio=ratio or TrainingRatio(LocalTally(), intensity=1, batch_size=1, learning_starts=10**6, slack_updates=0),
        send_period=1,
        sync_period=sync_period,
        epsilon=lambda global_update, total_frames: global_update + total_frames / 1e6,
        count=count,
        reporter=reports.reporter,
    )
    return actor, reports


def stored(lanes, lane):
    names = ("terminated", "truncated", "first", "final")
    return [
        (r["frame"].tolist(), int(r["action"]), float(r["reward"]), *(bool(r[name]) for name in names))
        for r in lanes.memory[lane, : lanes.cursors.committed()[lane]]
    ]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize("lengths", [LENGTHS, ((1,),), ((3,),), ((1,), (1,)), ((1, 2), (2, 1))])
@pytest.mark.parametrize("first_lane", [0, 2])
def test_replay_holds_every_step_once_and_every_final_frame(autoreset, lengths, first_lane):
    actor, _ = make(lengths, autoreset, first_lane=first_lane)
    for _ in range(40):
        assert actor.step()
        assert actor.lanes.check_valid() == (True, "")
    assert not actor.lanes.cursors.committed()[:first_lane].any()
    for e, story in enumerate(actor.env.story):
        assert stored(actor.lanes, first_lane + e) == story


def test_both_autoresets_store_the_same():
    stories = []
    for autoreset in ("next_step", "same_step"):
        actor, _ = make(((2, 3, 1),), autoreset)
        while len(actor.env.story[0]) < 12:
            actor.step()
        # the actions are random draws, one for every step, also for those that only reset
        stories.append([(frame, *rest) for frame, _, *rest in stored(actor.lanes, 0)[:12]])
    assert stories[0] == stories[1]
    assert stories[0] == [
        # frame, reward, terminated, truncated, first, final
        ([0, 0, 0], 1, False, False, True, False),
        ([0, 0, 1], 2, True, False, False, False),
        ([0, 0, 2], 0, False, False, False, True),
        ([0, 1, 0], 101, False, False, True, False),
        ([0, 1, 1], 102, True, False, False, False),  # a lost life
        ([0, 1, 2], 103, False, True, False, False),
        ([0, 1, 3], 0, False, False, False, True),
        ([0, 2, 0], 201, True, False, True, False),
        ([0, 2, 1], 0, False, False, False, True),
        ([0, 3, 0], 301, False, False, True, False),
        ([0, 3, 1], 302, False, True, False, False),
        ([0, 3, 2], 0, False, False, False, True),
    ]


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_returns_are_raw_and_lengths_are_steps(autoreset):
    actor, reports = make(((2, 3), (4,)), autoreset)
    for _ in range(13):
        actor.step()
    episodes = {0: [], 1: []}
    for values in reports.of("episode"):
        episodes[values["simulator"]].append((values["episode_return"], values["length_steps"]))
    assert episodes[0][:3] == [(1 + 2, 2), (101 + 102 + 103, 3), (201 + 202, 2)]
    assert episodes[1][:2] == [(1 + 2 + 3 + 4, 4), (101 + 102 + 103 + 104, 4)]
    assert all(values["global_update"] == 7 for values in reports.of("episode"))


def test_only_steps_that_were_taken_are_counted():
    actor, _ = make(((2,),))  # two steps, then one that only resets
    for _ in range(9):
        actor.step()
    assert actor.acted_steps == actor.ratio.tally.steps() == 6
    assert actor.total_frames == 1000 + 4 * 6


@pytest.mark.parametrize(("sync_period", "pulls"), [(1, 7), (3, 3), (100, 1)])
def test_it_pulls_every_sync_period(sync_period, pulls):
    actor, _ = make(sync_period=sync_period)
    for _ in range(7):
        actor.step()
    assert actor.replica.pulls == pulls


def test_it_need_not_pull_what_its_learner_has_pulled_since_its_last_step():
    actor, _ = make(ratio=None)
    actor.shares_pulls, found = True, []
    for learner_pulls in (0, 2, 0, 0, 1, 1, 0):
        before = actor.replica.pulls
        actor.step()
        found.append(actor.replica.pulls - before)
        for _ in range(learner_pulls):
            actor.replica.pull()
    assert found == [1, 1, 0, 1, 1, 0, 0]
    actor.shares_pulls = False
    actor.replica.pull()
    actor.step()
    assert actor.replica.pulls == sum(found) + 4 + 2


def test_it_acts_on_the_newest_observation_at_the_epsilon_of_the_clock():
    actor, _ = make(((3,),), "same_step")
    for update in (7, 8, 9, 10):
        actor.replica.source[:] = update
        actor.step()
    assert [observation[0, 0].tolist() for observation, _ in actor.policy.seen] == [
        [0, 0, 0],
        [0, 0, 1],
        [0, 0, 2],
        [0, 1, 0],
    ]
    assert [epsilon for _, epsilon in actor.policy.seen] == pytest.approx([7.001, 8.001004, 9.001008, 10.001012])


def test_it_waits_for_learning_without_touching_anything():
    ratio = TrainingRatio(LocalTally(), intensity=1, batch_size=3, learning_starts=0, slack_updates=0)
    actor, _ = make(((9,),), ratio=ratio)
    assert [actor.step() for _ in range(5)] == [True, True, True, False, False]
    assert (actor.steps, actor.replica.pulls, len(actor.policy.seen)) == (3, 3, 3)
    ratio.add_update()
    assert actor.step()


def test_a_lane_that_wraps_stays_valid():
    lanes = local_lanes(3, (3,), np.float32, capacity=14, stack=2, n_step=2)
    actor, _ = make(lanes=lanes)
    for _ in range(60):
        actor.step()
        assert lanes.check_valid() == (True, "")
    for e, story in enumerate(actor.env.story):
        newest = range(len(story) - 14, len(story))
        assert [lanes.memory[e, i % 14]["frame"].tolist() for i in newest] == [story[i][0] for i in newest]


def test_reports_carry_the_actors_counts():
    actor, reports = make(((2,),))
    actor.step()
    actor.step()
    assert reports.of("actor")[-1] == {
        "steps": 1,
        "epsilon": pytest.approx(7.001),  # the mean over its simulators
        "total_frames": 1004,
        "global_update": 7,
    }


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
def test_every_record_but_final_ones_gets_a_priority_of_its_own_step(autoreset):
    given = {}

    def set_priorities(lane, index, delta):
        given.update(zip(zip(lane.tolist(), index.tolist(), strict=True), delta.tolist(), strict=True))

    lanes = np.arange(3) + 2
    newcomers = Newcomers(
        lanes, np.zeros(3, np.int64), n_step=1, discount=0.5, reward_clip=None, set_priorities=set_priorities
    )
    actor, _ = make(autoreset=autoreset, first_lane=2, newcomers=newcomers)
    for _ in range(40):
        assert actor.step()
    expected = {}
    for lane in lanes.tolist():
        records = stored(actor.lanes, lane)
        for i, (record, after) in enumerate(itertools.pairwise(records)):
            frame, _, reward, terminated, truncated, _, final = record
            if not final:
                best = 0 if terminated else np.nan if truncated else 0.5 * sum(after[0][:2])
                expected[lane, i] = reward + best - sum(frame[:2])
    assert given.keys() == expected.keys()
    assert all(given[place] == pytest.approx(error, nan_ok=True) for place, error in expected.items())
