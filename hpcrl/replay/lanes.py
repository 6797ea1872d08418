"""Replay lanes: one ring of records per simulator, every frame stored once (Accelerated Methods §5.2).

Record ``i`` of a lane holds frame ``i``, the action taken at it, and the reward and flags of that action. A finished
episode is followed by one ``final`` record, its last frame, and then by a ``first`` record:

======  =====  ======  ==========  =====  =====
record  frame  action  terminated  first  final
======  =====  ======  ==========  =====  =====
7       f0     a0      0           1      0
8       f1     a1      1           0      0
9       f2     --      --          0      1
10      g0     b0      0           1      0
======  =====  ======  ==========  =====  =====

A lost life that counts as a terminal sets ``terminated`` alone: the next record goes on with the same episode.

Where an episode was cut in two or left unfinished, ``final`` marks the records that are there for their neighbours
only: `HEAD` before the first transition (history of its observation), `TAIL` behind the last (what its return and its
``s_t`` need). Only records with ``final = 0`` are ever drawn.

Indices are absolute (they never wrap); record ``i`` lies in slot ``i % capacity``. The first ``mirror`` slots are
written once more behind the ring, so that every run of up to ``mirror`` records is one contiguous read.
"""

from abc import ABC, abstractmethod
from typing import Protocol

import numpy as np
from numpy.lib.stride_tricks import as_strided

_OUTCOME = np.dtype(
    [
        ("action", np.int32),
        ("reward", np.float32),
        ("terminated", np.uint8),
        ("truncated", np.uint8),
        ("first", np.uint8),
        ("final", np.uint8),
    ]
)
"""The part of a record behind its frame; its fields lie without gaps."""

_RECORD_ALIGNMENT_BYTES = 16

FINAL, TAIL, HEAD = 1, 2, 3
"""Values of ``final`` other than 0: the last frame of an episode, and the two kinds of context."""


def record_dtype(obs_shape: tuple[int, ...], obs_dtype: np.dtype) -> np.dtype:
    """Layout of one replay record.

    Parameters
    ----------
    obs_shape
        Shape of one frame, without the stack.
    obs_dtype
        Type of its elements.

    Returns
    -------
    np.dtype
        Fields ``frame``, ``action`` (int32), ``reward`` (float32, raw), ``terminated``, ``truncated``, ``first`` and
        ``final`` (uint8), each aligned; the whole padded to a multiple of 16 bytes (84x84: 7,072 bytes).
    """
    frame = np.dtype((obs_dtype, obs_shape))
    behind = _aligned(frame.itemsize, _OUTCOME["action"].itemsize)
    return np.dtype(
        {
            "names": ["frame", *_OUTCOME.names],
            "formats": [frame, *(_OUTCOME[name] for name in _OUTCOME.names)],
            "offsets": [0, *(behind + _OUTCOME.fields[name][1] for name in _OUTCOME.names)],
            "itemsize": _aligned(behind + _OUTCOME.itemsize, _RECORD_ALIGNMENT_BYTES),
        }
    )


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment


class Cursors(Protocol):
    """How far each lane has been written: records below ``committed`` are whole, those from there to ``reserved`` are
    being written. Only a lane's writer moves its cursors, ``reserved`` first."""

    def reserved(self) -> np.ndarray:
        """int64 ``[L]``, not to be written to by the caller"""

    def committed(self) -> np.ndarray:
        """int64 ``[L]``, not to be written to by the caller"""

    def look(self) -> tuple[np.ndarray, np.ndarray]:
        """``reserved`` and ``committed``, read at once."""

    def recent(self) -> tuple[np.ndarray, np.ndarray]:
        """Both as they were seen last, where it takes long to look; they may have grown since."""

    def reserve(self, lanes: np.ndarray, counts: int | np.ndarray) -> np.ndarray:
        """Announce ``counts`` more records in each of the distinct ``lanes``; return the indices of the first ones."""

    def commit(self, lanes: np.ndarray, counts: int | np.ndarray) -> None:
        """Publish them, now that they are written."""


