"""Every interleaving of the steps of a few protocol programs, on plain memory.

A *party* runs one program of :mod:`hpcrl.transport.protocol` after the other. Memory is a dict from window offset to
value. An atomic word is one step; a ``Get``, ``Put`` or ``FetchMany`` is one step per element, so that copies can be
torn; the steps of everything that a program yielded at once are taken in any order, and after the last of them the
program goes on.
A party that stops for ever is one that is never chosen again: every state that is reached is checked as if any of the
parties had stopped there (see `Explorer.solo`).

States are told apart exactly: a party by its own state when its program began and all replies since, memory by its
contents. Nothing is sampled, hashed to few bits or left out.
"""

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hpcrl.transport.protocol import Add, FetchMany, Get, GetMany, Operation, Program, Put, Replace

CLOCK = -8
"""Offset of the word that a `Clock` moves and that programs of `Party.clocked` parties see as the time."""
UNSET = None
"""Value of a step that is not taken yet."""


class ViolationError(AssertionError):
    """A property does not hold; says after which steps."""


class Party:
    """One rank. Subclasses keep their whole state in attributes that `key` covers and `clone` copies."""

    name = "party"
    clocked = False
    now = 0

    def clone(self) -> "Party":
        """A copy that shares nothing mutable."""
        return copy.deepcopy(self)

    def key(self) -> tuple:
        """Everything that the future of this party depends on, hashable."""
        raise NotImplementedError

    def program(self) -> Program | None:
        """The next program, None if there is nothing left to do."""
        raise NotImplementedError

    def finished(self, result: object) -> None:
        """Take the program's result and check it."""


class Clock(Party):
    """Time, in ``ticks`` steps of 1."""

    name = "clock"

    def __init__(self, ticks: int):
        self.ticks = ticks

    def key(self):
        return (self.ticks,)

    def program(self):
        return self._tick() if self.ticks else None

    def _tick(self):
        yield Add(CLOCK, 1)

    def finished(self, result):
        self.ticks -= 1


class Atom(NamedTuple):
    """One step: part ``element`` of operation ``operation``."""

    operation: int
    kind: type
    offset: int
    value: object


@dataclass(eq=False)
class Local:
    """What a party knows and where it stands; one object for each distinct value."""

    party: Party
    replies: tuple
    """(time, reply) of each step of its program so far"""
    atoms: tuple[Atom, ...]
    many: bool
    values: tuple
    """what each atom returned, `UNSET` where it is not taken"""

    def __post_init__(self):
        self.open = tuple(i for i, value in enumerate(self.values) if value is UNSET)

    @property
    def done(self) -> bool:
        return not self.atoms


class State(NamedTuple):
    locals: tuple[Local, ...]
    memory: int
    """number of the memory's contents"""


def _atoms(step: Operation | tuple) -> tuple[tuple[Atom, ...], bool]:
    many = not isinstance(step, Operation)
    atoms = []
    for i, operation in enumerate(step if many else (step,)):
        if isinstance(operation, GetMany):
            for offset, row in zip(*operation, strict=True):
                size = row.dtype.itemsize
                atoms += [Atom(i, Get, offset + element * size, None) for element in range(len(row))]
        elif isinstance(operation, FetchMany | Get | Put):
            size = operation.buffer.dtype.itemsize
            for element, value in enumerate(operation.buffer.tolist()):
                value = value if isinstance(operation, Put) else None
                atoms.append(Atom(i, type(operation), operation.offset + element * size, value))
        else:
            atoms.append(Atom(i, type(operation), operation.offset, getattr(operation, "value", None)))
    return tuple(atoms), many


def _reply(local: Local) -> tuple:
    """Per operation: the old value of a word, the elements that were read, None for a Put."""
    replies: dict[int, object] = {}
    for atom, value in zip(local.atoms, local.values, strict=True):
        if atom.kind in (FetchMany, Get):
            replies[atom.operation] = (*replies.get(atom.operation, ()), value)
        else:
            replies[atom.operation] = None if atom.kind is Put else value
    return tuple(replies.values())


