"""Signals ask for a clean stop; their handler does nothing but set an attribute."""

import signal


class StopRequest:
    """Whether a signal has asked this rank to stop."""

    made = False


def stop_on_signals() -> StopRequest:
    """INT, TERM, USR1 and USR2 ask for a clean stop; a second INT or TERM ends the process the ordinary way."""
    request = StopRequest()

    def ask(signum, frame):
        request.made = True
        if signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(signum, ask)
    return request
