"""The host of a replay memory, or of a part of it: keeps the priorities of the lanes that lie with it."""

from collections.abc import Callable

import numpy as np

from hpcrl.replay.distributed import decode_message
from hpcrl.replay.priorities import PriorityTable
from hpcrl.roles.metrics import Reporter
from hpcrl.transport.ring import Rings


class ReplayHost:
    """Writes what actors and learners send into its table, which learners read one-sided.

    Actors write their lanes themselves, and learners read them, without this role's help.

    Parameters
    ----------
    index : int
        Number of this host.
    reserved : callable
        int64 ``[lanes]``: how many records of each of this host's lanes are begun, as it is now.
    show : callable
        Lets others see what this host wrote to its table.
    table : PriorityTable or None
        Priorities of this host's lanes; None where sampling is uniform.
    rings : Rings or None
        One ring from each actor or learner, with the messages of `hpcrl.replay.distributed`.
    reporter : Reporter
    """

    kind = "replay_host"

    def __init__(
        self,
        index: int,
        *,
        reserved: Callable[[], np.ndarray],
        show: Callable[[], None],
        table: PriorityTable | None,
        rings: Rings | None,
        reporter: Reporter,
    ):
        self.index = index
        self.reserved, self.show, self.table, self.rings, self.reporter = reserved, show, table, rings, reporter

    def step(self) -> bool:
        """Take in one message of everyone who sent any; whether there were any."""
        if self.table is None:
            return False
        waiting = [producer for producer, count in enumerate(self.rings.waiting()) if count]  # (1)
        if not waiting:
            return False
        # Only now: a record's slot was reserved before its priority was sent. A look before (1) might miss that, and
        # the next one would take the new priority for that of the record which was there before.
        self.table.forget(self.reserved())  # (2)
        messages = [decode_message(self.rings.oldest(producer)) for producer in waiting]
        self.table.set(*map(np.concatenate, zip(*messages, strict=True)))  # (3)
        self.show()
        self.rings.pop(waiting)  # (4)
        self.reporter.host(self)
        return True
