"""What ``hpcrl plan`` is given and prints."""

from hpcrl.errors import ConfigError
from hpcrl.launch.forecast import Forecast
from hpcrl.launch.topology import Plan


def places_of(ranks: int, nodes: int, ranks_per_node: str) -> list[int]:
    """The node of each rank: of equal numbers on each, or of those in ``ranks_per_node``.

    Raises
    ------
    ConfigError
        There are more nodes than ranks, or no numbers in ``ranks_per_node``.
    """
    if ranks_per_node:
        counts = numbers("--ranks-per-node", ranks_per_node)
        return [node for node, count in enumerate(counts) for _ in range(count)]
    if nodes > ranks:
        raise ConfigError(f"expected at most one node per rank, got --ranks {ranks} --nodes {nodes}")
    return [rank * nodes // ranks for rank in range(ranks)]


def numbers(option: str, text: str, of: int = 0) -> list[int]:
    """Numbers with commas between them; where ``of`` is given, so many, or one for all.

    Raises
    ------
    ConfigError
        They are none, or not so many; without ``of``, one is 0.
    """
    words = text.split(",")
    if not all(word.isdecimal() for word in words) or (not of and "0" in words):
        raise ConfigError(f"{option}: expected whole numbers with commas between them, got {text!r}")
    if of and len(words) not in (1, of):
        raise ConfigError(f"{option}: expected 1 number or {of}, one for each node, got {text!r}")
    return [int(word) for word in (words if len(words) > 1 else words * max(of, 1))]


def render(rank_map: Plan, forecast: Forecast) -> str:
    """The forecast as text: memory per kind of rank and per node, then traffic."""
    count, memories = forecast.num_parameters, len(rank_map.memories)
    lines = [
        f"{count:,} parameters ({bytes_text(4 * count)}); "
        f"replay memories: {memories}, {bytes_text(forecast.replay_bytes)} in all",
        f"{'node':>6}  {'ranks':>5}  {'memory':>10}  {'/dev/shm':>10}  {'sent':>12}  {'received':>12}",
    ]
    for node in forecast.nodes:
        memory, shared = bytes_text(node.memory_bytes), bytes_text(node.shared_bytes)
        sent, received = bytes_text(node.sent_bytes_per_second), bytes_text(node.received_bytes_per_second)
        lines.append(
            f"{node.node:>6}  {node.ranks:>5}  {memory:>10}  {shared:>10}  {sent + '/s':>12}  {received + '/s':>12}"
        )
    largest = max(forecast.ranks, key=lambda rank: rank.private_bytes + rank.shared_bytes)
    combined = not rank_map.synchronous and forecast.minibatches > 1
    of_each = f" of up to {forecast.minibatches} minibatches" if combined else ""
    lines += [
        f"largest rank: {largest.rank}, {bytes_text(largest.private_bytes + largest.shared_bytes)}",
        f"at {forecast.updates_per_second:,g} global updates/s{of_each}: {forecast.steps_per_second:,g} steps/s acted; "
        + (
            f"all-reduce {bytes_text(forecast.reduced_bytes_per_second)}/s from and to each node"
            if rank_map.synchronous
            else f"pushes {bytes_text(forecast.pushed_bytes_per_second)}/s, "
            f"pulls {bytes_text(forecast.pulled_bytes_per_second)}/s"
        ),
        "not counted: libraries of a GPU, simulators that are not Atari's; sent and received are between nodes",
    ]
    return "\n".join(lines)


def bytes_text(number: float) -> str:
    """``6.75 MB``, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"
