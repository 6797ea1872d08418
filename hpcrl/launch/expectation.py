"""What a plan should reach, by the cost model: for ``hpcrl plan``."""

from collections.abc import Iterator

from hpcrl.analysis.scaling import MEASURED, Cluster, Costs, best_servers, predict
from hpcrl.config import Config
from hpcrl.launch.topology import Plan

STEP_SECONDS, GRADIENT_SECONDS = 8.2e-4, 4.0e-4
"""Of one step of a simulator of Atari with its share of a forward pass, and of one transition of a minibatch, with
Nature's network on a core of an Intel Xeon (Sapphire Rapids) (``hpcrl bench dqn``)."""


def compute_seconds(config: Config) -> float | None:
    """Of a bundle for one update, on one core; None where that was not measured: other networks, GPUs."""
    learning = config.learning
    if config.network.kind != "nature" or not config.env.is_atari or not learning.uses_replay:
        return None
    steps = learning.batch_size / learning.training_intensity
    return steps * STEP_SECONDS + learning.batch_size * GRADIENT_SECONDS


def expectation(
    config: Config, rank_map: Plan, num_parameters: int, cluster: Cluster, costs: Costs = MEASURED, compute: float = 0.0
) -> Iterator[str]:
    """Lines about updates per second, what limits them, and the right number of servers; none where there is no model.

    Parameters
    ----------
    compute
        Of a bundle for one update; 0: :func:`compute_seconds`. [s]
    """
    on_cores = all(rank.device == "cpu" for rank in rank_map.ranks)
    compute = compute or (compute_seconds(config) if on_cores else None)
    if compute is None or rank_map.layout != "bundled" or config.learning.update != "server":
        return
    job = {"vector_bytes": 4 * num_parameters, "compute_seconds": compute, "computes": on_cores}
    servers, bundles = rank_map.num("parameter_server"), rank_map.num("learner")
    found = predict(costs, cluster, servers=servers, bundles=bundles, **job)
    busy = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.busy.items())
    yield (
        f"expected by the cost model (docs/scaling.md), {1e3 * compute:.3g} ms of computing for each update: "
        f"{found.updates_per_second:,.3g} updates/s; limited by {found.bottleneck} (busy: {busy})"
    )
    ranks = servers + bundles
    if ranks > 2:
        best, reached = best_servers(costs, cluster, ranks, **job)
        yield f"of {ranks} ranks {best} should be servers: {reached.updates_per_second:,.3g} updates/s"
