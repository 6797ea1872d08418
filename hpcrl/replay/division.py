"""Dividing stored transitions over lanes of other numbers and lengths, each kept exactly once.

A transition needs more records than its own: history for its observations, and the steps of its return with the frame
behind them. Where a run of transitions is cut, both parts keep what they need, marked as context (`lanes.HEAD`,
`lanes.TAIL`), which is never drawn. So any lane may be cut anywhere, and what can be drawn stays the same, with no
transition lost, doubled or shortened.
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpcrl.replay.lanes import FINAL, HEAD, OLDEST_MARGIN_RECORDS, TAIL, Lanes


class Piece(NamedTuple):
    """Transitions of one old lane, ``low`` to ``high`` of those that `transitions` finds in it."""

    lane: int
    low: int
    high: int


def divide(counts: Sequence[int], capacities: Sequence[int]) -> list[list[Piece]]:
    """Share the transitions of old lanes out among new ones.

    As many lanes as before: each goes on as it is. Otherwise they are laid end to end and cut so that all lanes are
    filled alike. Where they are more than all lanes may hold, the oldest of each lane are left out.

    Parameters
    ----------
    counts
        Transitions of each old lane.
    capacities
        Transitions that each new lane may hold.

    Returns
    -------
    list
        For each new lane, what it takes, in order.
    """
    if len(counts) == len(capacities):
        return [
            [Piece(lane, max(0, count - capacity), count)] if count else []
            for lane, (count, capacity) in enumerate(zip(counts, capacities, strict=True))
        ]
    total, room = sum(counts), sum(capacities)
    kept = min(total, room)
    # The old lanes' kept transitions, laid end to end; lane k's are those from old_ends[k - 1] to old_ends[k].
    old_ends = [end * kept // max(total, 1) for end in itertools.accumulate(counts, initial=0)]
    new_ends = [end * kept // max(room, 1) for end in itertools.accumulate(capacities, initial=0)]
    lanes = []
    for low, high in itertools.pairwise(new_ends):
        pieces = []
        for old, (begin, end) in enumerate(itertools.pairwise(old_ends)):
            if max(low, begin) < min(high, end):
                left_out = counts[old] - end  # turns a place in the row into one in the lane
                pieces.append(Piece(old, max(low, begin) + left_out, min(high, end) + left_out))
        lanes.append(pieces)
    return lanes


def transitions(outcomes: np.ndarray, *, stack: int, n_step: int) -> np.ndarray:
    """Which of consecutive records begin a transition whose every part is among them.

    Parameters
    ----------
    outcomes
        ``[N]`` records of one lane, oldest first, with or without their frames.
    stack, n_step
        Frames of an observation and steps of a return.

    Returns
    -------
    np.ndarray
        int64 ``[T]`` positions, in order.
    """
    return np.flatnonzero(_extents(outcomes, stack, n_step)[0])


def select(outcomes: np.ndarray, low: int, high: int, *, stack: int, n_step: int) -> tuple[np.ndarray, np.ndarray]:
    """The records that the transitions ``low`` to ``high`` of a lane need.

    Parameters
    ----------
    outcomes, stack, n_step
        As for `transitions`.
    low, high
        A part of what it returns.

    Returns
    -------
    positions : np.ndarray
        int64 ``[K]``, in order.
    final : np.ndarray
        uint8 ``[K]``: the flag ``final`` that each of them gets.
    """
    whole, run, oldest, newest = _extents(outcomes, stack, n_step)
    chosen = np.flatnonzero(whole)[low:high]
    size = len(outcomes) + 1
    covered = np.bincount(oldest[chosen], minlength=size) - np.bincount(newest[chosen] + 1, minlength=size)
    positions = np.flatnonzero(covered.cumsum()[:-1])
    is_chosen = np.zeros(len(outcomes), bool)
    is_chosen[chosen] = True
    last_chosen = np.maximum.accumulate(np.where(is_chosen, np.arange(len(outcomes)), -1))
    context = np.where(last_chosen >= run, TAIL, HEAD)
    final = np.where(is_chosen, 0, np.where(outcomes["final"] == FINAL, FINAL, context))
    return positions, final[positions].astype(np.uint8)


def records_needed(num_records: int) -> int:
    """Capacity of a lane that can hold so many records and have all of its transitions drawn."""
    return num_records + OLDEST_MARGIN_RECORDS


def leave_open_episodes(lanes: Lanes, which: np.ndarray) -> None:
    """Mark the end of lanes whose last episode will never go on, as their simulators start afresh.

    Called by the lanes' only writer, before it writes.
    """
    committed = lanes.cursors.committed()
    for lane in which:
        end = int(committed[lane])
        index = np.arange(max(end - 2 * lanes.n_step, end - lanes.capacity, 0), end)
        last = lanes.memory[lane, index % lanes.capacity]
        unfinished = (last["final"] == 0) & ~_extents(last, 1, lanes.n_step)[0]
        slots = index[unfinished] % lanes.capacity
        lanes.memory["final"][lane, np.r_[slots, slots[slots < lanes.mirror] + lanes.capacity]] = TAIL


def _extents(outcomes: np.ndarray, stack: int, n_step: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """For each record: whether it begins a whole transition; where its run begins; the oldest and newest record that
    the transition needs.

    A run is an unbroken stretch of one episode. All are ``[N]``, the last three int32 positions.
    """
    position = np.arange(len(outcomes), dtype=np.int32)  # lanes are long: half the memory of int64
    first, kind = outcomes["first"] != 0, outcomes["final"]
    begins = first.copy()
    begins[:1] = True
    begins[1:] |= (kind[:-1] == FINAL) | ((kind[:-1] == TAIL) & (kind[1:] != TAIL) & (kind[1:] != FINAL))
    begins[1:] |= (kind[1:] == HEAD) & (kind[:-1] != HEAD)
    run = np.maximum.accumulate(np.where(begins, position, 0))
    run_starts = np.flatnonzero(begins)
    run_end = np.append(run_starts[1:], len(outcomes))[begins.cumsum() - 1] - 1
    over = (outcomes["terminated"] != 0) | (outcomes["truncated"] != 0)
    next_over = np.minimum.accumulate(np.where(over, position, len(outcomes) + n_step)[::-1])[::-1]
    newest = position + np.minimum(n_step, next_over - position + 1)
    history = (position - run >= stack - 1) | first[run]
    whole = (kind == 0) & history & (newest <= run_end)
    return whole, run, np.maximum(position - (stack - 1), run), newest
