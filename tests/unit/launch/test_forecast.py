"""The forecast against sums made by hand."""

from dataclasses import replace

import pytest

from hpcrl.errors import TopologyError
from hpcrl.launch.forecast import (
    LIBRARY_BYTES,
    OPTIMIZER_BYTES,
    PROCESS_BYTES,
    Periods,
    Sizes,
    forecast,
    optimizer_vectors,
)
from hpcrl.launch.topology import plan

SIZES = Sizes(
    num_parameters=3200,  # 12,800 bytes
    record_bytes=100,
    capacity_steps=1000,
    window_steps=5,
    shortest_lane_steps=14,
    simulators=4,
    simulator_bytes=1000,
    exchange_bytes=0,
    priority_block_slots=0,
    batch_size=32,
    rollout_bytes=0,
    rollouts=1,
    slots=4,
    gradient_slots=1,
    optimizer_vectors=2,
    reduced_bytes=4,
    combined=False,
    stored=False,
    virtual_delay=0,
)
PERIODS = Periods(training_intensity=8.0, pull_period_updates=1, sync_period_steps=1, target_period_updates=100)
VECTOR = 12_800


def make(world_size, nodes, **changes):
    keys = {
        "layout": "bundled",
        "servers": 1,
        "bundles": 0,
        "learners": 1,
        "actors": 0,
        "evaluators": 0,
        "monitor": "shared",
        "cores_per_node": 8,
        "gpus_per_node": 0,
        "learner_threads": 0,
    }
    return plan(world_size, nodes, **{**keys, **changes})


def test_memory_of_servers_and_bundles():
    f = forecast(make(4, [0] * 4, servers=2), SIZES, PERIODS, updates_per_second=10)
    server, bundle = f.ranks[0], f.ranks[2]
    process = PROCESS_BYTES + LIBRARY_BYTES
    # Half of parameters, target and two moments; and, more than a copy of them, the whole network at the start.
    assert server.private_bytes == process + OPTIMIZER_BYTES + VECTOR // 2 * (2 + 2) + 2 * VECTOR
    assert server.shared_bytes == VECTOR // 2 * (4 + 3 + 2)
    replay = 4 * (250 + 5) * 100
    assert bundle.private_bytes == process + 7 * VECTOR + 25 * 32 * 5 * 100 + replay + 4 * 1000
    assert bundle.shared_bytes == 0
    assert f.replay_bytes == 2 * replay
    (node,) = f.nodes
    assert node.shared_bytes == 2 * server.shared_bytes
    # The code is in memory once.
    assert node.memory_bytes == sum(rank.private_bytes + rank.shared_bytes for rank in f.ranks) - 3 * LIBRARY_BYTES


