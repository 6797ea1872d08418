"""What is shared by the ranks of a job, and what the roles of a rank are made from."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn

from hpcrl.algorithms.dqn import EpsilonGreedy
from hpcrl.algorithms.policy_gradient import EvaluationPolicy
from hpcrl.algorithms.rules import Rule
from hpcrl.config import Config
from hpcrl.envs import env_spec
from hpcrl.launch.delays import delay_distribution
from hpcrl.launch.learners import make_store
from hpcrl.launch.memories import HostedPart, ReplayMemory, host_lanes, make_memory
from hpcrl.launch.node_sharing import make_node_sum, shared_on_node
from hpcrl.launch.policies import make_evaluation_policy
from hpcrl.launch.replay_shares import Shares, memory_shapes, share_replay
from hpcrl.launch.resume import is_exact
from hpcrl.launch.rollouts import make_relay, make_sampler
from hpcrl.launch.signals import StopRequest
from hpcrl.launch.sizes import learning_rule, new_network, num_parameters
from hpcrl.launch.topology import Plan, shard_bounds
from hpcrl.networks import Replica, resolve_precision
from hpcrl.roles.checkpointing import REPLAY_NAME, owner_name
from hpcrl.roles.gradient_record import HEADER_WORDS, gradient_place
from hpcrl.roles.heartbeat import Heartbeat
from hpcrl.roles.metrics import RECORD, Reporter
from hpcrl.roles.norms import LayerNorms
from hpcrl.roles.replicated import OwnReplica
from hpcrl.roles.shard import Shard
from hpcrl.roles.stopping import StopFlag
from hpcrl.roles.timeline import Timeline
from hpcrl.sampling.asynchronous import AsynchronousSampler
from hpcrl.sampling.exchange import Exchange
from hpcrl.sampling.sampler import Sampler
from hpcrl.seeding import generator, torch_seed
from hpcrl.storage.checkpoint import Checkpoint
from hpcrl.transport.agreement import Agreement
from hpcrl.transport.counters import Counters, Turn
from hpcrl.transport.node_sum import NodeSum
from hpcrl.transport.own import OwnRing, OwnVector
from hpcrl.transport.parameters import ShardedVector
from hpcrl.transport.relay import Relay
from hpcrl.transport.ring import Rings
from hpcrl.transport.store import ChunkStore
from hpcrl.transport.waiting import wait_for_all

REPORT_RECORDS = 256
"""Reports of one rank that may wait for the monitor before further ones are dropped."""

PASSED_ON = ("stop", "closed", "left")
"""Counts of synchronous learners that their simulator ranks look at, or keep for themselves."""
STATELESS_KINDS = ("replay_host", "simulator")
"""Kinds of roles that have no state of their own to keep."""


@dataclass
class Job:
    """One rank's side of everything that is shared, and what its roles are made from.

    Making it is collective over ``comm``; everything is freed, in reverse order, by ``resources``.
    """

    comm: MPI.Intracomm
    config: Config
    plan: Plan
    run_dir: Path
    command_line: str
    checkpoint: Checkpoint | None
    resources: ExitStack
    stop_request: StopRequest
    labels: Sequence[str]
    """What each rank is called in messages."""
    end: Callable[[str, int], None]
    """``end(message, exit_code)`` ends all ranks at once."""
    scratch_dir: Path | None
    """On this node's own disk, for all its ranks; None where none is to be used."""
    wall_seconds: float = field(init=False)
    params: ShardedVector | OwnVector | None = field(init=False, default=None)
    """What replicas follow; None where all of them are their learner's own."""
    hosted_part: HostedPart | None = field(init=False, default=None)
    """What this rank holds of a global replay memory."""
    server: Shard | None = field(init=False, default=None)
    """This rank's server, where it had to be made before the learners: of synchronous ones, which hold all, or of a
    store."""
    store: ChunkStore | None = field(init=False, default=None)
    """The central parameters, where learners overwrite them in turn."""
    node_sum: NodeSum | None = field(init=False, default=None)
    """Where this rank's gradients are added to those of its node."""
    memory_comm: MPI.Intracomm | None = field(init=False, default=None)
    """The ranks that share the memory of a node, where memories are of nodes and this rank uses one."""
    reports: Rings | Agreement | None = field(init=False, default=None)
    """Take reports to the monitor; None on simulator ranks of synchronous learners, which have none to make."""
    relay: Relay | None = field(init=False, default=None)
    """Takes rollouts of actors to learners, where those are on other ranks."""
    exchange: Exchange | None = field(init=False, default=None)
    """Between a learner and the ranks that simulate for it, where there are such and this is one of them."""

    def __post_init__(self):
        config, plan, comm = self.config, self.plan, self.comm
        self.spec = env_spec(**config.env.arguments())
        self.rank_plan = plan.ranks[comm.rank]
        if self.rank_plan.device != "cpu":
            torch.cuda.set_device(self.rank_plan.device)  # what has no device of its own, a graph for one, is there
        self.servers, self.learners = plan.ranks_of("parameter_server"), plan.ranks_of("learner")
        self.monitor_rank = plan.ranks_of("monitor")[0]
        self.bounds = shard_bounds(num_parameters(config), len(self.servers))
        self.deterministic = config.run.lock_step or plan.layout == "serial"
        self.start = self.checkpoint.number if self.checkpoint else 0
        self.owners = {
            r.rank: names
            for r in plan.ranks
            if (names := [owner_name(role) for role in r.roles if role.kind not in STATELESS_KINDS])
        }
        if config.secondary.batch_size:
            self.owners[self.learners[0]].append("secondary-0")
        self.shapes = memory_shapes(config, plan, self.spec.stack)
        self.memory_ranks = plan.memory_ranks()[: len(self.shapes)]  # a server without lanes has none to keep
        if config.checkpoint.replay == "full":
            for index, rank in enumerate(self.memory_ranks):
                self.owners[rank].append(REPLAY_NAME.format(index))
        self.shares = self._share_replay()
        self.synchronous = plan.synchronous
        same = self.checkpoint and (self.shares.same if self.shares else not config.learning.uses_replay)
        self.exact = bool(same) and is_exact(self.checkpoint, config, plan)
        restored = self.checkpoint.attributes if self.checkpoint else {}
        self.wall_seconds = float(restored.get("wall_seconds", 0.0))
        self.began = {name: int(restored.get(name, 0)) for name in ("total_frames", "global_update")}
        if self.synchronous:
            self._make_beats()
            self._make_agreement()
        else:
            self._make_windows()
            if comm.rank == self.counters.owner:
                self.counters.set("total_frames", self.began["total_frames"])
                self.counters.set("global_update", self.began["global_update"])
        wait_for_all(comm)
        self.timeline = self._make_timeline() if config.log.trace else None
        # Simulators of synchronous learners stop after them: before, they would be waited for.
        request = self.stop_request if self.learns or not self.synchronous else StopRequest()
        self.stop = StopFlag(self.counters, request, together=self.synchronous and self.learns)
        self.reporter = Reporter(
            lambda record: self.reports.push({self.monitor_rank: (record,)}),
            config.actor.report_period_seconds,
            order=config.log.apply_order,
        )

    def keep(self, resource):
        """Free ``resource`` at the end."""
        self.resources.callback(resource.free)
        return resource

    def _share_replay(self) -> Shares | None:
        """What the memories take from the checkpoint; the monitor's rank reads it for all."""
        if self.checkpoint is None or not self.shapes:
            return None
        reads = self.comm.rank == self.monitor_rank
        shares = share_replay(self.checkpoint, self.shapes) if reads else None
        wait_for_all(self.comm)
        return self.comm.bcast(shares, self.monitor_rank)

    def _make_windows(self) -> None:
        config, plan, comm = self.config, self.plan, self.comm
        options = {
            "flavour": config.server.window_flavour,
            "max_requests": config.server.max_requests_in_flight,
        }
        self._make_vectors(options)
        if plan.layout == "split" and not config.learning.uses_replay:
            self.relay = self.keep(make_relay(self, options))
        self.reports = self.keep(
            Rings(
                comm,
                name="reports",
                producers=range(comm.size),
                record_bytes={self.monitor_rank: RECORD.itemsize},
                capacity=REPORT_RECORDS,
                **options,
            )
        )
        if config.replay.place == "global":
            self.hosted_lanes, self.priority_rings, self.hosted_part = host_lanes(self, **options)
        names = ["total_frames", "global_update", "stop", "checkpoint", "left", "closed", "ticket"]
        names += ["replay_steps", "replay_trained", "without_replay"]
        names += [f"{word}/{rank}" for rank in self.owners for word in ("written", "held")]
        self.counters = self.keep(
            Counters(comm, owner=self.servers[0], names=names, flavour=config.server.window_flavour)
        )
        self._make_beats()

    def _make_vectors(self, options: dict) -> None:
        """Parameters and targets on their way from the servers, gradients on theirs to them."""
        config, plan, comm = self.config, self.plan, self.comm
        if self.in_place:
            self.params, self.targets = OwnVector(), OwnVector()
            # Memory of torch is in large pages, where it has been asked for those.
            self.gradients = OwnRing(torch.zeros(int(self._record_bytes[0]), dtype=torch.uint8).numpy())
            return
        kinds = {r.rank: {role.kind for role in r.roles} for r in plan.ranks}
        clients = [rank for rank, held in kinds.items() if held & {"actor", "learner", "evaluator"}]
        vector = {"owners": self.servers, "bounds": self.bounds, **options}
        if config.learning.update == "store":
            # A learner's rank has its own copy; who else acts or evaluates reads what the servers publish.
            clients = [rank for rank in clients if "learner" not in kinds[rank]]
            self.store = self.keep(make_store(self, options))
        if clients:
            self.params = self.keep(
                ShardedVector(comm, name="parameters", readers=clients, slots=config.server.slots, **vector)
            )
            self.params = shared_on_node(self, self.params, clients)
        self.targets = self.keep(ShardedVector(comm, name="targets", readers=self.learners, slots=3, **vector))
        self.targets = shared_on_node(self, self.targets, self.learners)
        if config.learning.update == "server":
            self.gradients = self.keep(
                Rings(
                    comm,
                    name="gradients",
                    producers=self.learners,
                    record_bytes=dict(zip(self.servers, map(int, self._record_bytes), strict=True)),
                    capacity=config.learner.pipeline + 1,
                    **options,
                )
            )
        if config.learning.node_combine:
            self.node_sum = make_node_sum(self)

    @property
    def _record_bytes(self) -> np.ndarray:
        """int64 ``[servers]``: of a gradient with its header."""
        return 8 * HEADER_WORDS + 4 * np.diff(self.bounds)

    def _make_timeline(self) -> Timeline:
        """A clock that reads, on every rank, the training time of the run; collective."""
        origin = self.comm.bcast(time.time() - self.wall_seconds, self.monitor_rank)
        return Timeline(lambda: time.time() - origin)

    def _make_agreement(self) -> None:
        """What synchronous learners share instead of windows: it rides on their meetings, to which no others come."""
        names = {**self.began, **dict.fromkeys(("stop", "checkpoint", "without_replay", "left", "closed"), 0)}
        self.learner_comm = self.comm.Split(0 if self.learns else MPI.UNDEFINED, self.comm.rank)
        self.counters = self.beats
        if self.learns:
            self.counters = self.reports = self.keep(
                Agreement(
                    self.learner_comm,
                    names=names,
                    own=("written", "held"),
                    note_bytes=RECORD.itemsize,
                    ranks=self.learners,
                )
            )

    def _make_beats(self) -> None:
        """Signs of life: a window also where all else rides on meetings, to which a rank that hangs does not come.

        There it also has what simulator ranks must know of those meetings.
        """
        self.beats = self.keep(
            Counters(
                self.comm,
                owner=self.monitor_rank,
                names=[*map(str, range(self.comm.size)), *PASSED_ON],
                window="beats",
                flavour=self.config.server.window_flavour,
            )
        )

    def pass_on(self) -> None:
        """Tell the simulator ranks of synchronous learners what was agreed on; from the monitor's rank."""
        if self.synchronous and self.comm.rank == self.monitor_rank:
            for name in PASSED_ON:
                self.beats.set(name, self.counters.get(name))

    def frames(self) -> int:
        """Frames of all actors so far; the same, at the same update, on all synchronous learners."""
        return self.counters.settled("total_frames") if self.synchronous else self.counters.get("total_frames")

    def count_steps(self, steps: int) -> int:
        """Add to the job's steps and return all of them in frames; the last one ends the run."""
        limit = self.config.run.total_frames
        total = self.counters.add("total_frames", steps * self.spec.frames_per_step)
        if limit and (self.frames() if self.synchronous else total) >= limit:
            self.stop.finish()
        return total

    @property
    def learns(self) -> bool:
        """Whether this rank has a learner."""
        return any(role.kind == "learner" for role in self.rank_plan.roles)

    @cached_property
    def delays(self) -> tuple[list[int], list[float]]:
        """Virtual delays of the learners' gradients, and their weights."""
        return delay_distribution(self.config.learning.virtual_delay or "0")

    # parts that roles of this rank share --------------------------------------------------------------------------

    @cached_property
    def dtype(self) -> torch.dtype:
        """Arithmetic of this rank's networks."""
        return resolve_precision(self.config.network.precision, self.config.network.kind, self.rank_plan.device)

    @cached_property
    def rule(self) -> Rule:
        """What the outputs of this rank's networks mean."""
        return learning_rule(self.config, self.rank_plan.device)

    def network(self) -> nn.Module:
        """The network with its initial parameters, the same on every rank."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(self.config.run.seed, "network", 0))
            return new_network(self.config)

    @cached_property
    def in_place(self) -> bool:
        """Whether the network of a job of one rank holds the server's parameters themselves, and its gradients the
        record that goes to it, so that nothing is copied. That takes that nobody reads parameters as they were before.
        """
        config = self.config
        return (
            (self.plan.layout, config.learning.update, self.rank_plan.device) == ("serial", "server", "cpu")
            and config.learning.uses_replay
            and config.learner.pull_period_updates == config.actor.sync_period_steps == 1
            and not any(self.delays[0])
            and not config.secondary.batch_size
        )

    @cached_property
    def online(self) -> Replica:
        """The network that the actor and the learner of this rank share."""
        if self.synchronous or (self.store and self.learns):
            return OwnReplica(self.network(), self.rank_plan.device)
        # A delayed gradient is made at other parameters, and those of a node are added up elsewhere.
        on_its_own = not self.config.learning.node_combine and not any(self.delays[0])
        pushes = self.learns and self.config.learning.update == "server" and self.rank_plan.device == "cpu"
        place = gradient_place(self.gradients, self.servers) if pushes and on_its_own else None
        gradients = None if place is None else torch.from_numpy(place)
        if self.in_place:
            return OwnReplica(self.network(), "cpu", low_dtype=self.dtype, gradients=gradients)
        servers, device = len(self.servers), self.rank_plan.device
        return Replica(self.network(), self.params, servers, device, low_dtype=self.dtype, gradients=gradients)

    @cached_property
    def memory(self) -> ReplayMemory:
        """Replay memory of this rank's actor or learner."""
        return make_memory(self)

    @cached_property
    def sampler(self) -> Sampler | AsynchronousSampler:
        """What this rank's actor fills and its learner uses, where there is no replay."""
        return make_sampler(self)

    def policy(self, replica: Replica, rng: np.random.Generator) -> EpsilonGreedy | EvaluationPolicy:
        """Behaviour policy on a replica; of an algorithm without action values, that of an evaluation."""
        if not self.config.learning.has_action_values:
            return make_evaluation_policy(self.config, self.spec, replica, rng, self.dtype)
        return EpsilonGreedy(replica, self.rule.q, self.spec.num_actions, rng, self.dtype)

    def norms(self, index: int, online: Replica) -> LayerNorms | None:
        """What follows the network of learner ``index``, where the log has its norms."""
        if not self.config.log.norms:
            return None
        start = torch.cat([p.detach().reshape(-1) for p in self.network().parameters()])
        return LayerNorms(online, start=start, period=self.config.log.norms, report=partial(self.reporter.norm, index))

    def rng(self, role: str, index: int) -> np.random.Generator:
        """Random numbers of a role, none of which an earlier start of the run has drawn."""
        return generator(self.config.run.seed, role, index, self.start)

    def heartbeat(self, beat: Callable[[], None], stall_seconds: float) -> Heartbeat:
        """This rank's signs of life; ``beat`` is the watchdog's."""
        return Heartbeat(
            self.comm.rank,
            beats=self.beats,
            beat=beat,
            labels=self.labels,
            heartbeat_seconds=self.config.run.heartbeat_seconds,
            stall_seconds=stall_seconds,
            end=self.end,
        )

    @cached_property
    def turn(self) -> Turn | None:
        """This rank's turns in lock step; None elsewhere, and on ranks that take none."""
        takers = sorted({*self.plan.ranks_of("actor"), *self.learners})
        if not self.config.run.lock_step or self.comm.rank not in takers:
            return None
        return Turn(self.counters, position=takers.index(self.comm.rank), parties=len(takers))