class LocalCursors:
    """`Cursors` of a memory that one rank alone writes and reads."""

    def __init__(self, num_lanes: int):
        self._reserved = np.zeros(num_lanes, np.int64)
        self._committed = np.zeros(num_lanes, np.int64)

    def reserved(self) -> np.ndarray:
        return self._reserved

    def committed(self) -> np.ndarray:
        return self._committed

    def look(self) -> tuple[np.ndarray, np.ndarray]:
        return self._reserved, self._committed

    def recent(self) -> tuple[np.ndarray, np.ndarray]:
        return self.look()

    def reserve(self, lanes: np.ndarray, counts: int | np.ndarray) -> np.ndarray:
        first = self._reserved[lanes]
        self._reserved[lanes] = first + counts
        return first

    def commit(self, lanes: np.ndarray, counts: int | np.ndarray) -> None:
        self._committed[lanes] += counts


OLDEST_MARGIN_RECORDS = 2
"""The oldest records of a full lane that are not drawn: one step writes at most a record and a final frame, so a
sample is lost to a writer in another rank only if that writer takes more than one step between the look at its cursors
and the end of the copy."""


def lowest_drawable(reserved: np.ndarray, *, capacity: int, stack: int) -> np.ndarray:
    """int64 ``[L]``: lowest index of each lane whose observation is still whole, and not about to be overwritten."""
    oldest = reserved - (capacity - OLDEST_MARGIN_RECORDS)
    return np.where(oldest > 0, oldest + (stack - 1), 0)


def shortest_capacity(stack: int, n_step: int) -> int:
    """Records a lane must hold, so that even a full one being written to has transitions to draw."""
    return 2 * (stack + n_step) + 4


