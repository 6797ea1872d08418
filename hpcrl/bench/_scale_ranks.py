"""The ranks of ``hpcrl bench scale``: hpcrl's own roles, rings, windows, counters, run log and checkpoints.

``python -m hpcrl.bench._scale_ranks SPEC``, under mpiexec, SPEC in JSON (see `hpcrl.bench.scale.Spec`). Only what a
bundle computes is missing: simulators, network and gradient sleep as long as they would take, experience and gradients
are synthetic, and no rank but the servers loads torch. Rank 0 prints one line, `MARK` and then what all ranks found.
"""

import json
import os
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from hpcrl.launch.leaving import leave
from hpcrl.launch.nodes import places
from hpcrl.launch.signals import stop_on_signals
from hpcrl.launch.topology import Plan, plan, shard_bounds
from hpcrl.launch.tracing import trace
from hpcrl.replay.lanes import local_lanes
from hpcrl.roles import loop
from hpcrl.roles.actor import Actor
from hpcrl.roles.checkpointing import CheckpointKeeper, RoleState, StateWriter, owner_name
from hpcrl.roles.gradient_record import HEADER_WORDS, gradient_place
from hpcrl.roles.heartbeat import Attendance, Heartbeat
from hpcrl.roles.learner import Learner
from hpcrl.roles.metrics import RECORD, Reporter
from hpcrl.roles.monitor import Monitor
from hpcrl.roles.ratio import LocalTally, TrainingRatio
from hpcrl.roles.stopping import Deadline, StopFlag
from hpcrl.roles.timeline import Timeline
from hpcrl.roles.updates import ServerUpdate
from hpcrl.roles.writer import Writer
from hpcrl.storage.runlog import RunLog
from hpcrl.storage.schema import ACTIVITIES
from hpcrl.transport.counters import Counters
from hpcrl.transport.parameters import ShardedVector
from hpcrl.transport.ring import Rings
from hpcrl.transport.waiting import Backoff, wait_for_all
from hpcrl.types import Batch, EnvStep

SIMULATORS, BATCH_SIZE, INTENSITY = 4, 32, 8.0
FRAME, STACK, CAPACITY = (84, 84), 4, 64
REPORT_RECORDS = 256
LOOK_SECONDS = 0.25


class SleepingEnv:
    """Simulators whose steps take a fixed time and whose frames are all alike."""

    def __init__(self, seconds: float):
        self.num_envs, self.seconds = SIMULATORS, seconds
        self.frame = np.zeros((SIMULATORS, *FRAME), np.uint8)
        self.observation = np.zeros((SIMULATORS, STACK, *FRAME), np.uint8)
        self.nothing, self.zero = np.zeros(SIMULATORS, bool), np.zeros(SIMULATORS, np.float32)

    def reset(self) -> np.ndarray:
        """First frames."""
        return self.frame

    def step(self, action: np.ndarray) -> EnvStep:
        """One step of all."""
        time.sleep(self.seconds)
        no = self.nothing
        return EnvStep(self.frame, self.zero, no, no, no, no, self.frame)


class SleepingPolicy:
    """Random actions after a fixed time."""

    def __init__(self, seconds: float):
        self.seconds, self.rng, self.values = seconds, np.random.default_rng(0), None

    def act(self, observation: np.ndarray, epsilon: np.ndarray) -> np.ndarray:
        """int64 ``[E]``."""
        time.sleep(self.seconds)
        return self.rng.integers(6, size=len(observation))


class SleepingAlgorithm:
    """Leaves the gradient as it is, after a fixed time."""

    def __init__(self, seconds: float):
        self.seconds = seconds

    def gradient(self, batch: Batch) -> tuple[float, float, np.ndarray]:
        """Loss, value and errors."""
        time.sleep(self.seconds)
        return 0.0, 0.0, batch.r_t


class OneBatch:
    """A replay memory that always gives the same minibatch."""

    fill, overwritten = 1.0, 0
    hidden = age = mean_priority = float("nan")

    def __init__(self):
        zeros = np.zeros(BATCH_SIZE, np.float32)
        observations = np.zeros((1, 1), np.uint8)
        self.batch = Batch(observations, np.zeros(BATCH_SIZE, np.int64), zeros, zeros, observations)

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch:
        """The minibatch."""
        return self.batch

    def update(self, batch: Batch, errors: np.ndarray) -> None:
        """Nothing to keep."""


