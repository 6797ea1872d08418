"""``hpcrl retrace``: execute a recorded run once more, act by act and gradient by gradient, in one process.

With ``log.apply_order`` a run logs which versions of the parameters every bundle held whenever it acted or computed a
gradient, and in which order each server judged the gradients. Nothing else in a bundle depends on timing: its seeds,
its replay and its simulators are its own. So the same role objects, given these versions in this order, end with the
same parameters bit for bit, and an asynchronous run can be looked at under a debugger.
"""

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from hpcrl.config import Config
from hpcrl.errors import EXIT_FAULT, EXIT_FINISHED, ConfigError, StorageError
from hpcrl.launch.agents import newest_checkpoint
from hpcrl.launch.build import make_actor, make_learner, make_server
from hpcrl.launch.job import Job
from hpcrl.launch.resume import load_shard
from hpcrl.launch.sizes import num_parameters
from hpcrl.launch.topology import Plan, plan, shard_bounds
from hpcrl.roles.metrics import ACTED, JUDGED
from hpcrl.storage.runlog import read_runlog

Held = list[tuple[int, int]]
"""(shard, version) of each shard of a vector."""


class Event(NamedTuple):
    """An actor acted, or a learner computed a gradient."""

    acted: bool
    params: Held
    targets: Held
    """of an actor: none"""
    total_frames: int
    """that the actor knew of afterwards"""


class Judgement(NamedTuple):
    """A server applied a gradient or not."""

    learner: int
    sequence: int
    accepted: bool
    learning_rate: float


class Alone:
    """In place of the communicator of a job, as one of its ranks sees it; nobody else is there."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def Ibarrier(self):
        """A request that is complete."""
        return SimpleNamespace(Test=lambda: True)


class Published:
    """In place of a sharded vector: keeps the versions that will still be asked for, and gives those of an event.

    Parameters
    ----------
    bounds : sequence of int
        Of the shards.
    needed : list of Held
        What each event needs.
    """

    def __init__(self, bounds: Sequence[int], needed: list[Held]):
        self.bounds, self.needed = bounds, Counter(key for held in needed for key in held)
        self.kept: dict[tuple[int, int], np.ndarray] = {}
        self.wanted: Held = []

    def publish(self, shard: int, values: np.ndarray, version: int) -> bool:
        """Keep a version of a shard for those who need it."""
        if self.needed[shard, version]:
            self.kept[shard, version] = values.copy()
        return True

    def has(self, wanted: Held) -> bool:
        """Whether all of the (shard, version) have been published."""
        return all(key in self.kept for key in wanted)

    def pull(self, out: np.ndarray, versions: np.ndarray) -> bool:
        """What the event at hand held."""
        before = versions.copy()
        for shard, version in self.wanted:
            if versions[shard] != version:
                out[self.bounds[shard] : self.bounds[shard + 1]] = self.kept[shard, version]
                versions[shard] = version
        return bool((before != versions).any())

    def done_with(self, wanted: Held) -> None:
        """One event fewer needs these."""
        for key in wanted:
            self.needed[key] -= 1
            if not self.needed[key]:
                self.kept.pop(key, None)


class Gradients:
    """In place of the rings: gradients by (server rank, learner, number), and the one that a server is to judge."""

    def __init__(self):
        self.pushed: dict[tuple[int, int, int], np.ndarray] = {}

    def of_learner(self, learner: int):
        """A learner's end."""

        def push(records) -> bool:
            for rank, (header, gradient) in records.items():
                record = np.concatenate([header.view(np.uint8), gradient.view(np.uint8)])
                self.pushed[rank, learner, int(header[1])] = record
            return True

        return SimpleNamespace(
            push=push, place=lambda server: None, drained=lambda: True, room=lambda: True, answers=list
        )

    def of_server(self, rank: int, num_learners: int):
        """A server's end; ``next`` is (learner, number) of the gradient that waits."""
        end = SimpleNamespace(next=None)
        end.waiting = lambda: [int(end.next is not None and end.next[0] == i) for i in range(num_learners)]
        end.oldest = lambda learner: self.pushed[rank, *end.next]

        def pop(learners, verdicts) -> None:
            del self.pushed[rank, *end.next]
            end.next = None

        end.pop = pop
        return end