class StepWriter(ABC):
    """Turns steps into records; what its subclasses do with them is `_write`.

    Parameters
    ----------
    memory
        `record_dtype` ``[L, slots]``, where records are made.
    """

    def __init__(self, memory: np.ndarray):
        self.memory = memory
        self._frames = memory["frame"]
        # A view of the packed fields behind the frame, so that they are written in one assignment.
        self._outcomes = memory.getfield(_OUTCOME, memory.dtype.fields["action"][1])
        self._row = np.zeros(len(memory), _OUTCOME)

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Shape of one frame."""
        return self._frames.shape[2:]

    def append(
        self,
        lanes: np.ndarray,
        frame: np.ndarray,
        action: np.ndarray,
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        first: np.ndarray,
    ) -> None:
        """Write one step to each of ``K`` distinct lanes.

        Parameters
        ----------
        lanes
            int64 ``[K]``
        frame
            obs_dtype ``[K, *obs_shape]``, the frame acted upon.
        action
            int ``[K]``, the action taken at it.
        reward
            float32 ``[K]``, raw.
        terminated, truncated
            bool ``[K]``, how that step ended.
        first
            bool ``[K]``, whether ``frame`` is the first of its episode.
        """
        row = self._row[: len(lanes)]
        row["action"] = action
        row["reward"] = reward
        row["terminated"] = terminated
        row["truncated"] = truncated
        row["first"] = first
        row["final"] = 0
        self._write(lanes, frame, row)

    def append_final(self, lanes: np.ndarray, frame: np.ndarray) -> None:
        """Write the last frame of an episode that is over to each of ``K`` distinct lanes.

        Nothing was done at it, so it is never sampled as ``s_tm1``; it is the ``s_t`` of the step before it, which a
        truncated episode bootstraps from.

        Parameters
        ----------
        lanes
            int64 ``[K]``
        frame
            obs_dtype ``[K, *obs_shape]``
        """
        row = self._row[: len(lanes)]
        row[...] = 0
        row["final"] = 1
        self._write(lanes, frame, row)

    def _store(self, rows: np.ndarray, slots: np.ndarray, frame: np.ndarray, outcome: np.ndarray) -> None:
        self._frames[rows, slots] = frame
        self._outcomes[rows, slots] = outcome

    @abstractmethod
    def _write(self, lanes: np.ndarray, frame: np.ndarray, outcome: np.ndarray) -> None:
        """Write one record to each of ``lanes``: its frame, and the outcome of the step that led to it."""


class Lanes(StepWriter):
    """Writer's and reader's view of the ``L`` lanes of one memory.

    Parameters
    ----------
    memory
        `record_dtype` ``[L, capacity + mirror]`` with ``mirror = stack + n_step``, C-contiguous.
    cursors
        Cursors of the same lanes.
    capacity
        Records per lane.
    stack
        Frames of one observation.
    n_step
        Longest return that will be sampled [steps].

    Raises
    ------
    ValueError
        ``memory`` has another shape, or a lane is shorter than `shortest_capacity`.
    """

    def __init__(self, memory: np.ndarray, cursors: Cursors, *, capacity: int, stack: int, n_step: int):
        mirror = stack + n_step
        if memory.ndim != 2 or memory.shape[1] != capacity + mirror:
            raise ValueError(
                f"memory must be [lanes, capacity + stack + n_step] = [lanes, {capacity + mirror}], got {memory.shape}"
            )
        shortest = shortest_capacity(stack, n_step)
        if capacity < shortest:
            raise ValueError(f"a lane needs at least 2 x (stack + n_step) + 4 = {shortest} records, got {capacity}")
        super().__init__(memory)
        self.cursors = cursors
        self.num_lanes = memory.shape[0]
        self.capacity = capacity
        self.mirror = mirror
        self.stack = stack
        self.n_step = n_step
        self._runs: dict[int, np.ndarray] = {}
        """length to the runs of so many records, each as one lump of bytes, which is the fastest to copy"""

    def _write(self, lanes: np.ndarray, frame: np.ndarray, outcome: np.ndarray) -> None:
        slots = self.cursors.reserve(lanes, 1) % self.capacity
        self._store(lanes, slots, frame, outcome)
        mirrored = slots < self.mirror
        if np.count_nonzero(mirrored):
            self._store(lanes[mirrored], slots[mirrored] + self.capacity, frame[mirrored], outcome[mirrored])
        self.cursors.commit(lanes, 1)

    def flush(self) -> None:
        """Nothing is left to write: here every step is written at once."""

    def load(self, lane: int, index: int, frames: np.ndarray, outcomes: np.ndarray) -> None:
        """Put records back that were saved, without moving the cursors.

        Parameters
        ----------
        lane
            Lane.
        index
            Absolute index of the first of them.
        frames
            obs_dtype ``[K, *obs_shape]``, ``K <= capacity``.
        outcomes
            ``[K]`` with all other fields of a record.
        """
        slots = np.arange(index, index + len(frames)) % self.capacity
        for some, at in ((slice(None), slots), (slots < self.mirror, slots[slots < self.mirror] + self.capacity)):
            self._frames[lane, at] = frames[some]
            for name in _OUTCOME.names:
                self.memory[name][lane, at] = outcomes[name][some]

    def windows(self, length: int) -> np.ndarray:
        """Every run of ``length <= mirror`` consecutive records, as a view.

        Returns
        -------
        np.ndarray
            `record_dtype` ``[L, capacity, length]``, not to be written to; ``[l, s]`` starts at slot ``s`` of lane
            ``l``.
        """
        if length > self.mirror:
            raise ValueError(f"a window holds at most stack + n_step = {self.mirror} records, {length} asked for")
        lane_bytes, record_bytes = self.memory.strides
        return as_strided(
            self.memory,
            (self.num_lanes, self.capacity, length),
            (lane_bytes, record_bytes, record_bytes),
            writeable=False,
        )

    def read(self, lane: np.ndarray, first: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Copy ``B`` runs of ``length <= mirror`` consecutive records.

        Parameters
        ----------
        lane, first
            int64 ``[B]``: lane and absolute index of the first record of each run.

        Returns
        -------
        tuple of np.ndarray
            `record_dtype` ``[B, length]``, and bool ``[B]``: which runs the writer may have overtaken meanwhile.
            Records before index 0 are not looked at: nobody needs them.
        """
        if length not in self._runs:
            lump = np.dtype((np.void, length * self.memory.itemsize))
            strides = self.memory.strides
            self._runs[length] = np.ndarray((self.num_lanes, self.capacity), lump, self.memory, strides=strides)
        runs = self._runs[length][lane, first % self.capacity].view(self.memory.dtype).reshape(-1, length)
        return runs, np.maximum(first, 0) < self.cursors.reserved()[lane] - self.capacity

    def check_valid(self) -> tuple[bool, str]:
        """Check every invariant of the stored records; for tests, while nobody writes.

        Returns
        -------
        tuple of bool and str
            Whether all hold, and if not, which does not and where.
        """
        reserved, committed = self.cursors.reserved(), self.cursors.committed()
        for lane in range(self.num_lanes):
            if not 0 <= committed[lane] == reserved[lane]:
                return False, f"lane {lane}: {committed[lane]} records committed, {reserved[lane]} reserved"
            index = np.arange(max(0, committed[lane] - self.capacity), committed[lane])
            ring = self.memory[lane, index % self.capacity]
            why = _first_fault(ring, starts_at_zero=index.size > 0 and index[0] == 0, needs_head=self.stack > 1)
            if why:
                return False, f"lane {lane}: {why}"
            copied = min(self.mirror, int(committed[lane]))
            if self.memory[lane, :copied].tobytes() != self.memory[lane, self.capacity :][:copied].tobytes():
                return False, f"lane {lane}: the mirror differs from the first records of the ring"
        return True, ""


