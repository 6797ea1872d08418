"""What a plan will need before anything is allocated: memory per rank and node, shared memory, and traffic.

Arithmetic only. What hpcrl allocates follows from the configuration; what a process takes besides is measured, with the
wheels of MPICH 5.0 and Open MPI 5.0 and torch 2.13 for CPUs, and tests/mpi/test_resources.py compares the two. Not
counted is what CUDA's libraries add to a rank with a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hpcrl.launch.topology import Memory, Plan, RankPlan, lane_capacity, shard_bounds

FLOAT_BYTES = 4
DOUBLE_BYTES = 8
LIBRARY_BYTES = 120 * 10**6
"""Code of Python, MPI, NumPy and torch: part of each rank's resident size, but in a node's memory only once."""
PROCESS_BYTES = 172 * 10**6
"""What every rank holds besides its code once its packages are loaded."""
OPTIMIZER_BYTES = 75 * 10**6
"""What torch loads further for a server's first optimizer step."""
REPLICA_VECTORS = 3
"""A network that follows the servers: parameters, gradients, and the initial parameters, which the allocator keeps."""
LEARNER_VECTORS = 3
"""What a learner adds: its target, and gradients on their way (measured; in a bundle one more)."""
ACTIVATIONS = 6
"""Memory of a learner's passes, in float32 copies of its minibatch."""

RELAYED_ROLLOUTS = 2
"""Rollouts of an actor that may wait, on a server, for a learner; with a third, it waits itself."""
TARGET_SLOTS = 3
"""Published copies of a shard's target; targets are new so seldom that the least number will do."""


def optimizer_vectors(optimizer: str, *, momentum: float = 0.0, rmsprop_centered: bool = True) -> int:
    """State vectors, each as long as the parameters, that a server keeps for its optimizer."""
    return {"sgd": 0, "rmsprop": 1 + rmsprop_centered, "adagrad": 1, "adam": 2}[optimizer] + (momentum > 0)


@dataclass(frozen=True)
class RankForecast:
    """Memory of one rank, in bytes."""

    rank: int
    private_bytes: int
    """resident size without windows: process, replicas, optimizer state; also the replay of a bundle"""
    shared_bytes: int
    """MPI windows, which the node's ranks share through /dev/shm"""


@dataclass(frozen=True)
class NodeForecast:
    """Needs of one node."""

    node: int
    ranks: int
    memory_bytes: int
    shared_bytes: int
    """of ``memory_bytes``, what must fit into /dev/shm"""
    sent_bytes_per_second: float
    """to other nodes"""
    received_bytes_per_second: float
    """from other nodes"""


@dataclass(frozen=True)
class Forecast:
    """Needs of a whole job at a given rate of global updates."""

    ranks: tuple[RankForecast, ...]
    nodes: tuple[NodeForecast, ...]
    num_parameters: int
    replay_bytes: int
    """all replay memories together"""
    updates_per_second: float
    minibatches: int
    """of one update, at most"""
    steps_per_second: float
    """agent steps of all simulators together, from the training intensity"""
    pushed_bytes_per_second: float
    """gradients, learners to servers"""
    pulled_bytes_per_second: float
    """parameters and targets, servers to learners and actors"""
    reduced_bytes_per_second: float
    """what each node sends, and receives as much, to sum gradients with the others; of synchronous learners"""


@dataclass(frozen=True)
class Sizes:
    """What the configuration and the network fix; lengths in float32 elements, steps or bytes as named."""

    num_parameters: int
    record_bytes: int
    """one step in a replay lane"""
    capacity_steps: int
    """per memory"""
    window_steps: int
    """stack + n, mirrored at the end of each lane"""
    shortest_lane_steps: int
    """what a lane must at least have"""
    simulators: int
    """per actor"""
    simulator_bytes: int
    """of one simulator"""
    exchange_bytes: int
    """memory between a learner and its simulator ranks, where there are such"""
    priority_block_slots: int
    """slots whose priorities are summed together; 0 where sampling is uniform"""
    batch_size: int
    rollout_bytes: int
    """observations of a rollout; 0 where learning is from a replay memory"""
    rollouts: int
    """that a learner holds"""
    slots: int
    """published copies per shard"""
    gradient_slots: int
    """gradients of one learner that a server can hold"""
    optimizer_vectors: int
    """see :func:`optimizer_vectors`"""
    reduced_bytes: int
    """of one number, where gradients are summed over all learners"""
    combined: bool
    """gradients of a node leave it as one, where several are ready"""
    stored: bool
    """parameters and moments are stored once, for learners to overwrite, and nothing is pushed to servers"""
    virtual_delay: int
    """longest, in updates: copies of old parameters that a learner keeps"""


