"""The rank map: which rank holds which roles, from the size of the job and the node of each rank.

Pure arithmetic, without MPI and without torch: it can be printed on a login node and tested at any size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcrl.errors import TopologyError

KINDS = ("parameter_server", "replay_host", "learner", "actor", "evaluator", "monitor")

SHARD_ALIGNMENT = 16
"""Shard boundaries are multiples of this many float32: 64 bytes, one cache line, so no line has two writers."""


class Role(NamedTuple):
    """One role of the job; ``(kind, index)`` also names its random streams."""

    kind: str
    """one of :data:`KINDS`"""
    index: int

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


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
    gpus_per_node: int,
    learner_threads: int,
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
        What one node has; cores may differ between nodes.
    learner_threads
        Threads of a learner rank; 0 divides what the node's other ranks leave.
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
    if layout == "serial":
        held = _serial(world_size, evaluators)
    elif layout == "sampler_learner" and not servers:
        _fill(world_size, "bundle", bundles, {}, 0, "shared")  # the rest shares their ranks
        held = _synchronous(world_size, evaluators)
    elif layout in ("bundled", "sampler_learner"):
        bundles = _fill(world_size, "bundle", bundles, {"server": servers}, evaluators, monitor)
        held = _bundled(nodes, servers, bundles, evaluators, monitor)
    elif layout == "split":
        counts = {"server": servers, "learner": learners}
        actors = _fill(world_size, "actor", actors, counts, evaluators, monitor)
        held = _split(nodes, servers, learners, evaluators, monitor)
    else:
        raise TopologyError(f"expected layout serial, bundled, split or sampler_learner, got {layout!r}")
    cores = [cores_per_node] * (max(nodes) + 1) if isinstance(cores_per_node, int) else cores_per_node
    if global_replay:
        held = {rank: [r for role in roles for r in _with_host(role)] for rank, roles in held.items()}
    ranks = _equip(nodes, held, cores, cores_per_rank, gpus_per_node, learner_threads)
    memories = ()
    if replay:
        memories = (_global_memory(ranks),) if global_replay else _memories(layout, ranks)
    return Plan(layout, ranks, memories, synchronous=not servers)


def describe(plan: Plan) -> str:
    """The plan as a readable table: who does what where, and which actors feed which learners."""
    num_nodes = len({rank.node for rank in plan.ranks})
    alike = f"; each update of {_count(plan.num('learner'), 'minibatch', 'es')}" if plan.synchronous else ""
    lines = [
        f"{plan.layout} layout: {_count(len(plan.ranks), 'rank')} on {_count(num_nodes, 'node')}{alike}",
        f"{'rank':>6}  {'node':>4}  {'threads':>7}  {'device':<7}  roles",
    ]
    for rank in plan.ranks:
        roles = ", ".join(map(str, rank.roles))
        lines.append(f"{rank.rank:>6}  {rank.node:>4}  {rank.threads:>7}  {rank.device:<7}  {roles}")
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
            f"{_count(len(memory.actors), 'actor')} x {_count(simulators, 'simulator')} = {lanes} lanes "
            f"of at least {shortest_steps} steps "
            f"need replay.capacity_steps >= {lanes * shortest_steps}, got {capacity_steps}"
        )
    return capacity_steps // lanes


def _count(number: int, noun: str, ending: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


def ranges(numbers: Sequence[int]) -> str:
    """``(0, 1, 2, 5)`` as ``0-2, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _fill(world_size: int, kind: str, wanted: int, others: dict[str, int], evaluators: int, monitor: str) -> int:
    """Number of ``kind`` (0 wanted: all remaining ranks); the counts must add up to the job exactly."""
    counts = {**others, kind: wanted or 1, "evaluator": evaluators, **({"monitor": 1} if monitor == "own" else {})}
    total = sum(counts.values())
    if total == world_size or (wanted == 0 and total < world_size):
        return world_size - total + counts[kind]
    terms = " + ".join(_count(number, name) for name, number in counts.items())
    least = " at least" if wanted == 0 else ""
    if wanted == 0:
        advice = f"start it with {total} ranks or more, or lower the counts"
    elif total - wanted < world_size:
        advice = f"start it with {_count(total, 'rank')}, or set topology.{kind}s=0 to use the rest"
    else:
        advice = f"start it with {total} ranks, or lower the counts"
    alone = ', or set topology.layout="serial" to run everything on one rank' if world_size == 1 else ""
    raise TopologyError(f"{terms} = {_count(total, 'rank')}{least}, but the job has {world_size}: {advice}{alone}")