class NumpyReplica:
    """The parameters as a learner holds them, and its gradient, without a network."""

    def __init__(self, vector: ShardedVector, gradients: np.ndarray | None = None):
        self.vector, self.flat = vector, SimpleNamespace(check=lambda: None)
        self.values = np.zeros(vector.size, np.float32)
        self.gradients = np.empty(vector.size, np.float32) if gradients is None else gradients
        self.gradients[:] = 1e-6
        self.versions = np.full(len(vector.owners), -1, np.int64)
        self.pulls = 0
        self.timed_pulls: list[tuple[float, float]] = []
        """when those that brought something began, and how long they took [s]"""

    def pull(self) -> bool:
        """Take the newest parameters."""
        self.pulls += 1
        begin = time.time()
        new = self.vector.pull(self.values, self.versions)
        if new:
            self.timed_pulls.append((begin, time.time() - begin))
        return new

    def host_gradients(self) -> np.ndarray:
        """float32 ``[P]``."""
        return self.gradients

    @property
    def empty(self) -> bool:
        """Whether nothing was pulled yet."""
        return bool(self.versions[0] < 0)

    @property
    def global_update(self) -> int:
        """Version of shard 0."""
        return int(self.versions[0])


class Job:
    """What the ranks share, made as `hpcrl.launch.job` does; collective."""

    def __init__(self, comm: MPI.Intracomm, spec: SimpleNamespace, resources: ExitStack):
        self.comm, self.spec, self.resources = comm, spec, resources
        found = places(comm)
        self.plan: Plan = plan(
            comm.size,
            [place.node for place in found],
            layout="bundled",
            servers=spec.servers,
            bundles=spec.bundles,
            learners=0,
            actors=0,
            evaluators=0,
            monitor="shared",
            cores_per_node=1,
            gpus_per_node=0,
            learner_threads=1,
        )
        self.roles = self.plan.ranks[comm.rank].roles
        self.servers, self.learners = self.plan.ranks_of("parameter_server"), self.plan.ranks_of("learner")
        self.monitor_rank = self.plan.ranks_of("monitor")[0]
        self.labels = [f"rank {r.rank} ({', '.join(map(str, r.roles))})" for r in self.plan.ranks]
        self.bounds = shard_bounds(spec.parameters, spec.servers)
        self.owners = {r.rank: [owner_name(role) for role in r.roles] for r in self.plan.ranks}
        if comm.rank in self.servers:
            import torch  # noqa: F401
        wait_for_all(comm)  # asleep; who is in MPI for a window, before servers have torch, keeps a core busy
        self._make_windows()
        self.stop = StopFlag(self.counters, stop_on_signals())
        send = partial(self._report, self.reports, self.monitor_rank)
        self.reporter = Reporter(send, spec.report_period_seconds)
        self.timeline = Timeline()

    @staticmethod
    def _report(reports: Rings, monitor: int, record: np.ndarray) -> bool:
        return reports.push({monitor: (record,)})

    def keep(self, resource):
        """Free ``resource`` at the end."""
        self.resources.callback(resource.free)
        return resource

    def _make_windows(self) -> None:
        comm, spec = self.comm, self.spec
        vector = {"owners": self.servers, "bounds": self.bounds, "readers": self.learners}
        self.params = self.keep(ShardedVector(comm, name="parameters", slots=spec.slots, **vector))
        self.targets = self.keep(ShardedVector(comm, name="targets", slots=3, **vector))
        record = 8 * HEADER_WORDS + 4 * np.diff(self.bounds)
        lengths = dict(zip(self.servers, map(int, record), strict=True))
        rings = {"producers": self.learners, "record_bytes": lengths, "capacity": spec.pipeline + 1}
        self.gradients = self.keep(Rings(comm, name="gradients", **rings))
        rings = {"producers": range(comm.size), "record_bytes": {self.monitor_rank: RECORD.itemsize}}
        self.reports = self.keep(Rings(comm, name="reports", capacity=REPORT_RECORDS, **rings))
        names = ["total_frames", "global_update", "stop", "checkpoint", "left", "closed", "without_replay"]
        names += [f"{word}/{rank}" for rank in self.owners for word in ("written", "held")]
        self.counters = self.keep(Counters(comm, owner=self.servers[0], names=names))
        ranks = [str(rank) for rank in range(comm.size)]
        self.beats = self.keep(Counters(comm, owner=self.monitor_rank, names=ranks, window="beats"))

    def end(self, message: str, code: int) -> None:
        """End all ranks."""
        os.write(2, message.encode())
        self.comm.Abort(code)


# Roles --------------------------------------------------------------------------------------------------------------


