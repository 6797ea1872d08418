"""The monitor: run log, display, checkpoints, time limit and stop file of the whole job."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcrl.errors import StorageError
from hpcrl.roles.checkpointing import CheckpointKeeper
from hpcrl.roles.display import Progress
from hpcrl.roles.heartbeat import Attendance
from hpcrl.roles.metrics import decode
from hpcrl.roles.stopping import Deadline, StopFlag
from hpcrl.roles.writer import Writer
from hpcrl.storage import schema
from hpcrl.storage.runlog import RunLog
from hpcrl.transport.counters import Counters
from hpcrl.transport.ring import Rings

log = logging.getLogger(__name__)

DRAIN_SECONDS = 0.02
"""How often reports are taken in: a server that looks for gradients all the time must not also look for these."""
RATE_SECONDS = 5.0
"""Rates on the display are those of the last so many seconds."""
TICK_SECONDS = 0.5
"""How often the display is refreshed and files, limits and checkpoints are looked after."""


class Sample(NamedTuple):
    """Counts at one moment; rates are differences of two. Those that are reported count from this start of the run."""

    seconds: float
    frames: int
    updates: int
    accepted: float
    staleness: float
    trained: float
    acted: float
    """agent steps as the actors told them, as late as what learners tell"""


class Monitor:
    """Gathers the reports of all ranks.

    Parameters
    ----------
    run_dir : Path
    reports : Rings
        Rings from every rank to this one.
    counters : Counters
    stop : StopFlag
    writer : Writer
    keeper : CheckpointKeeper
    runlog : RunLog
    display
        Has ``update(progress)`` and ``close()``.
    attendance : Attendance
        Who gives signs of life.
    frames_per_step, total_frames, total_updates, time_limit_seconds
        Unit of the counts and the ends of the run; 0 for none.
    period_seconds : float
        Seconds between two rows of the run log and two checkpoints.
    wall_seconds : float
        Training time of earlier starts of this run. [seconds]
    deadline : Deadline
        When the job is ended from outside.
    """

    kind, index = "monitor", 0

    def __init__(
        self,
        *,
        name: str,
        run_dir: Path,
        reports: Rings,
        counters: Counters,
        stop: StopFlag,
        writer: Writer,
        keeper: CheckpointKeeper,
        runlog: RunLog,
        display,
        attendance: Attendance,
        frames_per_step: int,
        total_frames: int,
        total_updates: int,
        time_limit_seconds: float,
        log_seconds: float,
        checkpoint_seconds: float,
        heartbeat_seconds: float,
        wall_seconds: float,
        deadline: Deadline,
    ):
        self.name, self.run_dir, self.reports, self.counters, self.stop = name, run_dir, reports, counters, stop
        self.writer, self.keeper, self.runlog, self.display = writer, keeper, runlog, display
        self.attendance, self.frames_per_step, self.deadline = attendance, frames_per_step, deadline
        self.total_frames, self.total_updates, self.time_limit = total_frames, total_updates, time_limit_seconds
        self.log_seconds, self.checkpoint_seconds, self.heartbeat_seconds = (
            log_seconds,
            checkpoint_seconds,
            heartbeat_seconds,
        )
        self.began = time.monotonic()
        self.earlier_seconds = wall_seconds
        self.returns: deque[float] = deque(maxlen=100)
        self.gradients: Counter[tuple[float, float, float]] = Counter()
        """Gradients not yet in the run log, by learner, fate and delay."""
        self.first: dict[tuple[str, int], dict[str, float]] = {}
        self.last: dict[tuple[str, int], dict[str, float]] = {}
        """first and newest report of each role in this start of the run; counts go on over restarts, and means that the
        newest does not have are those before"""
        self.progress: Progress | None = None
        self._next_tick = self._next_drain = 0.0
        self._num_left: Callable[[], int] | None = None
        self._last_checkpoint_begun = self._showing = False
        self._next_row, self._next_checkpoint = self.began + log_seconds, self.began + checkpoint_seconds
        self._start = self._sample()
        self._row_before = self._start
        self._recent = deque([self._start], maxlen=round(RATE_SECONDS / TICK_SECONDS))

    def wall_seconds(self) -> float:
        """Training time of the run so far, over its restarts."""
        return self.earlier_seconds + time.monotonic() - self.began

    def step(self) -> bool:
        """Take in what was reported; twice a second, look after everything else."""
        now = time.monotonic()
        if now < self._next_drain:
            return False
        self._next_drain = now + DRAIN_SECONDS
        heard = self._drain()
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._tick()
        self.attendance.look()
        self.keeper.step()
        if self._num_left is not None:
            self._close()
        return heard

    def _drain(self) -> bool:
        """Take in all reports that wait; whether there were any."""
        waiting = self.reports.waiting()
        for producer, count in enumerate(waiting):
            for _ in range(count):
                self._hear(*decode(self.reports.oldest(producer)))
                self.reports.pop([producer])
        return any(waiting)

    def _hear(self, kind: str, index: int, values: dict[str, float]) -> None:
        if kind == "episode":
            self.returns.append(values["episode_return"])
            self._log("episodes", {"wall_seconds": self.wall_seconds(), "actor": index, **values})
            return
        if kind == "gradient":
            self.gradients[index, values["fate"], values["delay_updates"]] += values["count"]
            return
        if kind in ("policy", "norm"):
            clocks = {"wall_seconds": self.wall_seconds(), "total_frames": self.counters.get("total_frames")}
            self._log({"policy": "policies", "norm": "norms"}[kind], {**clocks, "learner": index, **values})
            return
        if kind == "secondary":
            clocks = {"wall_seconds": self.wall_seconds(), "total_frames": self.counters.get("total_frames")}
            self._log("secondary", {**clocks, **values})
            return
        if kind == "order":
            self._log("order", {"wall_seconds": self.wall_seconds(), "index": index, **values})
            return
        if kind == "span":
            clocks = {name: self.counters.get(name) for name in ("total_frames", "global_update")}
            begin = values.pop("begin")
            self._log("spans", {"wall_seconds": begin, **clocks, "rank": index, **values})
            return
        if kind == "evaluator":
            self._log("evaluations", {"wall_seconds": self.wall_seconds(), **values})
            log.info(
                "evaluation at update %d: mean return %.2f over %d episodes (epsilon %g)",
                values["global_update"],
                values["mean_return"],
                values["episodes"],
                values["epsilon"],
            )
            self.keeper.evaluated(int(values["global_update"]), values["mean_return"], int(values["episodes"]))
        self.first.setdefault((kind, index), values)
        # A mean over nothing, as of a learner that made no update since its last report, says nothing new.
        known = {name: value for name, value in values.items() if not np.isnan(value)}
        self.last[kind, index] = {**values, **self.last.get((kind, index), {}), **known}

    def _log(self, table: str, row: dict[str, float]) -> None:
        try:
            self.runlog.append(table, row)
        except StorageError as error:
            log.warning("%s", error)

    def _tick(self) -> None:
        sample, self.progress = self._measure(self._recent[0])
        self._recent.append(sample)
        progress = self.progress
        if not self._showing:  # a terminal that is stopped (Ctrl-S) must not pile up work

            def show() -> None:
                self.display.update(progress)
                self._showing = False

            self._showing = True
            self.writer.submit(show)
        now = time.monotonic()
        if now >= self._next_row:
            self._next_row = now + self.log_seconds
            self.write_row()
        if self.stop.value:
            return
        if now >= self._next_checkpoint:
            self._next_checkpoint = now + self.checkpoint_seconds
            self.write_gradients()
            self.keeper.begin(self.counters.get("global_update"))
        self._look_for_the_end()

    def close_when_left(self, num_left: Callable[[], int]) -> None:
        """The run is over: write the last checkpoint as soon as all ranks have left, then let everyone go.

        A rank that is silent is not waited for, nor is one that has not left within ``heartbeat_seconds``, or a third
        of the time that is left.
        """
        self._look_for_term()
        self._patience = min(self.heartbeat_seconds, self.deadline.left() / 3)
        self._num_left, self._patience_ends = num_left, time.monotonic() + self._patience

    def _close(self) -> None:
        self._look_for_term()
        if self._last_checkpoint_begun:
            if not self.keeper.busy and self.writer.idle():
                self.counters.set("closed", 1)
        elif not self.keeper.busy and (self._all_left() or self._out_of_patience()):
            self._begin_last_checkpoint()
            self._last_checkpoint_begun = True

    def _look_for_term(self) -> None:
        if self.stop.request.urgent:
            self.deadline.hurry()

    def _begin_last_checkpoint(self) -> None:
        whole = self.deadline.leaves_time_for(self.keeper.seconds)
        if not whole:
            log.warning(
                "the job is ended in %.0f s, and a checkpoint takes some %.0f s: the last one is without replay",
                self.deadline.left(),
                self.keeper.seconds,
            )
        self.keeper.begin(self.counters.get("global_update"), without_replay=not whole)

    def _all_left(self) -> bool:
        return self._num_left() + len(self.attendance.expendable()) >= len(self.attendance.labels)

    def _out_of_patience(self) -> bool:
        late = time.monotonic() > self._patience_ends
        if late:
            log.warning(
                "some rank has not left its work within %g s; the last checkpoint is written without it",
                self._patience,
            )
        return late

    def end(self) -> None:
        """Write the last rows and the summary."""
        self.write_gradients()
        self.write_row()
        progress = self._measure(self._start)[1]
        self.writer.submit(lambda: self.display.close(progress))
        self.writer.submit(self.runlog.close)
        self.writer.close()

    def _look_for_the_end(self) -> None:
        if (self.run_dir / schema.STOP_FILE).exists():
            log.info("stop file found: stopping")
            self.stop.stop()
        elif self.time_limit and time.monotonic() - self.began > self.time_limit:
            log.info("run.time_limit_seconds reached: stopping")
            self.stop.stop()
        elif self.deadline.near(self.keeper.seconds):
            log.info(
                "the job is ended in %.0f s, and a checkpoint takes some %.0f s: stopping",
                self.deadline.left(),
                self.keeper.seconds,
            )
            self.stop.stop()

    def write_row(self) -> None:
        """Add a row of progress to the run log, and let everything buffered reach the disk."""
        self._row_before, row = self._measure(self._row_before)
        self._log("progress", {name: getattr(row, name) for name in schema.TABLES["progress"]})
        self.writer.submit(self.runlog.flush)

    def write_gradients(self) -> None:
        """Add what became of the learners' gradients since this was last called to the run log."""
        clocks = {
            "wall_seconds": self.wall_seconds(),
            "total_frames": self.counters.get("total_frames"),
            "global_update": self.counters.get("global_update"),
        }
        for (learner, fate, delay), count in sorted(self.gradients.items()):
            row = {"learner": learner, "fate": fate, "delay_updates": delay, "count": count}
            self._log("gradients", {**clocks, **row})
        self.gradients.clear()

    def _sum(self, kind: str, name: str) -> float:
        return sum(values[name] for (k, _), values in self.last.items() if k == kind)

    def _gain(self, kind: str, name: str) -> float:
        return self._sum(kind, name) - sum(values[name] for (k, _), values in self.first.items() if k == kind)

    def _mean(self, kind: str, name: str) -> float:
        values = [values[name] for (k, _), values in self.last.items() if k == kind]
        values = [value for value in values if not np.isnan(value)]
        return float(np.mean(values)) if values else float("nan")

    def _sample(self) -> Sample:
        return Sample(
            time.monotonic(),
            self.counters.get("total_frames"),
            self.counters.get("global_update"),
            self._gain("parameter_server", "accepted"),
            self._gain("parameter_server", "staleness_sum"),
            self._gain("learner", "trained"),
            self._gain("actor", "steps"),
        )

    def _measure(self, before: Sample) -> tuple[Sample, Progress]:
        """Progress now, with rates and means since ``before``."""
        now = self._sample()
        seconds = max(now.seconds - before.seconds, 1e-9)
        frames_per_second = (now.frames - before.frames) / seconds
        updates_per_second = (now.updates - before.updates) / seconds
        accepted = now.accepted - before.accepted
        acted = now.acted - before.acted
        shards = len(self.attendance.ranks["parameter_server"])
        progress = Progress(
            wall_seconds=self.wall_seconds(),
            total_frames=now.frames,
            total_steps=now.frames // self.frames_per_step,
            global_update=now.updates,
            steps_per_second=frames_per_second / self.frames_per_step,
            frames_per_second=frames_per_second,
            updates_per_second=updates_per_second,
            epsilon=self._mean("actor", "epsilon"),
            mean_return_100=float(np.mean(self.returns)) if self.returns else float("nan"),
            staleness_mean=(now.staleness - before.staleness) / accepted if accepted else float("nan"),
            gradients_accepted=round(self._sum("parameter_server", "accepted") / shards),
            gradients_dropped=round(self._sum("parameter_server", "dropped") / shards),
            learning_rate=self._mean("parameter_server", "learning_rate"),
            effective_rate=self._mean("parameter_server", "effective_rate"),
            training_intensity=(now.trained - before.trained) / acted if acted else float("nan"),
            replay_fill=self._mean("learner", "replay_fill"),
            sampling_hidden=self._mean("learner", "sampling_hidden"),
            samples_redrawn=round(self._sum("learner", "overwritten")),
            replay_age_steps=self._mean("learner", "replay_age"),
            mean_priority=self._mean("learner", "mean_priority"),
            priorities_dropped=round(self._sum("replay_host", "dropped")),
            loss=self._mean("learner", "loss"),
            mean_q=self._mean("learner", "mean_q"),
            eta_seconds=self._eta(now, frames_per_second, updates_per_second),
            alive=self.attendance.alive(),
            total_frames_goal=self.total_frames,
            total_updates_goal=self.total_updates,
            run_dir=self.run_dir,
            name=self.name,
        )
        return now, progress

    def _eta(self, now: Sample, frames_per_second: float, updates_per_second: float) -> float:
        ends = []
        if self.total_frames and frames_per_second > 0:
            ends.append((self.total_frames - now.frames) / frames_per_second)
        if self.total_updates and updates_per_second > 0:
            ends.append((self.total_updates - now.updates) / updates_per_second)
        if self.time_limit:
            ends.append(self.time_limit - (time.monotonic() - self.began))
        return max(min(ends), 0.0) if ends else float("nan")

    def state(self) -> dict:
        """Everything that a checkpoint must hold of the monitor; copies. What was logged before reaches the disk first.

        The checkpoint is finished by the same thread, after the rows.
        """
        self.keeper.cut()
        self._drain()
        self.write_gradients()
        self.writer.submit(self.runlog.flush)
        return {"returns": np.array(self.returns)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave."""
        self.returns.extend(state["returns"].tolist())
