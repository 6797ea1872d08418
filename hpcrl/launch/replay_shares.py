"""Giving the replay of a checkpoint to the memories of a job, which may be others in number, lanes and capacity."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.config import Config
from hpcrl.errors import StorageError
from hpcrl.launch.topology import Plan, lane_capacity
from hpcrl.replay.division import Piece, divide, records_needed, select, transitions
from hpcrl.replay.lanes import Lanes, shortest_capacity
from hpcrl.replay.priorities import PriorityTable
from hpcrl.roles.checkpointing import is_replay
from hpcrl.storage.checkpoint import Checkpoint
from hpcrl.storage.replay import ReplayFile, Shape


class OldLane(NamedTuple):
    """A saved lane."""

    path: Path
    lane: int


@dataclass(frozen=True)
class Shares:
    """What each lane of a job, over all of its memories, takes from a checkpoint; the same on every rank."""

    old: tuple[OldLane, ...]
    pieces: tuple[tuple[Piece, ...], ...]
    """for each new lane; ``Piece.lane`` counts in ``old``"""
    same: bool
    """every memory is as it was, slot by slot; ``pieces`` is then empty"""
    text: str
    """what happens, for the log"""


def memory_shapes(config: Config, plan: Plan, stack: int) -> tuple[Shape, ...]:
    """Lanes of each replay memory of a bundle or node, or of each server's part of the global one.

    Raises
    ------
    TopologyError
        A lane would be too short.
    """
    n_step, simulators = config.replay.n_step, config.env.simulators
    sizes = {
        "capacity_steps": config.replay.capacity_steps,
        "simulators": simulators,
        "shortest_steps": shortest_capacity(stack, n_step),
    }
    shapes = []
    for memory in plan.memories:
        num_lanes, capacity = len(memory.actors) * simulators, lane_capacity(memory, **sizes)
        hosts = 1 if memory.node is not None else plan.num("parameter_server")
        lanes = [len(range(host, num_lanes, hosts)) for host in range(hosts)]  # dealt in turn
        shapes += [Shape(count, capacity, stack, n_step) for count in lanes if count]
    return tuple(shapes)


def share_replay(checkpoint: Checkpoint, shapes: Sequence[Shape]) -> Shares | None:
    """Decide it; called on one rank.

    Parameters
    ----------
    shapes
        Of this job's memories.

    Returns
    -------
    Shares or None
        None where the checkpoint has no replay.
    """
    names = sorted(filter(is_replay, checkpoint.owners), key=_number)
    paths = [checkpoint.file(name) for name in names]
    if not paths:
        return None
    old, counts, old_shapes = [], [], []
    for path in paths:
        with ReplayFile(path) as file:
            old_shapes.append(file.shape)
            for lane in range(file.shape.num_lanes):
                old.append(OldLane(path, lane))
                found = transitions(file.outcomes(lane), stack=shapes[0].stack, n_step=shapes[0].n_step)
                counts.append(len(found))
    if old_shapes == list(shapes):
        return Shares(tuple(old), (), True, f"replay restored: {sum(counts):,} transitions")
    pieces = divide(counts, [shape.capacity for shape in shapes for _ in range(shape.num_lanes)])
    kept = sum(piece.high - piece.low for lane in pieces for piece in lane)
    text = (
        f"replay re-divided: {_sizes(old_shapes)} then, {_sizes(shapes)} now; {kept:,} transitions kept, "
        f"{sum(counts) - kept:,} dropped for lack of room"
    )
    return Shares(tuple(old), tuple(map(tuple, pieces)), False, text)


class MemoryShare:
    """One memory's part of `Shares`; made and used by the rank that owns the memory.

    Parameters
    ----------
    index
        Of the memory.
    shapes
        Of all memories of the job.

    Attributes
    ----------
    slots
        Records that each of its lanes must have room for: the configured transitions, and the context of cuts.
    """

    def __init__(self, shares: Shares, index: int, shapes: Sequence[Shape]):
        self._shares, self._shape = shares, shapes[index]
        first = sum(shape.num_lanes for shape in shapes[:index])
        self._lanes = range(first, first + self._shape.num_lanes)
        if shares.same:
            with ReplayFile(shares.old[first].path) as file:
                self.slots = file.slots
        else:
            lengths = (sum(len(positions) for _, positions, _ in self._parts(lane)) for lane in self._lanes)
            self.slots = max(self._shape.capacity, *map(records_needed, lengths))

    def restore(self, lanes: Lanes, table: PriorityTable | None = None) -> None:
        """Fill empty lanes, and the table of their priorities.

        Records that were saved without a priority get the highest.

        Raises
        ------
        StorageError
            A file is damaged, or its records are of another kind.
        """
        low, highest = np.zeros(lanes.num_lanes, np.int64), 1.0
        for lane, number in enumerate(self._lanes):
            if self._shares.same:
                old = self._shares.old[number]
                with ReplayFile(old.path) as file:
                    self._restore_same(lanes, lane, file, old.lane, table)
                    if file.has_priorities:
                        low[lane], highest = file.priority_low[old.lane], max(highest, file.priority_highest)
            else:
                highest = max(highest, self._restore_parts(lanes, lane, number, table))
        if table is not None:
            table.restore(low, highest)

    def _restore_same(self, lanes: Lanes, lane: int, file: ReplayFile, old: int, table: PriorityTable | None) -> None:
        _check_frames(file, lanes)
        begin, end, outcomes = int(file.begin[old]), int(file.end[old]), file.outcomes(old)
        for first, frames in file.frames(old):
            lanes.load(lane, begin + first, frames, outcomes[first : first + len(frames)])
        if table is not None:
            table.by_slot()[lane, np.arange(begin, end) % lanes.capacity] = _priorities(file, old, outcomes)
        _set_end(lanes, lane, end)

    def _restore_parts(self, lanes: Lanes, lane: int, number: int, table: PriorityTable | None) -> float:
        """Fill a lane with parts of old ones; return the highest priority that they knew of."""
        end, highest = 0, 0.0
        for old, positions, final in self._parts(number):
            with ReplayFile(old.path) as file:
                _check_frames(file, lanes)
                outcomes = file.outcomes(old.lane)
                for first, frames in file.frames(old.lane):
                    low, high = np.searchsorted(positions, (first, first + len(frames)))
                    some = positions[low:high]
                    records = outcomes[some]
                    records["final"] = final[low:high]
                    lanes.load(lane, end + int(low), frames[some - first], records)
                if table is not None:
                    priorities = _priorities(file, old.lane, outcomes)[positions]
                    table.by_slot()[lane, end : end + len(positions)] = np.where(final == 0, priorities, 0.0)
                if file.has_priorities:
                    highest = max(highest, file.priority_highest)
            end += len(positions)
        _set_end(lanes, lane, end)
        return highest

    def _parts(self, number: int) -> Iterator[tuple[OldLane, np.ndarray, np.ndarray]]:
        """The old lanes that a new one takes from; positions and flag ``final`` of the records."""
        for piece in self._shares.pieces[number]:
            old = self._shares.old[piece.lane]
            with ReplayFile(old.path) as file:
                outcomes = file.outcomes(old.lane)
            yield (
                old,
                *select(outcomes, piece.low, piece.high, stack=self._shape.stack, n_step=self._shape.n_step),
            )


def _check_frames(file: ReplayFile, lanes: Lanes) -> None:
    expected, found = lanes.memory.dtype["frame"], file.frame_dtype
    if found != expected:
        raise StorageError(f"{file.path}: expected frames of {expected}, found {found}: give another run.dir")


def _priorities(file: ReplayFile, lane: int, outcomes: np.ndarray) -> np.ndarray:
    """float64 ``[N]`` of a lane's records."""
    return file.priorities(lane) if file.has_priorities else np.where(outcomes["final"] == 0, 1.0, 0.0)


def _set_end(lanes: Lanes, lane: int, end: int) -> None:
    lanes.cursors.reserve(np.array([lane]), end)
    lanes.cursors.commit(np.array([lane]), end)


def _number(owner: str) -> int:
    return int(owner.rpartition("-")[2])


def _sizes(shapes: Sequence[Shape]) -> str:
    """``2 memories of 4 lanes x 5,000 records``."""
    runs = [(shape, len(list(same))) for shape, same in itertools.groupby(shapes)]
    return " and ".join(
        f"{count} {'memory' if count == 1 else 'memories'} of {shape.num_lanes} lanes x {shape.capacity:,} records"
        for shape, count in runs
    )