@dataclass(frozen=True)
class Periods:
    """How often something is moved."""

    training_intensity: float
    """transitions trained per step acted"""
    pull_period_updates: int
    """learner's own updates; between two visits to stored parameters likewise"""
    sync_period_steps: int
    """steps of each simulator"""
    target_period_updates: int
    """global updates"""


class _Moves(NamedTuple):
    """Whole vectors that a rank moves per second."""

    pushes: float = 0.0
    pulls: float = 0.0
    """of parameters"""
    targets: float = 0.0
    visits: float = 0.0
    """to stored parameters and moments, which move both ways"""


def forecast(plan: Plan, sizes: Sizes, periods: Periods, *, updates_per_second: float) -> Forecast:
    """Add up what each role of the plan allocates and moves when shards advance ``updates_per_second``."""
    vector_bytes = sizes.num_parameters * FLOAT_BYTES
    bounds = shard_bounds(sizes.num_parameters, plan.num("parameter_server"))
    minibatches = _minibatches(plan, sizes)
    steps_per_second = minibatches * updates_per_second * sizes.batch_size / periods.training_intensity
    reduced = _reduced(plan, sizes.num_parameters * sizes.reduced_bytes) * updates_per_second
    moves = {rank.rank: _moves(plan, rank, sizes, periods, updates_per_second, steps_per_second) for rank in plan.ranks}
    published = _Moves(pulls=updates_per_second, targets=updates_per_second / periods.target_period_updates)
    total = _Moves(*map(sum, zip(*moves.values(), strict=True)))
    experience = {
        rank.rank: _experience(plan, rank, sizes, updates_per_second, steps_per_second) for rank in plan.ranks
    }
    ranks = tuple(_rank(plan, rank, sizes, bounds) for rank in plan.ranks)
    return Forecast(
        ranks=ranks,
        nodes=_nodes(plan, sizes, ranks, bounds, moves, experience, reduced, published),
        num_parameters=sizes.num_parameters,
        replay_bytes=sum(_memory_bytes(memory, sizes) for memory in plan.memories),
        updates_per_second=updates_per_second,
        minibatches=minibatches,
        steps_per_second=steps_per_second,
        pushed_bytes_per_second=(total.pushes + total.visits) * vector_bytes,
        pulled_bytes_per_second=(total.pulls + total.targets + total.visits) * vector_bytes,
        reduced_bytes_per_second=reduced,
    )


def _minibatches(plan: Plan, sizes: Sizes) -> int:
    """Minibatches of one update: of all synchronous learners, or at most of those of one node."""
    on_nodes = [plan.ranks[rank].node for rank in plan.ranks_of("learner")]
    if plan.synchronous:
        return len(on_nodes)
    return max(map(on_nodes.count, on_nodes)) if sizes.combined else 1


def _reduced(plan: Plan, vector_bytes: int) -> float:
    """Bytes that a node sends to sum one vector over all nodes: each part goes round once, and its sum again."""
    nodes = len({rank.node for rank in plan.ranks})
    return 2 * (nodes - 1) / nodes * vector_bytes if plan.synchronous else 0.0


def _memory_bytes(memory: Memory, sizes: Sizes) -> int:
    return len(memory.actors) * sizes.simulators * _lane_bytes(memory, sizes)


def _lane_slots(memory: Memory, sizes: Sizes) -> int:
    return lane_capacity(
        memory,
        capacity_steps=sizes.capacity_steps,
        simulators=sizes.simulators,
        shortest_steps=sizes.shortest_lane_steps,
    )


