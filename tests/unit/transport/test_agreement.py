"""Meetings of ranks that are objects in this process: what they agree on, in whatever order they get on."""

import numpy as np
import pytest

from hpcrl.transport import agreement
from hpcrl.transport.agreement import NOTES, Agreement


class World:
    """Communicators of some ranks; a nonblocking allgather is complete when all have begun it."""

    def __init__(self, ranks):
        self.begun, self.comms = {}, [Comm(self, rank, ranks) for rank in range(ranks)]

    def gather(self):
        sent = np.concatenate([send.copy() for send, _, _ in (self.begun[comm.rank] for comm in self.comms)])
        for _, received, request in self.begun.values():
            received[:] = sent
            request.complete = True
        self.begun = {}


class Comm:
    def __init__(self, world, rank, size):
        self.world, self.rank, self.size = world, rank, size

    def Dup(self):
        return self

    def Iallgather(self, send, receive):
        request = Request()
        self.world.begun[self.rank] = send[0].reshape(-1), receive[0].reshape(-1), request
        if len(self.world.begun) == self.size:
            self.world.gather()
        return request


class Request:
    complete = False

    def Test(self):
        return self.complete

    def Wait(self):
        assert self.complete


@pytest.fixture
def ranks(monkeypatch):
    monkeypatch.setattr(agreement, "PERIOD_SECONDS", 0.0)  # they meet whenever they can

    def make(count):
        names = {"total_frames": 100, "global_update": 0, "stop": 0, "left": 0}
        return [Agreement(comm, names=names, own=("written", "held"), note_bytes=3) for comm in World(count).comms]

    return make


def meet(ranks):
    """All ranks hold one meeting."""
    before = [rank.meetings for rank in ranks]
    while [rank.meetings for rank in ranks] != [count + 1 for count in before]:
        for rank, count in zip(ranks, before, strict=True):
            if rank.meetings == count:
                rank.step()


def test_counts_are_known_to_all_after_the_next_meeting(ranks):
    first, second = both = ranks(2)
    first.add("left", 1)
    first.set("global_update", 7)
    second.set("written/1", 42)
    assert (first.get("left"), first.get("global_update"), second.get("global_update")) == (0, 7, 0)
    meet(both)
    assert [rank.get("left") for rank in both] == [1, 1]
    assert [rank.get("global_update") for rank in both] == [7, 7]
    assert [rank.get("written/1") for rank in both] == [42, 42]
    second.set("stop", 2)
    first.set("stop", 1)
    meet(both)
    assert [rank.get("stop") for rank in both] == [2, 2]


def test_what_an_addition_returns_does_not_depend_on_when_meetings_were(ranks):
    found = []
    for meetings in (0, 3):
        first, second = both = ranks(2)
        for _ in range(meetings):
            meet(both)
        seen = [first.add("total_frames", 4)]
        for _ in range(meetings):
            meet(both)
        second.add("total_frames", 6)
        seen.append(first.add("total_frames", 4))
        for rank in both:
            rank.offer(True)
        meet(both)
        assert [rank.offers().tolist() for rank in both] == [[True, True]] * 2
        assert [rank.settled("total_frames") for rank in both] == [114, 114]
        seen.append(first.add("total_frames", 4))
        found.append(seen)
    assert found[0] == found[1] == [108, 116, 122]


def test_offers_are_taken_when_everybody_has_made_one(ranks):
    first, second = both = ranks(2)
    first.offer(False)
    meet(both)
    assert [rank.offers() for rank in both] == [None, None]
    second.offer(True)
    meet(both)
    assert [rank.offers().tolist() for rank in both] == [[False, True]] * 2
    assert [rank.offers() for rank in both] == [None, None]
    meet(both)
    assert [rank.offers() for rank in both] == [None, None]


def test_reports_reach_the_first_rank_in_their_order(ranks):
    first, second = both = ranks(2)
    for i in range(NOTES + 2):
        assert second.push({0: (np.full(3, i, np.uint8),)})
    heard = []
    for count in (NOTES, 2, 0):
        meet(both)
        assert first.waiting() == [0, count]
        for _ in range(count):
            heard.append(first.oldest(1).tolist())
            first.pop([1])
    assert heard == [[i] * 3 for i in range(NOTES + 2)]
    assert second.waiting() == [0, 0]
    while second.push({0: (np.zeros(3, np.uint8),)}):
        pass
    assert len(second._unsent) == agreement.MOST_NOTES


def test_a_rank_that_is_alone_knows_everything_at_once(ranks):
    (rank,) = ranks(1)
    rank.set("global_update", 7)
    rank.set("written/0", 42)
    rank.set("stop", 2)
    assert (rank.get("global_update"), rank.get("written/0"), rank.get("stop")) == (7, 42, 2)
    assert rank.add("total_frames", 4) == 104
    rank.offer(True)
    assert rank.offers().tolist() == [True]
    assert rank.add("total_frames", 4) == rank.settled("total_frames") == rank.get("total_frames") == 108
    for i in range(NOTES + 2):
        rank.push({0: (np.full(3, i, np.uint8),)})
    assert rank.waiting() == [NOTES + 2]
    assert rank.offers() is None


@pytest.mark.parametrize("seed", range(40))
def test_all_make_the_same_updates_and_stop_after_the_same_meeting(seed, ranks):
    """Whatever the order in which they get on, and whoever asks to stop, whenever: nobody is left alone in a sum."""
    rng = np.random.default_rng(seed)
    everyone = ranks(3)
    updates = [[] for _ in everyone]
    """numbers of the meetings whose offers each has taken"""
    left = [0] * 3
    asks = int(rng.integers(3)), int(rng.integers(1, 60))
    for turn in range(2000):
        which = int(rng.integers(3))
        rank = everyone[which]
        if turn >= asks[1] and which == asks[0] and not left[which]:
            rank.set("stop", 2)
        if not left[which] and rank.get("stop"):
            left[which] = rank.meetings
        if not left[which]:
            if rank.offers() is not None:
                updates[which].append(rank.meetings)
            elif not rank._offer and rng.random() < 0.5:
                rank.offer(True)
        rank.step()
        if all(left):
            break
    assert all(left)
    assert len(set(left)) == 1
    assert updates[0] == updates[1] == updates[2]
