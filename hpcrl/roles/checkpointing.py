"""Writing checkpoints while training goes on, without a collective.

The monitor makes the directory and sets the counter ``checkpoint``; every rank sees it between two rounds of its loop,
copies the state of all its owners, writes it in a thread and says so in a counter of its own; when all have, the
monitor finishes the checkpoint.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.replay.lanes import Lanes
from hpcrl.replay.priorities import PriorityTable
from hpcrl.storage import checkpoint, schema
from hpcrl.storage.best import mark_best, read_best
from hpcrl.storage.packs import pack
from hpcrl.storage.replay import Priorities, ReplayCut
from hpcrl.storage.statefile import write_state

if TYPE_CHECKING:  # what reads checkpoints without MPI takes names from here
    from hpcrl.transport.counters import Counters

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.1
"""How often a rank looks whether a checkpoint is asked for."""
ATTEMPTS = 1000
"""A request is the number ``global_update * ATTEMPTS + attempt``, so that a failed one can be made again."""
HELD_SHARE = 0.02
"""Of the time between two checkpoints, the most that one should hold a loop."""

REPLAY_NAME = "replay-{}"
"""Name of the owner that a replay memory is."""


def is_replay(owner: str) -> bool:
    """Whether an owner is a replay memory, by its name."""
    return owner.startswith(REPLAY_NAME.format(""))


class Owner(Protocol):
    """Whose state belongs into a checkpoint, in a file of its own."""

    name: str
    """of the file, say ``learner-0``"""

    def cut(self) -> Callable[[Path], None]:
        """Copy what training would change, and return what writes it all to a path; that is called in a thread."""


def owner_name(role) -> str:
    """Name of a role's state file."""
    return f"{role.kind}-{role.index}"