def _lane_bytes(memory: Memory, sizes: Sizes) -> int:
    """Records of one lane, and where sampling is prioritised a float64 for each slot and for each block of slots."""
    steps = _lane_slots(memory, sizes)
    blocks = -(-steps // sizes.priority_block_slots) if sizes.priority_block_slots else 0
    return (steps + sizes.window_steps) * sizes.record_bytes + blocks * (sizes.priority_block_slots + 1) * DOUBLE_BYTES


def _rank(plan: Plan, rank: RankPlan, sizes: Sizes, bounds: Sequence[int]) -> RankForecast:
    """Memory of one rank; a memory shared by a node is charged to its first learner, the global one to its hosts."""
    kinds, crewed = {role.kind for role in rank.roles}, plan.num("simulator")
    vector_bytes = sizes.num_parameters * FLOAT_BYTES
    relays = plan.layout == "split" and sizes.rollout_bytes > 0
    private, shared = LIBRARY_BYTES + PROCESS_BYTES, 0
    replicas = bool(kinds & {"learner", "actor"}) + ("evaluator" in kinds)
    replicas += "actor" in kinds and sizes.rollout_bytes > 0  # which acts, unchanged while a rollout lasts
    private += replicas * REPLICA_VECTORS * vector_bytes
    for role in rank.roles:
        if role.kind == "parameter_server" and plan.synchronous:
            private += (2 + sizes.optimizer_vectors) * vector_bytes  # copied by a checkpoint
        elif role.kind == "parameter_server":
            shard_bytes = (bounds[role.index + 1] - bounds[role.index]) * FLOAT_BYTES
            state = shard_bytes * (2 + sizes.optimizer_vectors)  # parameters and target
            if relays:
                shared += (
                    RELAYED_ROLLOUTS * sizes.rollout_bytes * len(plan.ranks_of("actor")[role.index :: len(bounds) - 1])
                )
            # A checkpoint copies the state; before that, a server makes the whole network to begin with.
            private += OPTIMIZER_BYTES + max(2 * state, state + 2 * vector_bytes)
            if sizes.stored:
                reads = any(
                    {role.kind for role in r.roles} & {"actor", "evaluator"} and not _learns(r) for r in plan.ranks
                )
                shared += shard_bytes * (1 + sizes.optimizer_vectors + TARGET_SLOTS + reads * sizes.slots)
            else:
                shared += shard_bytes * (sizes.slots + TARGET_SLOTS + sizes.gradient_slots * plan.num("learner"))
        elif role.kind == "replay_host":
            (memory,) = plan.memories
            lanes = len(memory.actors) * sizes.simulators
            shared += len(range(role.index, lanes, plan.num("replay_host"))) * _lane_bytes(memory, sizes)
        elif role.kind == "learner":
            vectors = LEARNER_VECTORS + ("actor" in kinds)
            vectors += sizes.combined
            if plan.synchronous:
                vectors += 1 + sizes.optimizer_vectors
                private += OPTIMIZER_BYTES
            if sizes.virtual_delay:  # the history, the newest, and a replica of its own
                vectors += sizes.virtual_delay + 2 + (2 if "actor" in kinds else 0)
            batch_bytes = sizes.batch_size * sizes.window_steps * sizes.record_bytes
            private += vectors * vector_bytes + batch_bytes * (1 + ACTIVATIONS * FLOAT_BYTES)
            private += sizes.rollouts * sizes.rollout_bytes
            shared += sizes.exchange_bytes if crewed else 0
            memory = plan.memories[plan.memory_of(role)] if plan.memories else None
            if memory and memory.node is not None and memory.learners[0] == role.index:
                own, node = (0, 1) if plan.layout == "split" else (1, 0)
                private += own * _memory_bytes(memory, sizes)
                shared += node * _memory_bytes(memory, sizes)
        elif role.kind == "actor" and relays:
            private += sizes.rollout_bytes + sizes.simulators * sizes.simulator_bytes
        elif role.kind == "simulator":
            private += vector_bytes + sizes.simulators * sizes.simulator_bytes * plan.num("learner") // crewed
        elif role.kind == "evaluator" or (role.kind == "actor" and not crewed):
            private += sizes.simulators * sizes.simulator_bytes
    return RankForecast(rank.rank, private, shared)


def _learns(rank: RankPlan) -> bool:
    return any(role.kind == "learner" for role in rank.roles)


def _moves(plan: Plan, rank: RankPlan, sizes: Sizes, periods: Periods, updates: float, steps: float) -> _Moves:
    """What a rank moves.

    A pull moves only what is newer than the replica, which the roles of a rank share: no more than one per update, and
    an actor that has a learner beside it needs none where that has pulled.
    """
    if plan.synchronous:
        return _Moves()
    kinds = [role.kind for role in rank.roles]
    learners, actors = plan.num("learner"), plan.num("actor")
    pushes = wanted = targets = 0.0
    if "learner" in kinds:
        pushes = updates / learners
        minibatches = pushes * _minibatches(plan, sizes)
        targets = min(minibatches, updates / periods.target_period_updates)
        if sizes.stored:  # each visit reads and overwrites everything, and the actor of the rank needs nothing more
            visits = minibatches / periods.pull_period_updates * (1 + sizes.optimizer_vectors)
            return _Moves(targets=targets, visits=visits)
        wanted = minibatches / periods.pull_period_updates
    if "actor" in kinds:
        wanted = max(wanted, steps / (actors * sizes.simulators * periods.sync_period_steps))
    return _Moves(pushes, min(wanted, updates), targets)


def _experience(plan: Plan, rank: RankPlan, sizes: Sizes, updates: float, steps: float) -> tuple[float, float]:
    """Bytes per second that a rank writes to the global memory and reads from it; none where memories are local."""
    if not plan.memories or plan.memories[0].node is not None:
        return 0.0, 0.0
    kinds = {role.kind for role in rank.roles}
    written = steps / plan.num("actor") * sizes.record_bytes if "actor" in kinds else 0.0
    batch_bytes = sizes.batch_size * sizes.window_steps * sizes.record_bytes
    if sizes.priority_block_slots:  # a block for each draw, and the sums of all
        (memory,) = plan.memories
        slots = len(memory.actors) * sizes.simulators * _lane_slots(memory, sizes)
        batch_bytes += (
            sizes.batch_size * sizes.priority_block_slots + slots / sizes.priority_block_slots
        ) * DOUBLE_BYTES
    return written, updates / plan.num("learner") * batch_bytes if "learner" in kinds else 0.0


def _node_vectors(plan: Plan, sizes: Sizes, node: int) -> int:
    """Vectors that the ranks of a node share: what they pull from other nodes, their gradients and the sum of these."""
    here = [rank for rank in plan.ranks if rank.node == node]
    learners = sum(_learns(rank) for rank in here)
    if plan.synchronous:
        return learners + 1 if plan.num("learner") > 1 else 0
    acting = sum(any(role.kind in ("actor", "evaluator") for role in rank.roles) for rank in here if not _learns(rank))
    readers = acting if sizes.stored else acting + learners
    elsewhere = any(plan.ranks[rank].node != node for rank in plan.ranks_of("parameter_server"))
    return elsewhere * ((readers > 1) + (learners > 1)) + (sizes.combined and learners > 1)


def _nodes(
    plan: Plan,
    sizes: Sizes,
    ranks: Sequence[RankForecast],
    bounds: Sequence[int],
    moves: dict[int, _Moves],
    experience: dict[int, tuple[float, float]],
    reduced: float,
    published: _Moves,
) -> tuple[NodeForecast, ...]:
    """Sum over each node; what stays inside a node is shared memory and counts as no traffic.

    Each version that is ``published`` comes to a node once, whoever of it wants it.
    """
    nodes = sorted({rank.node for rank in plan.ranks})
    sent, received = dict.fromkeys(nodes, reduced), dict.fromkeys(nodes, reduced)
    for index, server in enumerate(plan.ranks_of("parameter_server")):
        here, shard_bytes = plan.ranks[server].node, (bounds[index + 1] - bounds[index]) * FLOAT_BYTES
        for node in nodes:
            if node == here:
                continue
            ranks_there = [rank.rank for rank in plan.ranks if rank.node == node]
            moved = _Moves(*map(sum, zip(*(moves[rank] for rank in ranks_there), strict=True)))
            written, read = (
                sum(numbers) / plan.num("parameter_server")
                for numbers in zip(*(experience[rank] for rank in ranks_there), strict=True)
            )
            up = (moved.pushes + moved.visits) * shard_bytes + written
            pulls = min(moved.pulls, published.pulls) + min(moved.targets, published.targets)
            down = (pulls + moved.visits) * shard_bytes + read
            sent[node] += up
            received[here] += up
            sent[here] += down
            received[node] += down
    forecasts = []
    for node in nodes:
        on_node = [ranks[rank.rank] for rank in plan.ranks if rank.node == node]
        shared = sum(rank.shared_bytes for rank in on_node)
        shared += _node_vectors(plan, sizes, node) * sizes.num_parameters * FLOAT_BYTES
        code_again = (len(on_node) - 1) * LIBRARY_BYTES
        memory = shared + sum(rank.private_bytes for rank in on_node) - code_again
        forecasts.append(NodeForecast(node, len(on_node), memory, shared, sent[node], received[node]))
    return tuple(forecasts)
