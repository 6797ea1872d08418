"""Which ranks hold which roles in each layout: the counts must add up, and what shares memory must share a node."""

from collections.abc import Sequence
from typing import NamedTuple

from hpcrl.errors import TopologyError


class Role(NamedTuple):
    """One role of the job; ``(kind, index)`` also names its random streams."""

    kind: str
    """one of :data:`hpcrl.launch.topology.KINDS`"""
    index: int

    def __str__(self) -> str:
        return f"{self.kind} {self.index}"


def count(number: int, noun: str, ending: str = "s") -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{ending}"


def fill(world_size: int, kind: str, wanted: int, others: dict[str, int], evaluators: int, monitor: str) -> int:
    """Number of ``kind`` (0 wanted: all remaining ranks); the counts must add up to the job exactly."""
    counts = {**others, kind: wanted or 1, "evaluator": evaluators, **({"monitor": 1} if monitor == "own" else {})}
    total = sum(counts.values())
    if total == world_size or (wanted == 0 and total < world_size):
        return world_size - total + counts[kind]
    terms = " + ".join(count(number, name) for name, number in counts.items())
    least = " at least" if wanted == 0 else ""
    if wanted == 0:
        advice = f"start it with {total} ranks or more, or lower the counts"
    elif total - wanted < world_size:
        advice = f"start it with {count(total, 'rank')}, or set topology.{kind}s=0 to use the rest"
    else:
        advice = f"start it with {total} ranks, or lower the counts"
    alone = ', or set topology.layout="serial" to run everything on one rank' if world_size == 1 else ""
    raise TopologyError(f"{terms} = {count(total, 'rank')}{least}, but the job has {world_size}: {advice}{alone}")


def fill_with_crews(
    world_size: int, bundles: int, simulator_ranks: int, others: dict[str, int], evaluators: int, monitor: str
) -> None:
    """As :func:`fill`, where each bundle has so many simulator ranks beside it."""
    if not bundles and simulator_ranks:
        size, taken = 1 + simulator_ranks, sum(others.values()) + evaluators + (monitor == "own")
        bundles, over = divmod(world_size - taken, size)
        if bundles < 1 or over:
            enough = [taken + size * max(1, crews) for crews in (bundles, bundles + 1)]
            starts = " or ".join(map(str, dict.fromkeys(enough)))
            raise TopologyError(
                f"a learner and its {count(simulator_ranks, 'simulator')} are {size} ranks, but the job has "
                f"{count(world_size - taken, 'rank')} for them: start it with {starts} ranks, "
                "or change topology.simulator_ranks"
            )
    if simulator_ranks:
        others = {**others, "simulator": bundles * simulator_ranks}
    fill(world_size, "bundle", bundles, others, evaluators, monitor)


class _Seats:
    """Ranks that hold nothing yet, taken in turn from one node after the other."""

    def __init__(self, nodes: Sequence[int]):
        self._free: dict[int, list[int]] = {node: [] for node in sorted(set(nodes))}
        for rank, node in enumerate(nodes):
            self._free[node].append(rank)
        self._turn = 0

    def take(self, count: int, preferred: Sequence[int] = ()) -> list[int]:
        """``count`` ranks spread over the nodes, over those preferred while they have any, in rank order."""
        taken: list[int] = []
        while len(taken) < count:
            order = [self._free[node] for node in preferred if self._free.get(node)] or list(self._free.values())
            ranks = order[self._turn % len(order)]
            self._turn += 1
            if ranks:
                taken.append(ranks.pop(0))
        return sorted(taken)

    def rest(self) -> list[int]:
        return sorted(rank for ranks in self._free.values() for rank in ranks)


def serial(world_size: int, evaluators: int) -> dict[int, list[Role]]:
    """Everything on one rank."""
    if world_size != 1:
        raise TopologyError(
            f"the serial layout has 1 rank, but the job has {world_size}: start it without mpiexec, "
            'or set topology.layout="bundled"'
        )
    # In this order no gradient is on its way when a round ends, which is where checkpoints are cut.
    kinds = ["actor", "learner", "parameter_server", *["evaluator"] * evaluators, "monitor"]
    return {0: [Role(kind, 0) for kind in kinds]}


def synchronous(nodes: Sequence[int], simulator_ranks: int, evaluators: int) -> dict[int, list[Role]]:
    """Crews only; the first learner's rank also has what there is one of, in the order of the serial layout."""
    held = _crews(nodes, range(len(nodes)), simulator_ranks)
    held[min(held)] += [Role(kind, 0) for kind in ("parameter_server", *["evaluator"] * evaluators, "monitor")]
    return held


def bundled(
    nodes: Sequence[int], servers: int, simulator_ranks: int, evaluators: int, monitor: str
) -> dict[int, list[Role]]:
    """Servers, and crews on the rest."""
    seats = _Seats(nodes)
    held = _common(seats, servers, evaluators, monitor)
    return held | _crews(nodes, seats.rest(), simulator_ranks)


def _crews(nodes: Sequence[int], ranks: Sequence[int], simulator_ranks: int) -> dict[int, list[Role]]:
    """Actor and learner on one rank, and the ranks that step their simulators beside it, on the same node."""
    size, crews = 1 + simulator_ranks, []
    for node in sorted({nodes[rank] for rank in ranks}):
        here = [rank for rank in ranks if nodes[rank] == node]
        if len(here) % size:
            raise TopologyError(
                f"a learner and its {count(simulator_ranks, 'simulator')} are {size} ranks of one node, but node "
                f"{node} has {count(len(here), 'rank')} for them: give each node a multiple of {size}, beside its "
                "servers and evaluators, or change topology.simulator_ranks"
            )
        crews += [here[begin : begin + size] for begin in range(0, len(here), size)]
    held = {}
    for index, (rank, *simulators) in enumerate(sorted(crews)):
        held[rank] = [Role("actor", index), Role("learner", index)]
        held |= {other: [Role("simulator", index * simulator_ranks + k)] for k, other in enumerate(simulators)}
    return held


def split(
    nodes: Sequence[int], servers: int, learners: int, evaluators: int, monitor: str, with_gpus: Sequence[int]
) -> dict[int, list[Role]]:
    """Each role on ranks of its own; learners on the nodes ``with_gpus``, where only some have any."""
    seats = _Seats(nodes)
    chosen = seats.take(learners, with_gpus) if with_gpus else []
    held = _common(seats, servers, evaluators, monitor)
    held |= {rank: [Role("learner", index)] for index, rank in enumerate(chosen or seats.take(learners))}
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
