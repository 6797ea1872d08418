"""Publication of a vector, in every interleaving of one writer, its readers and the clock."""

from dataclasses import replace

import numpy as np
import pytest
from interleavings import CLOCK, Clock, Explorer, Party, ViolationError, vector

from hpcrl.transport.protocol import IDLE, Fetch, Get, PublicationLayout, Publisher, Put, Replace, read_latest

FOREVER = 10**6
"""A patience that no clock here exceeds."""


class Writer(Party):
    """Publishes versions 1, 2, … flat out until ``versions`` are out, trying again at once where no slot is free."""

    name, clocked = "writer", True

    def __init__(self, layout, patience, versions, publisher=Publisher):
        self.versions, self.published, self.refused, self.now = versions, 0, False, 0
        self.publisher = publisher(layout, patience, None)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.publisher = replace(self.publisher, held=dict(self.publisher.held), clock=lambda: twin.now)
        return twin

    def key(self):
        p = self.publisher
        held = frozenset((reader, state, since, frozenset(slots)) for reader, (state, since, slots) in p.held.items())
        return self.versions, self.published, p.slot, p.previous_slot, held

    def program(self):
        if self.published == self.versions:
            return None
        return self.publisher.publish(self.published + 1, vector(self.published + 1))

    def finished(self, result):
        self.published += result


class Reader(Party):
    """Reads ``reads`` times; every version's elements are all equal to it."""

    def __init__(self, layout, index, reads, most_rounds, read=read_latest):
        self.name = f"reader {index}"
        self.layout, self.index, self.left, self.most_rounds, self.read = layout, index, reads, most_rounds, read
        self.session, self.known, self.rounds = 0, -1, 0
        self.out = vector(-1)

    def clone(self):
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.out = self.out.copy()
        return twin

    def key(self):
        return self.left, self.session, self.known, self.rounds, tuple(self.out.tolist())

    def program(self):
        return self.read(self.layout, self.index, self.session, self.known, self.out) if self.left else None

    def finished(self, result):
        version, rounds = result
        if rounds > self.most_rounds:
            raise ViolationError(f"{self.name} took {rounds} rounds")
        if set(self.out.tolist()) != {version}:
            raise ViolationError(f"{self.name} got {self.out.tolist()} as version {version}")
        if version < self.known:
            raise ViolationError(f"{self.name} got version {version} after {self.known}")
        if (rounds == 0) != (version == self.known):
            raise ViolationError(f"{self.name} took {rounds} rounds for {version} after {self.known}")
        # A number that only grows is cut out of the state where it says nothing: of the rounds, the last are kept.
        self.session, self.known, self.rounds, self.left = self.session + rounds, version, rounds, self.left - 1


def nobody_waits_for_a_stopped_one(layout, patience):
    """Invariant: each party gets on if all others have stopped here."""
    looked_at = set()

    def check(explorer, state):
        for who, local in enumerate(state.locals):
            if local.done or isinstance(local.party, Clock) or (id(local), state.memory) in looked_at:
                continue
            looked_at.add((id(local), state.memory))
            if isinstance(local.party, Reader):
                left = local.party.left
                explorer.solo(state, who, lambda party, left=left: party.left < left, longest=20)
            elif patience < FOREVER:
                check_writer(explorer, state, who)

    def check_writer(explorer, state, who):
        # It ends what it is at, sees who holds what, loses its patience, and then publishes at the first try.
        attempt, begun, tries = state, state.locals[who].party.published, 0
        longest = layout.readers + 8
        while attempt.locals[who].party.published == begun:
            if tries == 3:
                raise ViolationError("the writer does not publish, though every reader had stopped long ago")
            now = explorer.memories[attempt.memory][CLOCK]
            attempt = explorer.with_memory(attempt, {CLOCK: now + patience + 1} if tries else {})
            attempt = end_of_attempt(explorer, attempt, who, longest)
            tries += 1

    def end_of_attempt(explorer, state, who, longest):
        state = explorer.step(state, who, state.locals[who].values.index(None))
        return explorer.solo(state, who, lambda party: True, longest)[0]

    return check


def explore(
    *, slots, reads, versions, patience=FOREVER, ticks=0, publisher=Publisher, read=read_latest, most_rounds=None
) -> Explorer:
    layout = PublicationLayout(slots, len(reads), vector(0).nbytes)
    most_rounds = most_rounds or 1 + ticks
    parties = [Writer(layout, patience, versions, publisher)]
    parties += [Reader(layout, i, n, most_rounds, read) for i, n in enumerate(reads)]
    if ticks:
        parties.append(Clock(ticks))
    return Explorer(parties, invariant=nobody_waits_for_a_stopped_one(layout, patience)).run()