class _Seats:
    """Ranks that hold nothing yet, taken in turn from one node after the other."""

    def __init__(self, nodes: Sequence[int]):
        self._free: dict[int, list[int]] = {node: [] for node in sorted(set(nodes))}
        for rank, node in enumerate(nodes):
            self._free[node].append(rank)
        self._turn = 0

    def take(self, count: int) -> list[int]:
        """``count`` ranks spread over the nodes, in rank order."""
        order = list(self._free.values())
        taken: list[int] = []
        while len(taken) < count:
            ranks = order[self._turn % len(order)]
            self._turn += 1
            if ranks:
                taken.append(ranks.pop(0))
        return sorted(taken)

    def rest(self) -> list[int]:
        return sorted(rank for ranks in self._free.values() for rank in ranks)


def _serial(world_size: int, evaluators: int) -> dict[int, list[Role]]:
    if world_size != 1:
        raise TopologyError(
            f"the serial layout has 1 rank, but the job has {world_size}: start it without mpiexec, "
            'or set topology.layout="bundled"'
        )
    # In this order no gradient is on its way when a round ends, which is where checkpoints are cut.
    kinds = ["actor", "learner", "parameter_server", *["evaluator"] * evaluators, "monitor"]
    return {0: [Role(kind, 0) for kind in kinds]}


def _synchronous(world_size: int, evaluators: int) -> dict[int, list[Role]]:
    """Actor and learner on every rank; the first also has what there is one of, in the order of the serial layout."""
    held = {rank: [Role("actor", rank), Role("learner", rank)] for rank in range(world_size)}
    held[0] += [Role(kind, 0) for kind in ("parameter_server", *["evaluator"] * evaluators, "monitor")]
    return held


def _bundled(nodes: Sequence[int], servers: int, bundles: int, evaluators: int, monitor: str) -> dict[int, list[Role]]:
    seats = _Seats(nodes)
    held = _common(seats, servers, evaluators, monitor)
    ranks = seats.rest()
    assert len(ranks) == bundles
    held |= {rank: [Role("actor", index), Role("learner", index)] for index, rank in enumerate(ranks)}
    return held


def _split(nodes: Sequence[int], servers: int, learners: int, evaluators: int, monitor: str) -> dict[int, list[Role]]:
    seats = _Seats(nodes)
    held = _common(seats, servers, evaluators, monitor)
    held |= {rank: [Role("learner", index)] for index, rank in enumerate(seats.take(learners))}
    held |= {rank: [Role("actor", index)] for index, rank in enumerate(seats.rest())}
    return held


def _common(seats: _Seats, servers: int, evaluators: int, monitor: str) -> dict[int, list[Role]]:
    """Servers, monitor and evaluators, which every layout with several ranks places alike."""
    server_ranks = seats.take(servers)
    held = {rank: [Role("parameter_server", index)] for index, rank in enumerate(server_ranks)}
    if monitor == "own":
        held[seats.take(1)[0]] = [Role("monitor", 0)]
    else:
        held[server_ranks[0]].append(Role("monitor", 0))
    held |= {rank: [Role("evaluator", index)] for index, rank in enumerate(seats.take(evaluators))}
    return held


def _equip(
    nodes: Sequence[int],
    held: dict[int, list[Role]],
    cores: Sequence[int],
    cores_per_rank: Sequence[int],
    gpus_per_node: int,
    learner_threads: int,
) -> tuple[RankPlan, ...]:
    """Threads and device of each rank: learners get the GPUs of their node in order, and the cores others leave."""
    learner_ranks = [rank for rank in sorted(held) if any(role.kind == "learner" for role in held[rank])]
    plans = []
    for rank, node in enumerate(nodes):
        on_node = [other for other in learner_ranks if nodes[other] == node]
        threads, device = 1, "cpu"
        if rank in on_node:
            left = cores[node] - (list(nodes).count(node) - len(on_node))
            share = max(1, left // len(on_node))
            threads = learner_threads or min([share, *cores_per_rank[rank : rank + 1]])
            device = f"cuda:{on_node.index(rank) % gpus_per_node}" if gpus_per_node else "cpu"
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
