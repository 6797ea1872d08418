"""Reports: what is put into a record comes out of it, and not too often."""

import numpy as np
import pytest
from fakes import FakeClock, FakeReplica

from hpcrl.roles import metrics
from hpcrl.roles.metrics import FIELDS, RECORD, Reporter, decode, encode
from hpcrl.storage import schema


@pytest.mark.parametrize("kind", FIELDS)
def test_what_is_encoded_is_decoded(kind):
    values = {name: 1.5 * i - 1 for i, name in enumerate(FIELDS[kind])}
    data = encode(kind, 7, values)
    assert data.dtype == np.uint8
    assert data.shape == (RECORD.itemsize,)
    assert decode(data) == (kind, 7, values)


def test_counts_and_nan_survive():
    values = dict.fromkeys(FIELDS["learner"], float("nan")) | {"updates": 2**53 - 1}
    _, _, found = decode(encode("learner", 0, values))
    assert found["updates"] == 2**53 - 1
    assert np.isnan(found["loss"])


def test_a_record_is_read_where_it_lies_in_a_ring():
    ring = np.zeros(3 * RECORD.itemsize, np.uint8)
    ring[RECORD.itemsize : 2 * RECORD.itemsize] = encode("actor", 3, dict.fromkeys(FIELDS["actor"], 2.0))
    kind, index, _ = decode(ring[RECORD.itemsize : 2 * RECORD.itemsize])
    assert (kind, index) == ("actor", 3)


def test_a_missing_value_is_noticed():
    with pytest.raises(KeyError):
        encode("actor", 0, {"steps": 1})


@pytest.mark.parametrize(
    ("kind", "table", "added"),
    [
        ("episode", "episodes", {"wall_seconds", "actor"}),
        ("evaluator", "evaluations", {"wall_seconds"}),
        ("secondary", "secondary", {"wall_seconds", "total_frames"}),
        ("norm", "norms", {"wall_seconds", "total_frames", "learner"}),
    ],
)
def test_reports_and_what_the_monitor_adds_fill_the_run_log(kind, table, added):
    assert set(FIELDS[kind]) | added == set(schema.TABLES[table])


class Server:
    index, version, accepted, dropped, staleness_sum = 2, 9, 8, 1, 4

    class optimizer:
        learning_rate = 0.5

        @staticmethod
        def effective_rate():
            return 0.25


class Actor:
    index, acted_steps, epsilon, total_frames = 1, 3, 0.5, 12
    episode_return, episode_steps = np.array([4.0, -5.0]), np.array([6, 7])
    replica = FakeReplica((11,))


def test_a_kind_reports_at_most_once_in_a_period_and_an_episode_always(monkeypatch):
    clock, sent = FakeClock(), []
    monkeypatch.setattr(metrics, "time", clock)
    reporter = Reporter(lambda record: sent.append(decode(record)), period_seconds=2.0)
    Actor.replica.pull()
    for _ in range(3):
        reporter.server(Server)
        reporter.actor(Actor)
    assert [kind for kind, *_ in sent] == ["parameter_server", "actor"]
    clock.now += 1.9
    reporter.server(Server)
    assert len(sent) == 2
    clock.now += 0.2
    reporter.server(Server)
    counts = {"global_update": 9, "accepted": 8, "dropped": 1, "staleness_sum": 4}
    assert sent[2] == ("parameter_server", 2, {**counts, "learning_rate": 0.5, "effective_rate": 0.25})
    for simulator in (1, 0):
        reporter.episode(Actor, simulator)
    assert sent[3][2] == {
        "simulator": 1,
        "episode_return": -5.0,
        "length_steps": 7,
        "total_frames": 12,
        "global_update": 11,
    }
    assert len(sent) == 5


def test_the_order_is_reported_only_where_it_is_asked_for_and_then_without_a_gap():
    sent, room = [], [0]

    def send(record):
        if not room[0]:
            return False
        room[0] -= 1
        sent.append(decode(record))
        return True

    Actor.replica.pull()
    Actor.steps = 1
    Reporter(send, 2.0).acted(Actor)
    assert sent == []
    reporter = Reporter(send, 2.0, order=True)
    for step in range(5):
        Actor.steps = step
        room[0] += step == 3  # room for one, now and then
        reporter.acted(Actor)
    assert [values["sequence"] for _, _, values in sent] == [0]
    assert not reporter.send_waiting()
    room[0] = 100
    assert reporter.send_waiting()
    assert [values["sequence"] for _, _, values in sent] == [0, 1, 2, 3, 4]
    assert sent[0][2]["global_update"] == 11
