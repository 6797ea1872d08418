"""A versioned vector, sharded over its owners' windows."""

import time
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from hpcrl.transport.protocol import PublicationLayout, Publisher, look_at_latest, read_latest
from hpcrl.transport.waiting import is_over_network
from hpcrl.transport.window import Window, drive

ATTENTION_SECONDS, ATTENTIVE_SLEEP_SECONDS = 1.0, 5e-5
"""How long an owner cares for a reader that does not move, and its sleeps between two looks meanwhile."""


class ShardedVector:
    """float32 vector whose shard ``k`` lives on rank ``owners[k]``; owners publish, readers pull. Collective.

    Inside a shard, a pull returns one whole version, never a mixture, and none older than the newest that was complete
    when the pull began; so a shard never goes back. Across shards nothing more holds: their owners publish without
    waiting for each other, so a pull may find them at different versions. It tells the version of each; whom a mixture
    harms must compare them (parameter servers judge the staleness of a gradient by the version of their own shard).

    A pull needs one round, or two if the reader slept longer than ``patience_seconds`` while it read. A reader that
    stops for ever delays nobody for longer than that.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks that take part.
    owners : sequence of int
        Rank of each shard.
    bounds : sequence of int
        ``bounds[k]:bounds[k + 1]`` is shard ``k``; ``bounds[-1]`` is the length of the vector.
    readers : sequence of int
        Ranks that may pull.
    slots : int
        Copies of a shard in its window, at least 3: one that is the newest, one that is written, and those that slow
        readers still copy. Where all are in use a publication is put off (:meth:`publish` returns False).
    patience_seconds : float
        How long a reader's copy is protected.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        name: str,
        owners: Sequence[int],
        bounds: Sequence[int],
        readers: Sequence[int],
        slots: int = 4,
        patience_seconds: float = 30.0,
        flavour: str = "allocate",
        max_requests: int = 64,
    ):
        self.owners, self.bounds, self.name = tuple(owners), tuple(bounds), name
        self.layouts = [
            PublicationLayout(slots, len(readers), 4 * (end - begin))
            for begin, end in zip(bounds[:-1], bounds[1:], strict=True)
        ]
        self.my_shards = [k for k, rank in enumerate(self.owners) if rank == comm.rank]
        nbytes = self.layouts[self.my_shards[0]].window_bytes if self.my_shards else 0
        self.window = Window(comm, nbytes, name=name, flavour=flavour, max_requests=max_requests)
        self.rounds = [0] * len(self.owners)
        """rounds of all pulls so far, of each shard; one that is not new takes none"""
        self._peek = [False] * len(self.owners)
        if self.my_shards:
            self._publisher = Publisher(self.layouts[self.my_shards[0]], patience_seconds, time.monotonic)
            self._moves, self._moved = 0, time.monotonic()
        self._over_network = is_over_network(comm)

    @property
    def size(self) -> int:
        """Length of the whole vector."""
        return self.bounds[-1]

    def publish(self, values: np.ndarray, version: int) -> bool:
        """Make ``values``, float32 ``[shard length]``, the newest version of this rank's shard.

        Returns
        -------
        bool
            False where every slot is in use by slow readers: nothing was written, try again with the then newest.
        """
        return drive(self.window, [(self.window.rank, self._publisher.publish(version, values))])[0]

    def attend(self) -> bool:
        """Wait a moment if somebody is in the middle of a pull of this rank's shard; whether that is so.

        From another node a pull gets on only while this rank makes MPI progress, so that a server should not sleep as
        long as one that is idle. A reader that has not moved for `ATTENTION_SECONDS` gets none of this, and inside one
        node, where readers need no help, nobody does.
        """
        if not self._over_network:
            return False
        ((inside, moves),) = drive(self.window, [(self.window.rank, self._publisher.look())])
        if moves != self._moves:
            self._moves, self._moved = moves, time.monotonic()
        if not inside or time.monotonic() - self._moved > ATTENTION_SECONDS:
            return False
        self.window.comm.Iprobe()
        time.sleep(ATTENTIVE_SLEEP_SECONDS)
        return True

    def newest(self, shards: Sequence[int]) -> list[int]:
        """The published version of each of ``shards``; nothing is copied."""
        programs = [(self.owners[k], look_at_latest(self.layouts[k])) for k in shards]
        return drive(self.window, programs)

    def pull(self, out: np.ndarray, versions: np.ndarray, shards: Sequence[int] | None = None) -> bool:
        """Copy every shard that is newer than ``versions`` into ``out``; whether any was.

        Parameters
        ----------
        out : float32 [size]
            Destination, written in place.
        versions : int64 [shards]
            Versions that ``out`` holds, updated in place; -1 for none.
        shards : sequence of int, optional
            Those to look at; all, if not given.
        """
        shards = range(len(self.owners)) if shards is None else shards
        programs = []
        for k in shards:
            part = out[self.bounds[k] : self.bounds[k + 1]]
            programs.append((self.owners[k], read_latest(self.layouts[k], int(versions[k]), part, peek=self._peek[k])))
        any_new = False
        for k, (version, rounds) in zip(shards, drive(self.window, programs), strict=True):
            versions[k] = version
            self.rounds[k] += rounds
            self._peek[k] = rounds == 0  # most likely there is none the next time either
            any_new |= rounds > 0
        return any_new

    def free(self) -> None:
        """Free the window; collective."""
        self.window.free()