def make_roles(job: Job) -> list:
    """The roles of this rank."""
    makers = {"parameter_server": make_server, "actor": make_actor, "learner": make_learner, "monitor": make_monitor}
    if any(role.kind == "learner" for role in job.roles):
        place = gradient_place(job.gradients, job.servers)
        job.online, job.sleeps = NumpyReplica(job.params, place), job.spec.sleeps
        job.ratio = TrainingRatio(
            LocalTally(), intensity=INTENSITY, batch_size=BATCH_SIZE, learning_starts=SIMULATORS, slack_updates=1
        )
    roles = [makers[role.kind](job, role.index) for role in job.roles]
    owners = [RoleState(role) for role in roles]
    return [*roles, StateWriter(job.comm.rank, owners, counters=job.counters, run_dir=job.run_dir, wait=False)]


def make_server(job: Job, index: int):
    """A parameter server with its real optimizer."""
    import torch

    from hpcrl.algorithms.optimizers import Optimizer, make_rule
    from hpcrl.roles.parameter_server import ParameterServer

    torch.set_num_threads(1)
    spec = job.spec
    server = ParameterServer(
        index,
        optimizer=Optimizer(
            torch.zeros(job.bounds[index + 1] - job.bounds[index]), make_rule(spec.optimizer, epsilon=1e-5), 1e-4
        ),
        learning_rate=lambda version: 1e-4,
        params=job.params,
        targets=job.targets,
        gradients=job.gradients,
        staleness_bound=4 * len(job.learners),
        target_period=spec.target_period,
        last_update=0,
        at_end=job.stop.finish,
        announce=partial(job.counters.set, "global_update") if index == 0 else lambda version: None,
        reporter=job.reporter,
    )
    server.publish()
    return server


def make_actor(job: Job, index: int) -> Actor:
    """An actor whose simulators and network sleep."""
    frames = partial(job.counters.add, "total_frames")
    return Actor(
        index,
        replica=job.online,
        policy=SleepingPolicy(job.sleeps["infer"]),
        env=SleepingEnv(job.sleeps["simulate"]),
        lanes=local_lanes(SIMULATORS, FRAME, np.uint8, capacity=CAPACITY, stack=STACK, n_step=1),
        first_lane=0,
        newcomers=None,
        ratio=job.ratio,
        sync_period=job.spec.sync_period,
        shares_pulls=True,
        epsilon=lambda global_update, total_frames: np.zeros(SIMULATORS),
        count=lambda steps: frames(4 * steps),
        reporter=job.reporter,
    )


def make_learner(job: Job, index: int) -> Learner:
    """A learner whose gradient sleeps."""
    online, target, spec = job.online, NumpyReplica(job.targets), job.spec
    return Learner(
        index,
        online=online,
        target=target,
        update=ServerUpdate(
            online,
            target,
            gradients=job.gradients,
            servers=list(zip(job.servers, job.bounds[:-1], job.bounds[1:], strict=True)),
            pipeline=spec.pipeline,
            pull_period=1,
            target_period=spec.target_period,
        ),
        algorithm=SleepingAlgorithm(job.sleeps["gradient"]),
        guard=None,
        replay=OneBatch(),
        ratio=job.ratio,
        batch_size=BATCH_SIZE,
        rng=np.random.default_rng(index),
        reporter=job.reporter,
    )


def make_monitor(job: Job, index: int) -> Monitor:
    """The monitor with run log, writer thread and checkpoints."""
    writer, spec = Writer(), job.spec
    attendance = Attendance(
        beats=job.beats,
        labels=job.labels,
        ranks={kind: job.plan.ranks_of(kind) for kind in ("parameter_server", "learner", "actor")},
        needed=job.plan.needed(False),
        heartbeat_seconds=spec.heartbeat_seconds,
        stall_seconds=spec.stall_seconds,
        end=job.end,
    )
    keeper = CheckpointKeeper(
        run_dir=job.run_dir,
        counters=job.counters,
        owners=job.owners,
        attributes=lambda: {name: job.counters.get(name) for name in ("total_frames", "global_update")},
        submit=writer.submit,
        keep_last=1,
        keep_every=0,
        silent=attendance.expendable,
        period_seconds=1e6,
        wait=False,
        expected_seconds=1.0,
    )
    return Monitor(
        name="bench_scale",
        run_dir=job.run_dir,
        reports=job.reports,
        counters=job.counters,
        stop=job.stop,
        writer=writer,
        keeper=keeper,
        runlog=RunLog(job.run_dir, {"config": "", "seed": 0, "command_line": " ".join(sys.argv)}),
        display=SimpleNamespace(update=lambda progress: None, close=lambda progress: None),
        attendance=attendance,
        frames_per_step=4,
        total_frames=0,
        total_updates=0,
        time_limit_seconds=spec.seconds,
        log_seconds=1.0,
        checkpoint_seconds=1e6,
        heartbeat_seconds=spec.heartbeat_seconds,
        wall_seconds=0.0,
        deadline=Deadline(),
    )