class Explorer:
    """Depth-first search over everything that the parties can do.

    Parameters
    ----------
    parties
        At their start.
    memory
        Offsets that are not zero at the start.
    invariant
        Called with the explorer and every state.
    """

    def __init__(
        self,
        parties: Iterable[Party],
        memory: dict[int, object] | None = None,
        invariant: Callable[["Explorer", State], None] = lambda explorer, state: None,
    ):
        self.invariant = invariant
        self.memories: list[dict[int, object]] = []
        self.memory_numbers: dict[frozenset, int] = {}
        self.local_ids: dict[tuple, Local] = {}
        self.resumed: dict[tuple, Local] = {}
        self.steps: dict[tuple, tuple[Local, int]] = {}
        self.can_end: set[tuple] = set()
        self.states = self.transitions = self.ends = 0
        started = tuple(self._begin(party, 0) for party in parties)
        self.start = State(started, self._number({CLOCK: 0} | (memory or {})))

    def _number(self, memory: dict[int, object]) -> int:
        key = frozenset(memory.items())
        if key not in self.memory_numbers:
            self.memory_numbers[key] = len(self.memories)
            self.memories.append(memory)
        return self.memory_numbers[key]

    def _intern(self, local: Local) -> Local:
        key = (local.party.name, local.party.key(), local.replies, local.values, local.done)
        return self.local_ids.setdefault(key, local)

    def _begin(self, party: Party, now: int) -> Local:
        """``party``, which must not change any more, with the first step of its next program."""
        while True:
            runner = party.clone()
            program = runner.program()
            if program is None:
                return self._intern(Local(party, (), (), False, ()))
            runner.now = now
            try:
                step = next(program)
            except StopIteration as stop:
                runner.finished(stop.value)
                party = runner
                continue
            return self._stand(party, runner, program, (), step)

    def _stand(self, party: Party, runner: Party, program: Program, replies: tuple, step) -> Local:
        while True:
            atoms, many = _atoms(step)
            if atoms:
                return self._intern(Local(party, replies, atoms, many, (UNSET,) * len(atoms)))
            replies, step = (*replies, (0, ())), program.send(())  # an empty tuple: nothing to wait for

    def _resume(self, local: Local, now: int) -> Local:
        """A party goes on after its last step: its program is run again from its start with the replies it had."""
        runner = local.party.clone()
        program = runner.program()
        replies = (*local.replies, (now, _reply(local)))
        step = next(program)
        try:
            for runner.now, reply in replies:
                many = not isinstance(step, Operation)
                for operation, value in zip(step if many else (step,), reply, strict=True):
                    if isinstance(operation, FetchMany | Get):
                        operation.buffer[:] = value
                    elif isinstance(operation, GetMany):
                        for row, part in zip(
                            operation.rows, np.split(np.array(value), len(operation.rows)), strict=True
                        ):
                            row[:] = part
                words = tuple(None if isinstance(v, tuple) else v for v in reply)
                step = program.send(words if many else words[0])
        except StopIteration as stop:
            runner.finished(stop.value)
            return self._begin(runner, now)
        return self._stand(local.party, runner, program, replies, step)

    def step(self, state: State, who: int, which: int) -> State:
        """The state after party ``who`` has taken its step ``which``."""
        locals_, memory = state
        key = (id(locals_[who]), which, memory)
        if key not in self.steps:
            self.steps[key] = self._take(locals_[who], which, memory)
        after, memory = self.steps[key]
        return State((*locals_[:who], after, *locals_[who + 1 :]), memory)

    def _take(self, local: Local, which: int, number: int) -> tuple[Local, int]:
        memory, atom = self.memories[number], local.atoms[which]
        value = memory.get(atom.offset, 0)
        if atom.kind in (Replace, Put, Add):
            new = value + atom.value if atom.kind is Add else atom.value
            if new != value:
                number = self._number({**memory, atom.offset: new})
            value = 0 if atom.kind is Put else value
        values = (*local.values[:which], value, *local.values[which + 1 :])
        after = self._intern(Local(local.party, local.replies, local.atoms, local.many, values))
        if UNSET not in values:
            now = memory.get(CLOCK, 0) if local.party.clocked else 0
            key = (id(after), now)
            if key not in self.resumed:
                self.resumed[key] = self._resume(after, now)
            after = self.resumed[key]
        return after, number

    def actions(self, state: State) -> list[tuple[int, int]]:
        """Every (party, step) that may come next."""
        return [(who, which) for who, local in enumerate(state.locals) for which in local.open]

    def run(self) -> "Explorer":
        """Visit every reachable state.

        Raises
        ------
        ViolationError
            With the steps that lead to it.
        """
        seen: set[tuple] = set()
        path: list[tuple[State, list, tuple | None]] = []  # state, what is left to try there, how it was reached
        action = None  # the step that is not in `path` yet
        try:
            path.append((self.start, self._visit(self.start, seen), None))
            while path:
                state, left, _ = path[-1]
                if not left:
                    path.pop()
                    continue
                action = left.pop()
                after = self.step(state, *action)
                self.transitions += 1
                if self._identity(after) not in seen:
                    path.append((after, self._visit(after, seen), action))
        except ViolationError as violation:
            actions = [how for _, _, how in path[1:]] + [action]
            steps = zip((state for state, _, _ in path), actions, strict=False)
            lines = [self._describe(state, action) for state, action in steps if action]
            raise ViolationError("\n".join([f"{violation}, after", *lines])) from None
        return self

    def _visit(self, state: State, seen: set) -> list[tuple[int, int]]:
        seen.add(self._identity(state))
        actions = self.actions(state)
        self.states += 1
        self.ends += not actions
        self.invariant(self, state)
        return actions

    def _identity(self, state: State) -> tuple:
        return (*map(id, state.locals), state.memory)  # equal locals are one object, see _intern

    def _describe(self, state: State, action: tuple[int, int]) -> str:
        who, which = action
        local = state.locals[who]
        atom = local.atoms[which]
        value = self.memories[state.memory].get(atom.offset, 0)
        what = f"sees {value}" if atom.value is None else f"{value} -> {atom.value}"
        return f"  {local.party.name}: {atom.kind.__name__} at {atom.offset}: {what}"

    # what one party can do when all others have stopped -----------------------------------------------------------

    def solo(self, state: State, who: int, until: Callable[[Party], bool], longest: int) -> tuple[State, int]:
        """Let ``who`` go on alone until ``until`` holds of it (looked at between its programs).

        Returns
        -------
        tuple of State and int
            Where it then stands, and its number of steps.
        """
        for taken in range(longest + 1):
            local = state.locals[who]
            between = not local.replies and len(local.open) == len(local.values)
            if between and until(local.party):
                return state, taken
            if local.done:
                raise ViolationError(f"{local.party.name} stopped without reaching what it should")
            state = self.step(state, who, local.open[0])
        raise ViolationError(f"{local.party.name} does not get on alone in {longest} steps")

    def check_that_it_can_end(self, state: State, longest: int = 500) -> None:
        """From here everybody's programs can all end: no deadlock, nor a state that is left no more."""
        begun, way = state, []
        while self._identity(state) not in self.can_end:
            way.append(self._identity(state))
            who = next((w for w in self._turns(len(way), len(state.locals)) if state.locals[w].open), None)
            if who is None:
                break
            if len(way) > longest:
                where = ", ".join(f"{local.party.name} {local.party.key()}" for local in begun.locals)
                raise ViolationError(f"the parties do not come to an end ({where})")
            state = self.step(state, who, state.locals[who].open[0])
        self.can_end.update(way)

    def _turns(self, first: int, parties: int) -> Iterable[int]:
        return ((first + i) % parties for i in range(parties))

    def with_memory(self, state: State, values: dict[int, object]) -> State:
        """The same with other contents of some offsets (a clock that has moved on)."""
        return State(state.locals, self._number({**self.memories[state.memory], **values}))


