"""Signals ask for a clean stop; their handler does nothing but set an attribute."""

import signal


class StopRequest:
    """Whether a signal has asked this rank to stop, and whether it was TERM: who sends that kills soon after."""

    made = urgent = False


def stop_on_signals() -> StopRequest:
    """INT, TERM, USR1 and USR2 ask for a clean stop; a second INT ends the process the ordinary way.

    A second TERM does not: batch systems and launchers pass the same one on by several ways.
    """
    request = StopRequest()

    def ask(signum, frame):
        request.made = True
        request.urgent |= signum == signal.SIGTERM
        if signum == signal.SIGINT:
            signal.signal(signum, signal.SIG_DFL)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, ask)
    return request


def ignore_signals() -> None:
    """For a rank that is done, and has only to exit: srun sends TERM to the others when the first has left with a code
    other than 0 (``--kill-on-bad-exit``), which must not change theirs."""
    for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, signal.SIG_IGN)
