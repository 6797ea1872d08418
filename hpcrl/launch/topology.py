"""The rank map: which rank holds which roles, from the size of the job and the node of each rank.

Pure arithmetic, without MPI and without torch: it can be printed on a login node and tested at any size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcrl.errors import TopologyError
from hpcrl.launch.placement import Role, bundled, count, fill, fill_with_crews, serial, split, synchronous

KINDS = ("parameter_server", "replay_host", "learner", "actor", "simulator", "evaluator", "monitor")

SHARD_ALIGNMENT = 16
"""Shard boundaries are multiples of this many float32: 64 bytes, one cache line, so no line has two writers."""


@dataclass(frozen=True)
class RankPlan:
    """What one rank does, and with what."""

    rank: int
    node: int
    roles: tuple[Role, ...]
    """in the order in which the rank's loop steps them"""
    threads: int
    device: str
    """``cpu`` or ``cuda:k``, k counted within the node"""


class Memory(NamedTuple):
    """One replay memory: the actors that fill it and the learners that sample it."""

    learners: tuple[int, ...]
    actors: tuple[int, ...]
    node: int | None
    """where all of them are; None for the global memory, which all server ranks hold together"""


@dataclass(frozen=True)
class Plan:
    """The whole rank map."""

    layout: str
    ranks: tuple[RankPlan, ...]
    memories: tuple[Memory, ...]
    synchronous: bool = False
    """learners hold all parameters themselves and wait for each other; no rank only serves"""

    def num(self, kind: str) -> int:
        """Roles of this kind in the job."""
        return len(self.ranks_of(kind))

    def ranks_of(self, kind: str) -> tuple[int, ...]:
        """Rank of each role of this kind, by role index."""
        held = sorted((role.index, plan.rank) for plan in self.ranks for role in plan.roles if role.kind == kind)
        return tuple(rank for _, rank in held)

    def roles_of(self, rank: int) -> tuple[Role, ...]:
        return self.ranks[rank].roles

    def crews(self) -> dict[int, tuple[int, ...]]:
        """The simulator ranks of each learner's rank; empty where learners step their simulators themselves."""
        learners, simulators = self.ranks_of("learner"), self.ranks_of("simulator")
        each = len(simulators) // len(learners)
        return {rank: simulators[i * each : (i + 1) * each] for i, rank in enumerate(learners)} if each else {}

    def needed(self, lock_step: bool) -> list[tuple[int, ...]]:
        """Groups of ranks, of each of which at least one must be there for the job to go on.

        Any one actor or learner can be done without, unless they are synchronous or act in lock step, where each waits
        for all. A node
        of which no rank is there any more is not a rank that is stopped: it is down, or cut off from the others.
        """
        trainers = [self.ranks_of("learner"), self.ranks_of("actor")]
        if lock_step or self.synchronous:
            trainers = [(rank,) for rank in sorted({*trainers[0], *trainers[1]})]
        alone = [(rank,) for rank in (*self.ranks_of("parameter_server"), *self.ranks_of("monitor"))]
        nodes = [tuple(r.rank for r in self.ranks if r.node == node) for node in sorted({r.node for r in self.ranks})]
        return alone + trainers + [node for node in nodes if len(node) > 1]

    def memory_ranks(self) -> tuple[int, ...]:
        """The rank that saves and restores each memory: the lowest of those that use one of a bundle or node; of the
        global one, each server rank its part."""
        held = {role: plan.rank for plan in self.ranks for role in plan.roles}
        ranks: list[int] = []
        for memory in self.memories:
            if memory.node is None:
                ranks += self.ranks_of("parameter_server")
            else:
                users = [Role("learner", index) for index in memory.learners]
                users += [Role("actor", index) for index in memory.actors]
                ranks.append(min(held[role] for role in users))
        return tuple(ranks)

    def memory_of(self, role: Role) -> int:
        """Index in ``memories`` of the one that a learner samples or an actor fills.

        Raises
        ------
        TopologyError
            The role is neither, or not in the job.
        """
        for index, memory in enumerate(self.memories):
            if role.index in {"learner": memory.learners, "actor": memory.actors}.get(role.kind, ()):
                return index
        raise TopologyError(f"expected a learner or an actor of this job, got {role}")