def vector(value: int, elements: int = 2) -> np.ndarray:
    """int64 ``[elements]``, all ``value``."""
    return np.full(elements, value, np.int64)


def run(program: Program, memory: dict[int, object], most_steps: int | None = None) -> object:
    """One program alone on ``memory``: its result, or None after ``most_steps`` steps, from where it can go on."""
    reply, taken = None, 0
    while taken != most_steps:
        try:
            step = program.send(reply)
        except StopIteration as stop:
            return stop.value
        many = not isinstance(step, Operation)
        replies = tuple(_perform(operation, memory) for operation in (step if many else (step,)))
        reply, taken = replies if many else replies[0], taken + 1
    assert reply is None, "what it goes on from is lost"
    return None


def _perform(operation: Operation, memory: dict[int, object]) -> int | None:
    if isinstance(operation, Get | Put):
        elements = operation.buffer.reshape(-1)
        offsets = [operation.offset + i * elements.itemsize for i in range(len(elements))]
        if isinstance(operation, Put):
            memory.update(zip(offsets, elements.tolist(), strict=True))
        else:
            elements[:] = [memory.get(offset, 0) for offset in offsets]
        return None
    old = memory.get(operation.offset, 0)
    if isinstance(operation, Add | Replace):
        memory[operation.offset] = operation.value + (old if isinstance(operation, Add) else 0)
    return old
