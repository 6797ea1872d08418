"""Chunk locks, in every interleaving of ranks that read, change and overwrite one chunk."""

import pytest
from interleavings import Explorer, Party, ViolationError, vector

from hpcrl.transport.lock_protocol import FREE, HELD, NOBODY, LockLayout, release, try_acquire
from hpcrl.transport.protocol import CACHE_LINE, Fetch, Get, Put, Replace

LAYOUT = LockLayout(0)
CHUNK = CACHE_LINE
ELEMENTS = 2


class Adder(Party):
    """Adds 1 to every element of the chunk, ``times`` times, each under the lock; tries until it has it."""

    def __init__(self, me, times, *, attempts=None, acquire=try_acquire, give_back=release):
        self.name, self.me, self.left, self.attempts = f"rank {me}", me, times, attempts
        self.acquire, self.give_back = acquire, give_back
        self.stage, self.done = "out", 0
        self.chunk = vector(0, ELEMENTS)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.chunk = self.chunk.copy()
        return twin

    def key(self):
        return self.left, self.attempts, self.stage, self.done, tuple(self.chunk.tolist())

    def program(self):
        if not self.left or self.attempts == 0:
            return None
        if self.stage == "out":
            return self.acquire(LAYOUT, self.me)
        return self._add() if self.stage == "in" else self.give_back(LAYOUT)

    def _add(self):
        yield Get(CHUNK, self.chunk)
        yield Put(CHUNK, self.chunk + 1)

    def finished(self, result):
        if self.stage == "out":
            self.stage = "in" if result else "out"
            self.attempts = None if self.attempts is None else self.attempts - (not result)
        elif self.stage == "in":
            if len(set(self.chunk.tolist())) > 1:
                raise ViolationError(f"{self.name} got a torn chunk {self.chunk.tolist()}")
            self.stage = "leaving"
        else:
            self.stage, self.left, self.done = "out", self.left - 1, self.done + 1
            self.chunk[:] = 0


def check(explorer, state):
    parties, memory = [local.party for local in state.locals], explorer.memories[state.memory]
    holders = [party for party in parties if party.stage != "out"]
    if len(holders) > 1:
        raise ViolationError(f"{len(holders)} ranks hold the lock")
    for who, local in enumerate(state.locals):
        if local.done:
            continue
        inside = local.party.stage != "out"
        if inside and local.party.stage == "in" and memory.get(LAYOUT.holder, 0) != local.party.me + 1:
            raise ViolationError(f"the lock that {local.party.name} holds names {memory.get(LAYOUT.holder, 0)}")
        if local.replies:  # inside a program: it ends, whatever the others do, a stopped holder among them
            explorer.solo(state, who, lambda party: True, longest=3 * ELEMENTS)
        if inside or (memory.get(LAYOUT.word, FREE) == FREE and local.party.attempts is None):
            explorer.solo(state, who, lambda party, left=local.party.left: party.left < left, longest=20)
    if all(local.party.attempts is None for local in state.locals):
        explorer.check_that_it_can_end(state)
    if not explorer.actions(state) and not holders:
        total = sum(party.done for party in parties)
        chunk = [memory.get(CHUNK + 8 * i, 0) for i in range(ELEMENTS)]
        if chunk != [total] * ELEMENTS:
            raise ViolationError(f"the chunk is {chunk} after {total} additions")
        if (memory.get(LAYOUT.word, FREE), memory.get(LAYOUT.holder, NOBODY)) != (FREE, NOBODY):
            raise ViolationError("the lock is not free at the end")


def explore(times, **options):
    return Explorer([Adder(me, n, **options) for me, n in enumerate(times)], invariant=check).run()


@pytest.mark.parametrize(
    "times", [(1,), (3, 3), (1, 1, 1), pytest.param((2, 2, 2), marks=pytest.mark.long, id="longer")]
)
def test_one_holder_at_a_time_and_no_lost_addition(times):
    assert explore(times).ends > 0


def test_an_attempt_on_a_held_lock_ends_and_fails():
    """Parties that give up after two attempts: some come to nothing, and nobody waits."""
    explored = explore((2, 2), attempts=2)
    parties = [local.party for local in explored.local_ids.values()]
    assert any(party.attempts == 0 and party.done == 0 for party in parties)
    assert any(party.done == 2 for party in parties)


# ----------------------------------------------------------------------------------------------------------------------
# Broken on purpose: the search finds out
# ----------------------------------------------------------------------------------------------------------------------


def takes_what_looks_free(layout, me):
    if (yield Fetch(layout.word)) == HELD:
        return False
    yield Replace(layout.word, HELD)
    yield Replace(layout.holder, me + 1)
    return True


def takes_it_always(layout, me):
    yield Replace(layout.word, HELD)
    yield Replace(layout.holder, me + 1)
    return True


def gives_back_what_it_did_not_get(layout, me):
    if (yield Replace(layout.word, HELD)) == HELD:
        yield Replace(layout.word, FREE)
        return False
    yield Replace(layout.holder, me + 1)
    return True


def names_itself_too_early(layout, me):
    yield Replace(layout.holder, me + 1)
    return (yield Replace(layout.word, HELD)) == FREE


@pytest.mark.parametrize(
    ("acquire", "violation"),
    [
        (takes_what_looks_free, "2 ranks hold"),
        (takes_it_always, "2 ranks hold"),
        (gives_back_what_it_did_not_get, "2 ranks hold"),
        (names_itself_too_early, "names"),
    ],
)
def test_a_broken_acquisition_is_found_out(acquire, violation):
    with pytest.raises(ViolationError, match=violation):
        explore((2, 2), acquire=acquire)


def frees_before_it_signs_off(layout):
    yield Replace(layout.word, FREE)
    yield Replace(layout.holder, NOBODY)


def keeps_it(layout):
    yield Replace(layout.holder, NOBODY)


def frees_while_it_signs_off(layout):
    yield Replace(layout.holder, NOBODY), Replace(layout.word, FREE)


@pytest.mark.parametrize(
    ("give_back", "violation"),
    [
        (frees_before_it_signs_off, "2 ranks hold|names"),
        (frees_while_it_signs_off, "2 ranks hold|names"),
        (keeps_it, "do not come to an end|get on alone|stopped without"),
    ],
)
def test_a_broken_release_is_found_out(give_back, violation):
    with pytest.raises(ViolationError, match=violation):
        explore((2, 2), give_back=give_back)


class WritesAfterwards(Adder):
    """Gives the lock back while it still overwrites the chunk."""

    def program(self):
        if self.stage == "leaving" and self.left:
            return self._late()
        return super().program()

    def _add(self):
        yield Get(CHUNK, self.chunk)

    def _late(self):
        yield Replace(LAYOUT.holder, NOBODY)
        yield Put(CHUNK, self.chunk + 1), Replace(LAYOUT.word, FREE)


def test_a_chunk_that_is_not_complete_before_the_release_is_found_out():
    with pytest.raises(ViolationError, match="torn|additions|2 ranks hold"):
        Explorer([WritesAfterwards(me, 2) for me in range(2)], invariant=check).run()