def plan(
    world_size: int,
    nodes: Sequence[int],
    *,
    layout: str,
    servers: int,
    bundles: int,
    learners: int,
    actors: int,
    evaluators: int,
    monitor: str,
    cores_per_node: Sequence[int] | int,
    gpus_per_node: Sequence[int] | int,
    learner_threads: int,
    simulator_ranks: int = 0,
    cores_per_rank: Sequence[int] = (),
    global_replay: bool = False,
    replay: bool = True,
) -> Plan:
    """Divide ``world_size`` ranks into roles.

    Parameters
    ----------
    world_size
        Ranks in the job.
    nodes
        Node of each rank, numbered from 0.
    layout
        ``serial`` (one rank holds every role), ``bundled`` (actor, replay and learner share a rank; Gorila's published
        experiments, arXiv 1507.04296 section 5), ``split`` (each role its own rank; Gorila section 4) or
        ``sampler_learner`` (as bundled; without servers, learner 0 holds their role and the monitor's: Accelerated
        Methods, arXiv 1803.02811 section 4.2).
    servers, bundles, learners, actors, evaluators
        Roles of each kind; ``servers = 0`` for synchronous learners; ``bundles = 0`` and, in the split layout,
        ``actors = 0`` mean all remaining ranks.
    monitor
        ``shared`` with server 0, or a rank of its ``own``.
    cores_per_node, gpus_per_node
        What one node has, or each of them. Where only some nodes have GPUs, the learners of the split layout with a
        global memory are there; synchronous learners, which must be alike, use none.
    learner_threads
        Threads of a learner rank; 0 divides what the node's other ranks leave.
    simulator_ranks
        Ranks on the node of each learner, in the ``sampler_learner`` layout, that step its simulators for it.
    cores_per_rank
        Cores that the launcher gave to each rank, beyond which no thread is started; empty where it gave none.
    global_replay
        One memory for all, on the server ranks (Gorila section 4), instead of one for each bundle or node.
    replay
        Whether there are memories at all; rollouts need none.

    Raises
    ------
    TopologyError
        The counts do not fit the job, or a learner and its actors are on different nodes.
    """
    if len(nodes) != world_size:
        raise TopologyError(f"expected the node of each of {world_size} ranks, got {len(nodes)} nodes")
    cores, gpus = _each(cores_per_node, nodes), _each(gpus_per_node, nodes)
    if not servers:
        gpus = [min(gpus)] * len(gpus)
    if layout == "serial":
        held = serial(world_size, evaluators)
    elif layout == "sampler_learner" and not servers:
        fill_with_crews(world_size, bundles, simulator_ranks, {}, 0, "shared")  # the rest shares their ranks
        held = synchronous(nodes, simulator_ranks, evaluators)
    elif layout in ("bundled", "sampler_learner"):
        fill_with_crews(world_size, bundles, simulator_ranks, {"server": servers}, evaluators, monitor)
        held = bundled(nodes, servers, simulator_ranks, evaluators, monitor)
    elif layout == "split":
        counts = {"server": servers, "learner": learners}
        actors = fill(world_size, "actor", actors, counts, evaluators, monitor)
        with_gpus = [node for node, number in enumerate(gpus) if number] if global_replay and not all(gpus) else []
        held = split(nodes, servers, learners, evaluators, monitor, with_gpus)
    else:
        raise TopologyError(f"expected layout serial, bundled, split or sampler_learner, got {layout!r}")
    if global_replay:
        held = {rank: [r for role in roles for r in _with_host(role)] for rank, roles in held.items()}
    ranks = _equip(nodes, held, cores, cores_per_rank, gpus, learner_threads)
    memories = ()
    if replay:
        memories = (_global_memory(ranks),) if global_replay else _memories(layout, ranks)
    return Plan(layout, ranks, memories, synchronous=not servers)


def describe(plan: Plan) -> str:
    """The plan as a readable table: who does what where, and which actors feed which learners."""
    num_nodes = len({rank.node for rank in plan.ranks})
    alike = f"; each update of {count(plan.num('learner'), 'minibatch', 'es')}" if plan.synchronous else ""
    lines = [
        f"{plan.layout} layout: {count(len(plan.ranks), 'rank')} on {count(num_nodes, 'node')}{alike}",
        f"{'rank':>6}  {'node':>4}  {'threads':>7}  {'device':<7}  roles",
    ]
    for rank in plan.ranks:
        roles = ", ".join(map(str, rank.roles))
        lines.append(f"{rank.rank:>6}  {rank.node:>4}  {rank.threads:>7}  {rank.device:<7}  {roles}")
    for learner, (rank, simulators) in enumerate(plan.crews().items()):
        lines.append(f"ranks {ranges(simulators)} step the simulators of learner {learner} on rank {rank}")
    for index, memory in enumerate(plan.memories):
        if plan.layout == "split" or memory.node is None:
            place = "of all servers" if memory.node is None else f"on node {memory.node}"
            lines.append(
                f"replay memory {index} {place}: filled by actors {ranges(memory.actors)}, "
                f"sampled by learners {ranges(memory.learners)}"
            )
    return "\n".join(lines)


