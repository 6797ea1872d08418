"""A replay that keeps everything in Python lists and builds each transition by walking: the oracle of these tests.

A frame is int32 ``[lane + 1, episode + 1, t + 1]``, so that it names itself and is never all zeros.
"""

from typing import NamedTuple

import numpy as np

from hpcrl.replay import Lanes

STEP, LIFE_LOST, TERMINATE, TRUNCATE = "step", "life lost", "terminate", "truncate"


class Record(NamedTuple):
    frame: tuple[int, int, int]
    action: int
    reward: float
    terminated: bool
    truncated: bool
    first: bool
    final: bool


class Transition(NamedTuple):
    s_tm1: list
    a_tm1: int
    r_t: float
    discount_t: float
    s_t: list


class Writer:
    """Plays made-up episodes into lanes as an actor does, and remembers all of it in ``records[lane]``."""

    def __init__(self, lanes: Lanes):
        self.lanes = lanes
        self.records = [[] for _ in range(lanes.num_lanes)]
        self._episode = [0] * lanes.num_lanes
        self._t = [0] * lanes.num_lanes
        self._count = 0

    def step(self, events: dict[int, str]) -> None:
        """One step in each lane of ``events``, which says how it ends."""
        rows = [self._record(lane, event) for lane, event in events.items()]
        self._append(list(events), rows)
        over = [lane for lane, event in events.items() if event in (TERMINATE, TRUNCATE)]
        if over:
            finals = [Record(self._frame(lane), 0, 0.0, False, False, False, True) for lane in over]
            self.lanes.append_final(np.array(over), np.array([record.frame for record in finals], np.int32))
            for lane, record in zip(over, finals, strict=True):
                self.records[lane].append(record)
                self._episode[lane] += 1
                self._t[lane] = 0

    def _record(self, lane: int, event: str) -> Record:
        self._count += 1
        record = Record(
            frame=self._frame(lane),
            action=self._count % 18,
            reward=float(self._count % 7 - 3),
            terminated=event in (LIFE_LOST, TERMINATE),
            truncated=event == TRUNCATE,
            first=self._t[lane] == 0,
            final=False,
        )
        self._t[lane] += 1
        return record

    def _frame(self, lane: int) -> tuple[int, int, int]:
        return lane + 1, self._episode[lane] + 1, self._t[lane] + 1

    def _append(self, lanes: list[int], rows: list[Record]) -> None:
        self.lanes.append(
            np.array(lanes, np.int64),
            frame=np.array([row.frame for row in rows], np.int32),
            action=np.array([row.action for row in rows]),
            reward=np.array([row.reward for row in rows], np.float32),
            terminated=np.array([row.terminated for row in rows]),
            truncated=np.array([row.truncated for row in rows]),
            first=np.array([row.first for row in rows]),
        )
        for lane, row in zip(lanes, rows, strict=True):
            self.records[lane].append(row)

    def index_of(self, frame: np.ndarray) -> tuple[int, int]:
        """Lane and absolute index of a frame."""
        lane = int(frame[0]) - 1
        tag = tuple(int(word) for word in frame)
        return lane, next(i for i, record in enumerate(self.records[lane]) if record.frame == tag)


def observation(records: list[Record], i: int, stack: int) -> list:
    """The ``stack`` frames up to record ``i``, zeros before its episode."""
    frames = [records[i].frame]
    while len(frames) < stack:
        if frames[0] == (0, 0, 0) or records[i].first:
            frames.insert(0, (0, 0, 0))
        else:
            i -= 1
            frames.insert(0, records[i].frame)
    return [list(frame) for frame in frames]


def transition(records: list[Record], i: int, *, stack: int, n_step: int, discount: float, clip: float) -> Transition:
    """The n-step transition that starts at record ``i``."""
    r_t, discount_t, j = 0.0, 1.0, i
    for _ in range(n_step):
        r_t += discount_t * min(max(records[j].reward, -clip), clip)
        discount_t *= discount
        j += 1
        if records[j - 1].terminated:
            discount_t = 0.0
        if records[j - 1].terminated or records[j - 1].truncated:
            break
    s_tm1, s_t = observation(records, i, stack), observation(records, j, stack)
    return Transition(s_tm1, records[i].action, r_t, discount_t, s_t)


def drawable(records: list[Record], *, capacity: int, stack: int, n_step: int, margin: int) -> list[int]:
    """Indices that may be drawn as ``s_tm1``."""
    oldest = len(records) - capacity + margin
    return [
        i for i in range(len(records) - n_step) if not records[i].final and (oldest <= 0 or i - stack + 1 >= oldest)
    ]
