"""The one loop that runs whatever roles a rank holds."""

from collections.abc import Callable, Sequence

from hpcrl.transport.counters import Turn
from hpcrl.transport.waiting import Backoff


def run(
    roles: Sequence, *, over: Callable[[], bool], beat: Callable[[], None], backoff: Backoff, turn: Turn | None = None
) -> None:
    """Step every role in turn until ``over()``; sleep a little, and make MPI progress, when none had work.

    Parameters
    ----------
    roles
        Objects with ``step() -> bool``.
    over
        Whether the job is to stop.
    beat
        Called every round: this rank is alive.
    backoff
        How to wait.
    turn
        In lock step: roles are stepped only on this rank's turn, which lasts until they have nothing more to do.
    """
    while not over():
        beat()
        if turn is not None and not turn.mine():
            backoff.wait()
            continue
        worked = [role.step() for role in roles]
        if any(worked):
            backoff.reset()
        else:
            backoff.wait()
        if turn is not None and turn_is_over(roles, worked):
            turn.pass_on()


def turn_is_over(roles: Sequence, worked: Sequence[bool]) -> bool:
    """Whether a rank in lock step has done what one turn allows: act once, and learn all that is due."""
    learners = [role for role in roles if role.kind == "learner"]
    if not learners:
        return True
    return not any(role.in_flight or role.ratio.learner_due() for role in learners)