def shard_bounds(num_parameters: int, num_servers: int) -> tuple[int, ...]:
    """Cut a flat vector into one contiguous shard per server.

    Returns
    -------
    tuple
        ``num_servers + 1`` offsets in float32 elements; shard k is ``[bounds[k], bounds[k + 1])``. All but the last are
        multiples of :data:`SHARD_ALIGNMENT`.

    Raises
    ------
    TopologyError
        There are more servers than aligned blocks.
    """
    blocks = -(-num_parameters // SHARD_ALIGNMENT)
    if not 1 <= num_servers <= blocks:
        raise TopologyError(
            f"expected 1 to {blocks} servers for {num_parameters} parameters (blocks of {SHARD_ALIGNMENT}), "
            f"got {num_servers}: lower topology.servers"
        )
    inner = (SHARD_ALIGNMENT * (blocks * k // num_servers) for k in range(num_servers))
    return (*inner, num_parameters)


def lane_capacity(memory: Memory, *, capacity_steps: int, simulators: int, shortest_steps: int) -> int:
    """Steps of each lane of a memory whose capacity is divided over the simulators that feed it.

    Raises
    ------
    TopologyError
        A lane would be shorter than ``shortest_steps``.
    """
    lanes = len(memory.actors) * simulators
    if capacity_steps // lanes < shortest_steps:
        raise TopologyError(
            f"{count(len(memory.actors), 'actor')} x {count(simulators, 'simulator')} = {lanes} lanes "
            f"of at least {shortest_steps} steps "
            f"need replay.capacity_steps >= {lanes * shortest_steps}, got {capacity_steps}"
        )
    return capacity_steps // lanes


def ranges(numbers: Sequence[int]) -> str:
    """``(0, 1, 2, 5)`` as ``0-2, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _each(given: Sequence[int] | int, nodes: Sequence[int]) -> Sequence[int]:
    """What each node has, where one number is that of all."""
    return [given] * (max(nodes) + 1) if isinstance(given, int) else given


def _equip(
    nodes: Sequence[int],
    held: dict[int, list[Role]],
    cores: Sequence[int],
    cores_per_rank: Sequence[int],
    gpus: Sequence[int],
    learner_threads: int,
) -> tuple[RankPlan, ...]:
    """Threads and device of each rank: learners get the GPUs of their node in order, and the cores others leave.

    Cores are divided evenly, and a learner with a GPU leaves one of its own for what feeds that.
    """
    learner_ranks = [rank for rank in sorted(held) if any(role.kind == "learner" for role in held[rank])]
    plans = []
    for rank, node in enumerate(nodes):
        on_node = [other for other in learner_ranks if nodes[other] == node]
        threads, device = 1, "cpu"
        if rank in on_node:
            left = cores[node] - (list(nodes).count(node) - len(on_node))
            share = min([left // len(on_node), *cores_per_rank[rank : rank + 1]])
            threads = learner_threads or max(1, share - (gpus[node] > 0))
            device = f"cuda:{on_node.index(rank) % gpus[node]}" if gpus[node] else "cpu"
        plans.append(RankPlan(rank, node, tuple(held[rank]), threads, device))
    return tuple(plans)


def _with_host(role: Role) -> list[Role]:
    return [role, Role("replay_host", role.index)] if role.kind == "parameter_server" else [role]


def _global_memory(ranks: Sequence[RankPlan]) -> Memory:
    members = {
        kind: tuple(sorted(role.index for plan in ranks for role in plan.roles if role.kind == kind))
        for kind in ("learner", "actor")
    }
    return Memory(members["learner"], members["actor"], None)


def _memories(layout: str, ranks: Sequence[RankPlan]) -> tuple[Memory, ...]:
    """Local replay: a bundle's own memory, or in the split layout one per node, shared by all on it."""
    groups: dict[int, Memory] = {}
    for plan in ranks:
        group = plan.node if layout == "split" else plan.rank
        for role in plan.roles:
            memory = groups.get(group, Memory((), (), plan.node))
            if role.kind == "learner":
                groups[group] = memory._replace(learners=(*memory.learners, role.index))
            elif role.kind == "actor":
                groups[group] = memory._replace(actors=(*memory.actors, role.index))
    for memory in groups.values():
        if not memory.learners or not memory.actors:
            here, missing = ("actors", "learner") if memory.actors else ("learners", "actor")
            raise TopologyError(
                f"node {memory.node} has {here} {ranges(memory.actors or memory.learners)} but no {missing}, and "
                f"experience does not leave its node: give every node with actors a learner (topology.learners at "
                f"least the number of nodes) and enough ranks for an actor beside it, or set "
                f'replay.place = "global"'
            )
    return tuple(groups.values())
