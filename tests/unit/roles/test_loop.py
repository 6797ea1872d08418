"""The loop that runs the roles of a rank."""

from types import SimpleNamespace

import pytest

from hpcrl.roles import loop


class Scripted:
    """A role that says, step by step, whether it had work."""

    kind = "actor"

    def __init__(self, *worked):
        self.worked, self.steps = list(worked), 0

    def step(self):
        self.steps += 1
        return self.worked.pop(0)


class Waits:
    """A backoff that writes down its calls."""

    def __init__(self):
        self.log = ""

    def wait(self):
        self.log += "w"

    def reset(self):
        self.log += "r"


class Ticket:
    def __init__(self, *mine):
        self.turns, self.passed = list(mine), 0

    def mine(self):
        return self.turns.pop(0)

    def pass_on(self):
        self.passed += 1


def run(roles, rounds, turn=None):
    beats, waits = [], Waits()
    loop.run(roles, over=lambda: len(beats) == rounds, beat=lambda: beats.append(1), backoff=waits, turn=turn)
    return waits.log


def test_it_sleeps_only_when_no_role_had_work():
    roles = [Scripted(True, False, False, True), Scripted(False, False, True, True)]
    assert run(roles, 4) == "rwrr"
    assert [role.steps for role in roles] == [4, 4]


def test_every_role_is_stepped_even_after_one_that_worked():
    roles = [Scripted(True), Scripted(True), Scripted(True)]
    run(roles, 1)
    assert [role.steps for role in roles] == [1, 1, 1]


def test_nothing_is_stepped_once_it_is_over():
    role = Scripted()
    assert run([role], 0) == ""
    assert role.steps == 0


def test_out_of_turn_it_waits():
    role, ticket = Scripted(True, True), Ticket(False, True, False, False, True)
    assert run([role], 5, ticket) == "wrwwr"
    assert role.steps == 2
    assert ticket.passed == 2


class Learner:
    kind = "learner"

    def __init__(self, states):
        self.states, self.in_flight = states, False
        self.ratio = SimpleNamespace(learner_due=lambda: self.due)

    def step(self):
        self.in_flight, self.due = self.states.pop(0)
        return True


def test_a_turn_lasts_until_all_that_is_due_is_learnt():
    learner = Learner([(True, False), (True, True), (False, True), (False, False), (False, False)])
    ticket = Ticket(*[True] * 5)
    run([Scripted(*[True] * 5), learner], 5, ticket)
    assert ticket.passed == 2


@pytest.mark.parametrize("worked", [True, False])
def test_a_turn_without_a_learner_is_one_round(worked):
    assert loop.turn_is_over([Scripted()], [worked])