# What came of it ----------------------------------------------------------------------------------------------------


def main(spec: SimpleNamespace) -> None:
    """Train for a while, and print on rank 0 what all ranks found."""
    # Freed at the end and nowhere else: freeing is collective, and after an exception the others would not come.
    comm, resources = MPI.COMM_WORLD, ExitStack()
    job = Job(comm, spec, resources)
    job.run_dir = Path(spec.run_dir)
    roles = make_roles(job)
    is_server = any(role.kind == "parameter_server" for role in roles)
    several_nodes = len({rank.node for rank in job.plan.ranks}) > 1
    idle = Backoff(comm, spec.idle_sleep_seconds if is_server else 1e-3, wakeful=is_server and several_nodes)
    idle.wait = job.timeline.timed("wait", idle.wait)
    trace(job.timeline, roles)
    wait_for_all(comm)
    ready = time.time()
    heartbeat = Heartbeat(
        comm.rank,
        beats=job.beats,
        beat=lambda doing="": None,
        labels=job.labels,
        heartbeat_seconds=spec.heartbeat_seconds,
        stall_seconds=spec.stall_seconds,
        end=job.end,
    )
    meter = Meter(job.timeline, spec.warm_seconds)
    loop.run([*roles, meter], over=job.stop, beat=heartbeat, backoff=idle)
    meter.look()
    leave(comm, roles, counters=job.counters, reporter=job.reporter, heartbeat=heartbeat)
    found = {"server": is_server, "ready": ready, **meter.found(comm, "apply" if is_server else "push"), **resident()}
    if not is_server:
        found["pull_seconds"] = meter.within(job.online.timed_pulls)
    everything = comm.gather(found)
    resources.close()
    if comm.rank == 0:
        from hpcrl.bench._jobs import MARK

        print(MARK + json.dumps({"ranks": everything}), flush=True)


class Meter:
    """Keeps the spans of this rank, and its processor time, look by look."""

    kind, index = "meter", 0

    def __init__(self, timeline: Timeline, warm_seconds: float):
        self.timeline, self.warm_seconds, self.spans, self.used = timeline, warm_seconds, [], []
        self.look()

    def step(self) -> bool:
        """Look, a few times a second."""
        if time.time() - self.used[-1][0] > LOOK_SECONDS:
            self.look()
        return False

    def look(self) -> None:
        """Note how much processor time was used by now, and take the spans."""
        self.used.append((time.time(), time.process_time()))
        self.spans += self.timeline.take()

    def found(self, comm: MPI.Intracomm, work: str) -> dict:
        """What this rank did in the time in which all ranks were doing their work; collective.

        Activities have the number of their spans and the sum of their seconds.
        """
        stopped = self.used[-1][0]
        first = next((s.begin + s.seconds for s in self.spans if ACTIVITIES[s.activity] == work), stopped)
        self.begin, self.end = comm.allreduce(first, MPI.MAX) + self.warm_seconds, comm.allreduce(stopped, MPI.MIN)
        used = np.interp([self.begin, self.end], *zip(*self.used, strict=True))
        mine = {name: self.within([s[2:] for s in self.spans if ACTIVITIES[s.activity] == name]) for name in ACTIVITIES}
        return {
            "first": first,
            "stopped": stopped,
            "seconds": self.end - self.begin,
            "processor_seconds": float(used[1] - used[0]),
            "activities": {name: [len(spans), sum(spans)] for name, spans in mine.items() if spans},
            "push_seconds": mine["push"],
        }

    def within(self, spans: list[tuple[float, float]]) -> list[float]:
        """Seconds of those that began in that time."""
        return [round(seconds, 6) for begin, seconds in spans if self.begin <= begin < self.end]


def resident() -> dict[str, int]:
    """Memory of this process: all that is resident, and what nobody shares with it. [bytes]"""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    fields = {name.rstrip(":"): 1024 * int(number) for name, number, _ in map(str.split, lines)}
    return {"resident_bytes": fields["Rss"], "own_bytes": fields["Private_Clean"] + fields["Private_Dirty"]}


if __name__ == "__main__":
    main(SimpleNamespace(**json.loads(sys.argv[1])))
