"""The host of a part of the global replay memory: keeps the priorities of the lanes that lie with it."""

import numpy as np

from hpcrl.replay.distributed import decode_message
from hpcrl.replay.priorities import PriorityTable
from hpcrl.transport.lanes import HostedLanes
from hpcrl.transport.ring import Rings


class ReplayHost:
    """Writes what actors and learners send into its table, which learners read one-sided.

    Actors write their lanes themselves, and learners read them, without this role's help.

    Parameters
    ----------
    index : int
        Number of this host.
    lanes : HostedLanes
    table : PriorityTable or None
        Priorities of this host's lanes; None where sampling is uniform.
    rings : Rings or None
        One ring from each actor or learner, with the messages of `hpcrl.replay.distributed`.
    """

    kind = "replay_host"

    def __init__(self, index: int, *, lanes: HostedLanes, table: PriorityTable | None, rings: Rings | None):
        self.index = index
        self.lanes, self.table, self.rings = lanes, table, rings

    def step(self) -> bool:
        """Take in one message of everyone who sent any; whether there were any."""
        if self.table is None:
            return False
        waiting = [producer for producer, count in enumerate(self.rings.waiting()) if count]  # (1)
        if not waiting:
            return False
        # Only now: a record's slot was reserved before its priority was sent. A look before (1) might miss that, and
        # the next one would take the new priority for that of the record which was there before.
        self.table.forget(self._reserved())  # (2)
        messages = [decode_message(self.rings.oldest(producer)) for producer in waiting]
        self.table.set(*map(np.concatenate, zip(*messages, strict=True)))  # (3)
        self.lanes.show()
        self.rings.pop(waiting)  # (4)
        return True

    def _reserved(self) -> np.ndarray:
        return self.lanes.look_at_own()[:, 0]
