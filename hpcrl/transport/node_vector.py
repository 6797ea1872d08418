"""A sharded vector as the readers of one node pull it: each version crosses the network once, and is shared then."""

import time

import numpy as np
from mpi4py import MPI

from hpcrl.transport.lock_protocol import LockLayout, release, try_acquire
from hpcrl.transport.parameters import ShardedVector
from hpcrl.transport.protocol import CACHE_LINE, WORD, Get, Put, round_up
from hpcrl.transport.waiting import Backoff
from hpcrl.transport.window import Window, drive

PATIENCE_SECONDS = 5.0
"""How long a reader waits for another one of its node, which may have been stopped, before it pulls by itself."""

_LOCK = LockLayout(0)
_VERSIONS = CACHE_LINE
"""Words of the versions that lie in the node's memory, each plus 1."""


class NodeVector:
    """What the ranks of a node read of a :class:`ShardedVector`. Collective over ``node_comm``.

    A reader looks which versions are the newest. Where the node's memory has older ones it takes the node's lock,
    pulls, and leaves a copy there; the others, who wait for the lock meanwhile, find what they want when they have it.
    Shards that lie on the node itself are read where they are. What :class:`ShardedVector` says of versions holds here
    too: a pull returns whole shards, none older than the newest when it began.

    A reader that stops while it has the lock delays each of the others once, by `PATIENCE_SECONDS`; then they pull by
    themselves until the lock is free again.

    Parameters
    ----------
    vector : ShardedVector
    node_comm : MPI.Intracomm
        The readers of one node; freed with this.
    local : set of int
        Shards whose owners are on this node.
    """

    def __init__(self, vector: ShardedVector, node_comm: MPI.Intracomm, *, local: set[int], max_requests: int = 64):
        self.vector, self.comm = vector, node_comm
        self.local = sorted(local)
        self.remote = [k for k in range(len(vector.owners)) if k not in local]
        self._data = round_up(_VERSIONS + WORD * len(vector.owners))
        self.window = Window(
            node_comm,
            0 if node_comm.rank else self._data + 4 * vector.size,
            name=f"{vector.window.name} of the node",
            max_requests=max_requests,
            cleared_bytes=None if node_comm.rank else self._data,
        )
        self._patience = PATIENCE_SECONDS
        self.crossed = 0
        """Shards that this rank pulled from other nodes"""

    def pull(self, out: np.ndarray, versions: np.ndarray) -> bool:
        """As :meth:`ShardedVector.pull`."""
        newest = dict(zip(self.remote, self.vector.newest(self.remote), strict=True))
        behind = [k for k in self.remote if versions[k] != newest[k]]
        new = bool(self.local) and self.vector.pull(out, versions, self.local)
        if not behind:
            return new
        if self._acquire():
            self._share(out, versions, {k: newest[k] for k in behind})
            drive(self.window, [(0, release(_LOCK))])
        else:
            self._cross(out, versions, behind)
        return True

    def _acquire(self) -> bool:
        """Get the lock, if it is to be had in time."""
        deadline, backoff = time.monotonic() + self._patience, Backoff(self.comm)
        while not drive(self.window, [(0, try_acquire(_LOCK, self.window.rank))])[0]:
            if time.monotonic() >= deadline:
                self._patience = 0.0
                return False
            backoff.wait()
        self._patience = PATIENCE_SECONDS
        return True

    def _share(self, out: np.ndarray, versions: np.ndarray, wanted: dict[int, int]) -> None:
        """Take what the node has, pull what it has not, and leave that there; under the lock."""
        held = np.empty(len(versions), np.int64)
        self._move(Get(_VERSIONS, held))
        held -= 1
        here = [k for k, version in wanted.items() if held[k] >= version]
        missing = [k for k in wanted if k not in here]
        self._move(*(Get(*self._part(k, out)) for k in here))
        versions[here] = held[here]
        if missing:
            self._cross(out, versions, missing)
            held[missing] = versions[missing]
            self._move(*(Put(*self._part(k, out)) for k in missing))
            self._move(Put(_VERSIONS, held + 1))

    def _cross(self, out: np.ndarray, versions: np.ndarray, shards: list[int]) -> None:
        self.vector.pull(out, versions, shards)
        self.crossed += len(shards)

    def _part(self, shard: int, out: np.ndarray) -> tuple[int, np.ndarray]:
        begin, end = self.vector.bounds[shard : shard + 2]
        return self._data + 4 * begin, out[begin:end]

    def _move(self, *operations: Get | Put) -> None:
        for operation in operations:
            self.window.start(operation, 0)
        self.window.flush(0)

    def free(self) -> None:
        """Free the window and the communicator; collective over the node."""
        self.window.free()
        if self.comm != MPI.COMM_NULL:
            self.comm.Free()
