"""The cost model: it finds costs that it was given, and the limits of jobs that are known."""

from dataclasses import astuple

import numpy as np
import pytest

from hpcrl.analysis.scaling import Cluster, Costs, Sample, best_servers, errors, fit, predict

COSTS = Costs(
    bundle_update=1e-4,
    bundle_message=5e-5,
    bundle_byte=2e-10,
    server_gradient=1e-4,
    server_byte=4e-10,
    bundle_idle=0.002,
    server_idle=0.01,
)
JOB = {"vector_bytes": 6_748_824, "compute_seconds": 0.016}
LARGE = Cluster(cores=10_000, nodes=100)


def sample(servers, bundles, vector_bytes, compute_seconds, cores=2):
    """A job that behaves as the model says."""
    job = {"servers": servers, "bundles": bundles, "vector_bytes": vector_bytes, "compute_seconds": compute_seconds}
    rate = predict(COSTS, Cluster(cores), computes=False, **job).updates_per_second
    bundle = COSTS.bundle_update + COSTS.bundle_message * servers + COSTS.bundle_byte * vector_bytes
    server = COSTS.server_gradient * servers + COSTS.server_byte * vector_bytes
    used = rate * bundle + bundles * COSTS.bundle_idle, rate * server + servers * COSTS.server_idle
    return Sample(servers, bundles, vector_bytes, compute_seconds, cores, rate, *used)


SAMPLES = [
    sample(servers, bundles, vector_bytes, compute)
    for servers, bundles in ((1, 1), (1, 4), (4, 16), (16, 64))
    for vector_bytes, compute in ((6_748_824, 0.5), (800_000, 0.2))
]


def test_costs_are_found_again():
    assert np.allclose(astuple(fit(SAMPLES)), astuple(COSTS), rtol=1e-6, atol=1e-12)


def test_what_would_be_negative_is_nothing():
    noisy = [s._replace(bundle_cores=s.bundle_cores * f) for s, f in zip(SAMPLES, (1.3, 0.8) * 4, strict=True)]
    assert min(astuple(fit(noisy))) >= 0


def test_errors_are_relative():
    assert np.allclose(errors(COSTS, SAMPLES), 0.0)
    doubled = [s._replace(updates_per_second=2 * s.updates_per_second) for s in SAMPLES]
    assert np.allclose(errors(COSTS, doubled), -0.5)


def test_few_bundles_compute_all_the_time():
    few = predict(COSTS, LARGE, servers=1, bundles=2, **JOB)
    assert few.bottleneck == "bundles"
    assert few.updates_per_second == pytest.approx(2 / 0.016, rel=0.35)


def test_many_bundles_are_held_up_by_one_server_at_its_own_rate():
    many = predict(COSTS, LARGE, servers=1, bundles=400, **JOB)
    alone = 1 / (COSTS.server_gradient + COSTS.server_byte * JOB["vector_bytes"])
    assert many.bottleneck == "servers"
    assert many.updates_per_second == pytest.approx(alone, rel=0.01)


def test_a_slow_network_is_the_limit_before_the_servers():
    slow = Cluster(cores=10_000, nodes=100, bytes_per_second=1e8)
    found = predict(COSTS, slow, servers=4, bundles=400, **JOB)
    assert found.bottleneck == "network"
    assert predict(COSTS, slow, servers=4, bundles=400, **JOB, compression=2).updates_per_second == pytest.approx(
        2 * found.updates_per_second, rel=0.05
    )


def test_cores_are_the_limit_where_ranks_share_them():
    found = predict(COSTS, Cluster(cores=2), servers=1, bundles=16, **JOB)
    assert found.bottleneck == "cores"
    assert found.updates_per_second < 2 / 0.016
    assert max(found.busy.values()) <= 1


def test_local_updates_lift_the_limit_of_the_servers():
    once = predict(COSTS, LARGE, servers=1, bundles=400, **JOB)
    often = predict(COSTS, LARGE, servers=1, bundles=400, **JOB, updates_per_push=8)
    assert often.updates_per_second == pytest.approx(8 * once.updates_per_second, rel=0.05)


def test_the_right_number_of_servers_grows_with_the_ranks_and_is_no_more_than_needed():
    few, most = best_servers(COSTS, LARGE, 8, **JOB), best_servers(COSTS, LARGE, 512, **JOB)
    assert few[0] < most[0] < 256
    assert most[1].updates_per_second >= 0.96 * max(
        predict(COSTS, LARGE, servers=s, bundles=512 - s, **JOB).updates_per_second for s in range(1, 256)
    )