class RetracedJob(Job):
    """What one rank's roles are made from, where the other ranks' roles are objects in this process."""

    in_place = False  # each role has parameters of its own, as they were at the time

    def __init__(self, world: "Retrace", kind: str, index: int, rank_map: Plan):
        self.world, self.serves, self.role_index, self.total_frames = world, kind == "parameter_server", index, 0
        comm = Alone(rank_map.ranks_of(kind)[index], len(rank_map.ranks))
        alone = {"labels": (), "end": None, "scratch_dir": None}
        super().__init__(comm, world.config, rank_map, world.run_dir, "", None, ExitStack(), None, **alone)

    def _make_windows(self) -> None:
        world, index = self.world, self.role_index

        def end_of(vector: Published):
            return SimpleNamespace(
                publish=lambda values, version: vector.publish(index, values, version), pull=vector.pull
            )

        self.params, self.targets = end_of(world.params), end_of(world.targets)
        if self.serves:
            self.gradients = world.gradients.of_server(self.comm.rank, len(self.learners))
        else:
            self.gradients = world.gradients.of_learner(index)
        self.reports = SimpleNamespace(push=lambda records: True)
        self.counters = SimpleNamespace(
            owner=self.servers[0],
            set=lambda name, value: None,
            get=lambda name: 0,
            add=lambda name, value: self.total_frames,
        )


class NoRatio:
    """In place of the training ratio: the recording says who goes."""

    def learner_due(self) -> bool:
        """Yes."""
        return True

    def actor_may_step(self) -> bool:
        """Yes."""
        return True

    def add_steps(self, steps: int) -> None:
        """Count nothing."""

    def add_update(self) -> None:
        """Count nothing."""


class Bundle:
    """An actor and a learner, and the events that are left of them."""

    def __init__(self, job: RetracedJob, index: int, events: list[Event]):
        self.job, self.left = job, events[::-1]
        job.delays = ([0], [1.0])  # the versions that were held are recorded, whatever made them old
        self.actor, self.learner = make_actor(job, index), make_learner(job, index)
        self.actor.ratio = self.learner.ratio = NoRatio()

    def step(self) -> bool:
        """Execute the next event, if everything that it needs is there."""
        params, targets = self.job.world.params, self.job.world.targets
        if not self.left or not (params.has(self.left[-1].params) and targets.has(self.left[-1].targets)):
            return False
        event = self.left.pop()
        self.job.total_frames, params.wanted, targets.wanted = event.total_frames, event.params, event.targets
        self.job.online.pull()
        if event.acted:
            self.actor.step()
        else:
            self.learner.target.pull()
            self.learner.step()
        params.done_with(event.params)
        targets.done_with(event.targets)
        return True


class Server:
    """A parameter server, and what is left of the gradients that it judged."""

    def __init__(self, job: RetracedJob, index: int, judgements: list[Judgement]):
        self.job, self.left = job, judgements[::-1]
        self.role = make_server(job, index)
        self.role.learning_rate = lambda version: self.left[-1].learning_rate

    def step(self) -> bool:
        """Judge the next gradient, if it is there."""
        if not self.left:
            return False
        learner, sequence, accepted, _ = self.left[-1]
        if (self.job.comm.rank, learner, sequence) not in self.job.world.gradients.pushed:
            return False
        self.job.gradients.next = learner, sequence
        before = self.role.accepted
        self.role.step()
        if self.role.accepted - before != accepted:
            raise StorageError(
                f"gradient {sequence} of learner {learner} at server {self.role.index}: expected it "
                f"{'applied' if accepted else 'dropped'} as recorded, got the contrary"
            )
        self.left.pop()
        return True