def part(state: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    """What was nested under ``name`` in a state, which is flat when it is read again."""
    return {key.removeprefix(f"{name}/"): value for key, value in state.items() if key.startswith(f"{name}/")}


class RoleState:
    """The state of a role as an :class:`Owner`."""

    def __init__(self, role):
        self.role, self.name = role, owner_name(role)

    def cut(self) -> Callable[[Path], None]:
        """Copy the state of the role; what is returned writes it."""
        state = self.role.state()
        return lambda path: write_state(path, self.role.kind, state, {})


class ReplayState:
    """A replay memory as an :class:`Owner`; its ``capacity`` is the configured one of each lane."""

    def __init__(self, index: int, lanes: Lanes, *, capacity: int, table: PriorityTable | None = None):
        self.name, self.lanes, self.capacity, self.table = REPLAY_NAME.format(index), lanes, capacity, table

    def cut(self) -> Callable[[Path], None]:
        """Copy the cursors and what will soonest be overwritten; what is returned writes everything."""
        lanes, table = self.lanes, self.table
        return ReplayCut(
            lanes.memory,
            lanes.cursors,
            capacity=self.capacity,
            stack=lanes.stack,
            n_step=lanes.n_step,
            priorities=Priorities(table.by_slot(), table.low, table.highest) if table else None,
        ).write


class Node(NamedTuple):
    """A node whose state files one of its ranks packs."""

    number: int
    owners: Mapping[int, Sequence[str]]
    """Rank to the names of its owners of state."""
    patience_seconds: float
    """How long a rank is waited for after the one that packs has written its own."""


class StateWriter:
    """Writes the state of everything on one rank into a checkpoint when the monitor asks for one.

    It is the last in its rank's loop, so all owners are cut between the same two rounds. The counters hold the request
    that is made and whether it leaves replay out, and for each rank the one it has written (negative where that failed)
    and how long its loop was held for it. [us]

    Parameters
    ----------
    rank : int
    owners : sequence of Owner
    counters : Counters
    run_dir : Path
    scratch_dir : Path, optional
        Where files are made, by all ranks of the node, before one of them packs them into one file of the checkpoint.
    node : Node, optional
        Of the rank that packs; None for the others. Its word that it has written comes when all is packed.
    wait : bool
        Hold the loop until everything is written. Else training goes on, and owners that are not copied at once (replay
        memories) are each cut at their own time.
    """

    kind = "state_writer"

    def __init__(
        self,
        rank: int,
        owners: Sequence[Owner],
        *,
        counters: "Counters",
        run_dir: Path,
        wait: bool,
        scratch_dir: Path | None = None,
        node: Node | None = None,
    ):
        self.rank, self.owners, self.counters, self.run_dir, self.wait = rank, owners, counters, run_dir, wait
        self.scratch_dir, self.node = scratch_dir, node
        self._request = counters.get("checkpoint")
        self._packs_until = 0.0
        self._next_look = 0.0
        self._thread: threading.Thread | None = None
        self._outcome = 0

    def step(self) -> bool:
        """Start writing when asked, and say so when written."""
        if self._thread is not None:
            return self._answer()
        if time.monotonic() < self._next_look:
            return False
        self._next_look = time.monotonic() + (0.0 if self.wait else LOOK_SECONDS)
        if self._packs_until:
            return self._pack_when_written()
        request = self.counters.get("checkpoint")
        if request == self._request:
            return False
        self._request, began = request, time.monotonic()
        self._without_replay = self.counters.get("without_replay")
        writes = {owner.name: owner.cut() for owner in self.owners if self._is_written(owner.name)}
        self._thread = threading.Thread(target=self.write, args=(request, writes), name="state writer", daemon=True)
        self._thread.start()
        if self.wait:
            self._thread.join()
        self.counters.set(f"held/{self.rank}", round(1e6 * (time.monotonic() - began)))
        if self.wait:
            self._answer()
        return True

    def _is_written(self, owner: str) -> bool:
        return not (self._without_replay and is_replay(owner))

    def _answer(self) -> bool:
        if self._thread.is_alive():
            return False
        self._thread = None
        if self.node and self._outcome > 0 and not self._packing:
            self._packs_until = time.monotonic() + self.node.patience_seconds
            return self._pack_when_written()
        self.counters.set(f"written/{self.rank}", self._outcome)
        return True

    def _pack_when_written(self) -> bool:
        """Pack what the ranks of this node have written, once all have, or those that have not are given up."""
        words = {rank: self.counters.get(f"written/{rank}") for rank in self.node.owners if rank != self.rank}
        late = [rank for rank, word in words.items() if abs(word) != self._request]
        if late and time.monotonic() < self._packs_until:
            return False
        words[self.rank] = self._request
        names = [name for rank, owners in self.node.owners.items() if words[rank] == self._request for name in owners]
        self._packs_until, self._packing = 0.0, True
        files = [checkpoint.state_path(self.scratch_dir, name) for name in names if self._is_written(name)]
        self._thread = threading.Thread(target=self._pack, args=(files,), name="state packer", daemon=True)
        self._thread.start()
        if self.wait:
            self._thread.join()
            self._answer()
        return True

    def write(self, request: int, writes: Mapping[str, Callable[[Path], None]]) -> None:
        """Write what was cut, in a thread."""
        directory = self.scratch_dir or checkpoint.unfinished_dir(self.run_dir, request // ATTEMPTS)
        self._packing = False
        for name, write in writes.items():
            path = checkpoint.state_path(directory, name)
            try:
                if self.scratch_dir:
                    path.unlink(missing_ok=True)  # of a checkpoint that was given up
                write(path)
            except (StorageError, OSError) as error:
                log.warning("%s could not write its checkpoint: %s", name, error)
                self._outcome = -request
                return
        self._outcome = request

    def _pack(self, files: Sequence[Path]) -> None:
        directory = checkpoint.unfinished_dir(self.run_dir, self._request // ATTEMPTS)
        try:
            pack(files, directory / schema.PACK_FILE.format(self.node.number))
        except StorageError as error:
            log.warning("node %d could not pack its checkpoint: %s", self.node.number, error)
            self._outcome = -self._request


class CheckpointKeeper:
    """The monitor's part: asks for checkpoints, finishes them, prunes old ones.

    Parameters
    ----------
    owners : mapping of int to list of str
        Rank to the names of its owners of state.
    attributes : callable
        What the manifest is to say beside the owners' states, ``total_frames`` for one.
    submit : callable
        Runs a function in the writer thread; disks never delay a server.
    silent : callable
        Ranks that are stopped or hang and that the job can do without; the checkpoint is finished without their owners.
    period_seconds : float
        Between two checkpoints; one that holds a loop for more than `HELD_SHARE` of it is warned of, except with
        ``wait``.
    wait : bool
        Make the directory before :meth:`begin` returns, so that the cut follows in the same round of a serial run.
    expected_seconds : float
        What the first checkpoint should take; :attr:`seconds` says what the last one took.
    """

    def __init__(
        self,
        *,
        run_dir: Path,
        counters: "Counters",
        owners: Mapping[int, Sequence[str]],
        attributes: Callable[[], dict],
        submit: Callable[[Callable[[], None]], None],
        keep_last: int,
        keep_every: int,
        silent: Callable[[], Collection[int]],
        period_seconds: float,
        wait: bool,
        expected_seconds: float,
    ):
        self.run_dir, self.counters, self.owners, self.attributes = run_dir, counters, owners, attributes
        self.submit, self.keep_last, self.keep_every = submit, keep_last, keep_every
        self.silent, self.period_seconds, self.wait = silent, period_seconds, wait
        self.busy = False
        self.seconds = expected_seconds
        self.written = 0
        self.failed = 0
        self._state, self._began, self._attempt = "idle", 0.0, 0
        self._waiting: list[int] = []
        self._absent: list[str] = []
        self._update, self._last_good = -1, (-1, -1)
        self._unmarked: tuple = ()

    def begin(self, global_update: int, *, without_replay: bool = False) -> None:
        """Begin a checkpoint, unless one is under way or nothing happened since the last."""
        attributes = self.attributes()
        if self.busy or self._last_good == (global_update, attributes["total_frames"]):
            return
        self.busy, self._began = True, time.monotonic()
        self._update, self._attributes, self._state = global_update, attributes, "making"
        self._without_replay = without_replay
        self._attempt = self._attempt % (ATTEMPTS - 1) + 1
        self._request = global_update * ATTEMPTS + self._attempt

        tried = threading.Event()

        def make() -> None:
            try:
                checkpoint.begin(self.run_dir, global_update)
                self._state = "made"
            except StorageError as error:
                log.warning("no checkpoint at update %d: %s", global_update, error)
                self._state = "failed"
            tried.set()

        self.submit(make)
        if self.wait:
            tried.wait()

    def evaluated(self, global_update: int, mean_return: float, episodes: int) -> None:
        """Take note of an evaluation: the checkpoint of the best one is kept."""

        def note() -> None:
            if not self._unmarked or mean_return > self._unmarked[1]:
                self._unmarked = global_update, mean_return, episodes
            self._mark_best()

        self.submit(note)

    def _mark_best(self) -> None:
        """Label the best evaluation's checkpoint as soon as there is one with its parameters; in the writer thread."""
        if self._unmarked and mark_best(self.run_dir, *self._unmarked):
            self._unmarked = ()

    def cut(self) -> None:
        """The monitor is cut now: the counts in the manifest are those of this moment."""
        self._attributes = self.attributes()

    def step(self) -> None:
        """Take the next step of the checkpoint under way, if there is one."""
        if self._state == "made":
            self.counters.set("without_replay", self._without_replay)
            self.counters.set("checkpoint", self._request)
            self._state = "writing"
            self._waiting, self._absent, self._held, self._good = list(self.owners), [], (0.0, 0), True
        elif self._state == "writing":
            for rank in list(self._waiting):
                self._look_at(rank)
            if not self._waiting:
                self._state = "finishing"
                self.submit(self._finish if self._good else self._discard)
        elif self._state in ("done", "failed"):
            self.written += self._state == "done"
            self.failed += self._state == "failed"
            self._state, self.busy = "idle", False

    def _look_at(self, rank: int) -> None:
        """Whether a rank has written, well or not, or is no longer waited for."""
        word = self.counters.get(f"written/{rank}")
        if abs(word) == self._request:
            self._waiting.remove(rank)
            self._good &= word == self._request
            self._held = max(self._held, (self.counters.get(f"held/{rank}") / 1e3, rank))
        elif rank in self.silent():
            self._waiting.remove(rank)
            self._absent += self.owners[rank]
            names = ", ".join(self.owners[rank])
            log.warning("checkpoint of update %d: without %s, as rank %d is silent", self._update, names, rank)

    def _finish(self) -> None:
        directory = checkpoint.unfinished_dir(self.run_dir, self._update)
        try:
            names = [name for names in self.owners.values() for name in names]
            left_out = [name for name in names if self._without_replay and is_replay(name)]
            owners = [name for name in names if name not in self._absent and name not in left_out]
            checkpoint.finish(directory, owners, self._absent, self._attributes)
            self._mark_best()
            best = read_best(self.run_dir)
            checkpoint.prune(
                self.run_dir, self.keep_last, self.keep_every, best=best.path(self.run_dir) if best else None
            )
            seconds = time.monotonic() - self._began
            self.seconds = self.seconds if left_out else seconds
            log.info(
                "checkpoint of update %d written in %.1f s; training was held for at most %.1f ms (rank %d)",
                self._update,
                seconds,
                *self._held,
            )
            self._warn_of_long_hold()
            self._state, self._last_good = "done", (self._update, self._attributes["total_frames"])
        except StorageError as error:
            log.warning("checkpoint of update %d could not be finished: %s", self._update, error)
            self._discard()

    def _warn_of_long_hold(self) -> None:
        held_ms, rank = self._held
        if not self.wait and held_ms > 1e3 * HELD_SHARE * self.period_seconds:
            log.warning(
                "the checkpoint of update %d held rank %d for %.1f ms, more than %.0f %% of checkpoint.period_seconds "
                "(%g): make that longer",
                self._update,
                rank,
                held_ms,
                100 * HELD_SHARE,
                self.period_seconds,
            )

    def _discard(self) -> None:
        checkpoint.discard(checkpoint.unfinished_dir(self.run_dir, self._update))
        self._state = "failed"