def test_a_shared_memory_is_counted_once_per_node_and_in_shared_memory():
    p = make(6, [0] * 6, layout="split", learners=2)
    f = forecast(p, SIZES, PERIODS, updates_per_second=10)
    replay = 12 * (1000 // 12 + 5) * 100
    assert f.replay_bytes == replay
    assert [rank.shared_bytes for rank in f.ranks[1:]] == [replay, 0, 0, 0, 0]


def test_a_global_memory_lies_with_the_servers_in_proportion_to_their_lanes():
    p = make(6, [0, 0, 0, 1, 1, 1], layout="split", servers=2, learners=1, actors=3, global_replay=True)
    f = forecast(p, SIZES, PERIODS, updates_per_second=10)
    lane = (1000 // 12 + 5) * 100
    assert f.replay_bytes == 12 * lane
    shards = VECTOR // 2 * (4 + 3 + 1)
    assert sorted(rank.shared_bytes for rank in f.ranks) == [0, 0, 0, 0, shards + 6 * lane, shards + 6 * lane]
    with_priorities = forecast(p, replace(SIZES, priority_block_slots=256), PERIODS, updates_per_second=10)
    assert with_priorities.replay_bytes == 12 * (lane + 257 * 8)


def test_experience_of_a_global_memory_crosses_to_the_servers_and_back():
    """Server and actors on node 0, the learner on node 1: gradients and minibatches cross, steps do not."""
    p = make(4, [0, 0, 0, 1], layout="split", learners=1, actors=2, global_replay=True)
    assert [str(role) for role in p.roles_of(3)] == ["learner 0"]
    f = forecast(p, SIZES, PERIODS, updates_per_second=10)
    local = forecast(make(4, [0] * 4, layout="split", learners=1, actors=2), SIZES, PERIODS, updates_per_second=10)
    assert f.pushed_bytes_per_second == local.pushed_bytes_per_second
    pulled_and_read = f.nodes[1].received_bytes_per_second
    assert pulled_and_read == pytest.approx(10 * (VECTOR + 32 * 5 * 100) + 0.1 * VECTOR)
    assert f.nodes[1].sent_bytes_per_second == pytest.approx(10 * VECTOR)


def test_a_million_atari_frames_take_what_the_paper_says_and_priorities_little_more():
    """84 x 84 bytes each: 7.06 GB; priorities 8 bytes for each slot and for each block of 256."""
    sizes = replace(SIZES, record_bytes=7072, capacity_steps=1_000_000, priority_block_slots=256)
    f = forecast(make(2, [0, 0], global_replay=True), sizes, PERIODS, updates_per_second=10)
    assert f.replay_bytes == pytest.approx(7.06e9 + 8e6 * 257 / 256, rel=0.02)


def test_lanes_too_short_are_found_before_the_run():
    p = make(62, [0] * 62, layout="split")
    with pytest.raises(TopologyError, match="60 actors x 4 simulators = 240 lanes"):
        forecast(p, SIZES, PERIODS, updates_per_second=10)


def test_traffic_inside_a_node_is_none_between_nodes():
    f = forecast(make(3, [0] * 3), SIZES, PERIODS, updates_per_second=10)
    assert (f.nodes[0].sent_bytes_per_second, f.nodes[0].received_bytes_per_second) == (0, 0)
    assert f.pushed_bytes_per_second == 10 * VECTOR


def test_traffic_between_nodes():
    """Server on node 0, one learner on each node with an actor: half of the gradients cross."""
    p = make(5, [0] * 3 + [1] * 2, layout="split", learners=2)
    f = forecast(p, SIZES, PERIODS, updates_per_second=10)
    assert f.steps_per_second == 40
    pushed = 5 * VECTOR
    # A learner pulls each of its 5 updates and a target every 100 global ones; an actor 40 / 2 / 4 times a second.
    pulled = (5 + 0.1 + 5) * VECTOR
    near, far = f.nodes
    assert near.received_bytes_per_second == far.sent_bytes_per_second == pytest.approx(pushed)
    assert near.sent_bytes_per_second == far.received_bytes_per_second == pytest.approx(pulled)
    assert f.pulled_bytes_per_second == pytest.approx(2 * pulled)


def test_a_version_comes_to_a_node_once_and_gradients_may_leave_it_together():
    """Server on node 0, three bundles on node 1, each of which wants every version."""
    p = make(4, [0] + [1] * 3)
    f = forecast(p, SIZES, replace(PERIODS, training_intensity=0.1), updates_per_second=10)
    apart, together = (
        forecast(p, replace(SIZES, combined=combined), PERIODS, updates_per_second=10) for combined in (False, True)
    )
    assert f.pulled_bytes_per_second == pytest.approx(3 * (10 + 0.1) * VECTOR)
    assert f.nodes[0].sent_bytes_per_second == pytest.approx((10 + 0.1) * VECTOR)
    assert (apart.minibatches, together.minibatches) == (1, 3)
    assert together.steps_per_second == pytest.approx(3 * apart.steps_per_second)
    # What three share: the parameters and the target that they pull, the sum that they push.
    assert apart.nodes[1].shared_bytes == 2 * VECTOR
    assert together.nodes[1].shared_bytes == 3 * VECTOR
    # As many bytes for three times the minibatches
    assert [side.nodes[0].received_bytes_per_second for side in (apart, together)] == [pytest.approx(10 * VECTOR)] * 2


def test_pulls_of_a_rank_move_each_version_at_most_once():
    fast = Periods(training_intensity=0.1, pull_period_updates=1, sync_period_steps=1, target_period_updates=100)
    f = forecast(make(2, [0, 1]), SIZES, fast, updates_per_second=10)
    assert f.pulled_bytes_per_second == pytest.approx((10 + 0.1) * VECTOR)


def test_a_virtual_delay_costs_the_learner_copies():
    for layout, shared in (("bundled", 0), ("split", 2)):
        p = make(3, [0] * 3, layout=layout)
        learner = p.ranks_of("learner")[0]
        plain, delayed = (
            forecast(p, replace(SIZES, virtual_delay=delay), PERIODS, updates_per_second=1.0).ranks[learner]
            for delay in (0, 30)
        )
        assert delayed.private_bytes - plain.private_bytes == (30 + 4 - shared) * VECTOR


def test_optimizer_vectors():
    assert optimizer_vectors("sgd") == 0
    assert optimizer_vectors("sgd", momentum=0.9) == 1
    assert optimizer_vectors("adagrad") == 1
    assert optimizer_vectors("adam") == 2
    assert optimizer_vectors("rmsprop", momentum=0.9) == 3
    assert optimizer_vectors("rmsprop", rmsprop_centered=False) == 1


def test_synchronous_learners_send_gradients_between_nodes_and_nothing_else():
    from hpcrl.config import load
    from hpcrl.launch.sizes import forecast_of

    config = load("tests/mpi/small.toml", ["topology.layout=sampler_learner", "learning.update=allreduce"])
    rank_map = plan(8, [0, 0, 1, 1, 2, 2, 3, 3], **config.rank_map(), cores_per_node=4, gpus_per_node=0)
    found = forecast_of(config, rank_map, updates_per_second=10.0)
    assert found.reduced_bytes_per_second == 10 * 2 * 3 / 4 * 4 * found.num_parameters
    assert {node.sent_bytes_per_second for node in found.nodes} == {found.reduced_bytes_per_second}
    assert (found.pushed_bytes_per_second, found.pulled_bytes_per_second) == (0, 0)
    assert found.steps_per_second == 8 * 10 * 32 / 8


def test_rollouts_are_in_the_memory_of_those_who_learn_from_them_and_nothing_is_replayed():
    p = make(3, [0] * 3, layout="sampler_learner", servers=1, replay=False)
    f = forecast(p, replace(SIZES, rollout_bytes=10**6), PERIODS, updates_per_second=10)
    assert f.replay_bytes == 0
    without = forecast(p, SIZES, PERIODS, updates_per_second=10)
    # and a second replica, which acts
    assert f.ranks[1].private_bytes - without.ranks[1].private_bytes == 10**6 + 3 * VECTOR
    assert f.ranks[0] == without.ranks[0]