class Retrace:
    """All roles of a recorded run in this process.

    Parameters
    ----------
    config : Config
        Of the run.
    run_dir : Path

    Raises
    ------
    ConfigError
        The run recorded no order, or one from which it cannot be repeated.
    """

    def __init__(self, config: Config, run_dir: Path):
        self.config, self.run_dir = config, run_dir
        events, judgements = _read(config, run_dir)
        rank_map = _plan(config, len(events))
        bounds = shard_bounds(num_parameters(config), len(judgements))
        self.params = Published(bounds, [event.params for bundle in events for event in bundle])
        self.targets = Published(bounds, [event.targets for bundle in events for event in bundle])
        self.gradients = Gradients()
        self.servers = [
            Server(RetracedJob(self, "parameter_server", i, rank_map), i, judged) for i, judged in enumerate(judgements)
        ]
        self.bundles = [Bundle(RetracedJob(self, "learner", i, rank_map), i, left) for i, left in enumerate(events)]

    def run(self) -> np.ndarray:
        """Execute everything; parameters at the end, float32 ``[P]``.

        Raises
        ------
        StorageError
            Events are left over that nothing leads to: the recording is incomplete.
        """
        parties = [*self.bundles, *self.servers]
        while any(party.step() for party in parties):
            pass
        if left := sum(len(party.left) for party in parties):
            raise StorageError(
                f"{self.run_dir}: {left:,} recorded events are left that nothing leads to: the record is incomplete"
            )
        return np.concatenate([server.role.shard for server in self.servers])


def _read(config: Config, run_dir: Path) -> tuple[list[list[Event]], list[list[Judgement]]]:
    """Events of each bundle and judgements of each server, in their order."""
    rows = read_runlog(run_dir, "order")
    if not len(rows["event"]):
        raise ConfigError(f"{run_dir} has recorded no order: run it anew with log.apply_order = true")
    if config.topology.layout == "split" or config.replay.place == "global":
        raise ConfigError(
            f"{run_dir}: expected the bundled or serial layout with local replay, got {config.topology.layout} with "
            f"{config.replay.place}: what lies in a memory when it is sampled, while others write it, is not recorded"
        )
    if len(list(run_dir.glob("runlog-*.h5"))) > 1:
        raise ConfigError(f"{run_dir} was resumed: only a run of one piece can be retraced")
    num_shards, judged = config.topology.servers, rows["event"] == JUDGED
    bundles = [
        _events({name: column[~judged & (rows["index"] == i)] for name, column in rows.items()}, num_shards)
        for i in range(int(rows["index"][~judged].max()) + 1)
    ]
    servers = []
    for shard in range(num_shards):
        mine = judged & (rows["index"] == shard)
        columns = [rows[name][mine].tolist() for name in Judgement._fields]
        servers.append([Judgement(*values) for values in zip(*columns, strict=True)])
    return bundles, servers


def _events(rows: dict[str, np.ndarray], num_shards: int) -> list[Event]:
    """The rows of a bundle, in which an event has one for each shard."""
    events = []
    for begin in range(0, len(rows["event"]), num_shards):
        event = {name: column[begin : begin + num_shards].tolist() for name, column in rows.items()}
        acted = event["event"][0] == ACTED
        params = list(zip(event["shard"], event["global_update"], strict=True))
        targets = [] if acted else list(zip(event["shard"], event["target_version"], strict=True))
        events.append(Event(acted, params, targets, event["total_frames"][0]))
    return events


def _plan(config: Config, num_bundles: int) -> Plan:
    """The run's rank map, but for ranks that only look on."""
    topology = config.topology.model_dump(exclude={"pin_simulators"})
    topology |= {"bundles": num_bundles, "evaluators": 0, "monitor": "shared"}
    if config.network.kind == "mlp":
        topology["learner_threads"] = topology["learner_threads"] or 1
    size = 1 if config.topology.layout == "serial" else config.topology.servers + num_bundles
    return plan(size, [0] * size, **topology, cores_per_node=os.cpu_count() or 1, gpus_per_node=0)


def main(run_dir: Path) -> int:
    """Retrace a run and compare the result with its last checkpoint."""
    config, checkpoint = newest_checkpoint(run_dir)
    found = Retrace(config, run_dir).run()
    expected = load_shard(checkpoint, 0, len(found), len(found))["params"]
    different = int(np.count_nonzero(found.view(np.uint32) != expected.view(np.uint32)))
    if different:
        print(f"{different:,} of {len(found):,} parameters differ from {checkpoint.path}")
        return EXIT_FAULT
    print(f"all {len(found):,} parameters are those of {checkpoint.path}, bit for bit")
    return EXIT_FINISHED