def _first_fault(ring: np.ndarray, starts_at_zero: bool, needs_head: bool) -> str:
    """The first broken rule in the consecutive records of one lane, oldest first; empty if none.

    Behind a cut, observations of a single frame need no head.
    """
    over = (ring["terminated"] | ring["truncated"]).astype(bool)
    first, kind = ring["first"].astype(bool), ring["final"]
    step, final, tail, head = (kind == value for value in (0, FINAL, TAIL, HEAD))
    begins = first | head | (step & (not needs_head))
    if starts_at_zero and not begins[0]:
        return "the oldest record of all is not the first of an episode"
    rules = (
        ("a record is both first and final", first & final),
        ("a final record ended a step itself", final & over),
        ("a final record follows a step that did not end the episode", final[1:] & ~over[:-1]),
        ("a final record is not followed by a first one", final[:-1] & ~begins[1:]),
        ("a first record does not follow a final one", first[1:] & step[:-1]),
        ("a truncated step is not followed by a final record", (ring["truncated"][:-1] == 1) & step[:-1] & ~final[1:]),
        ("a head is followed by neither a step nor more of it", head[:-1] & ~(head | step)[1:]),
        ("a head follows a step", head[1:] & step[:-1]),
        ("a tail is followed by a step of the same episode", tail[:-1] & (step & ~begins)[1:]),
        ("a tail follows a head", tail[1:] & head[:-1]),
    )
    for rule, broken in rules:
        if broken.any():
            return f"{rule}, {int(broken.argmax())} records after the oldest"
    return ""


def local_lanes(
    num_lanes: int, obs_shape: tuple[int, ...], obs_dtype: np.dtype, *, capacity: int, stack: int, n_step: int
) -> Lanes:
    """Lanes in this process's own memory; the arguments are those of `record_dtype` and `Lanes`."""
    memory = np.zeros((num_lanes, capacity + stack + n_step), record_dtype(obs_shape, obs_dtype))
    return Lanes(memory, LocalCursors(num_lanes), capacity=capacity, stack=stack, n_step=n_step)
