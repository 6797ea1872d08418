"""The rank map at many sizes, and its errors."""

from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hpcrl.errors import TopologyError
from hpcrl.launch.topology import KINDS, Memory, Role, describe, lane_capacity, plan, shard_bounds


def make(world_size, nodes=None, **changes):
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
    return plan(world_size, nodes or [0] * world_size, **{**keys, **changes})


def test_serial_holds_every_role_in_one_rank():
    p = make(1, layout="serial", evaluators=1)
    assert [role.kind for role in p.roles_of(0)] == ["actor", "learner", "parameter_server", "evaluator", "monitor"]
    assert p.ranks[0].threads == 8
    assert p.memories == (Memory((0,), (0,), 0),)


def test_bundles_take_the_remaining_ranks():
    p = make(4)
    assert p.roles_of(0) == (Role("parameter_server", 0), Role("monitor", 0))
    assert p.roles_of(2) == (Role("actor", 1), Role("learner", 1))
    assert p.ranks_of("learner") == p.ranks_of("actor") == (1, 2, 3)
    assert p.num("learner") == 3
    assert p.memories == tuple(Memory((i,), (i,), 0) for i in range(3))
    assert p.memory_of(Role("actor", 2)) == 2
    with pytest.raises(TopologyError):
        p.memory_of(Role("parameter_server", 0))


def test_servers_spread_over_nodes_round_robin():
    p = make(12, [0] * 4 + [1] * 4 + [2] * 4, servers=4)
    assert [p.ranks[rank].node for rank in p.ranks_of("parameter_server")] == [0, 0, 1, 2]


def test_node_numbers_need_not_be_in_rank_order():
    p = make(6, [0, 1, 0, 1, 0, 1], servers=2)
    assert p.ranks_of("parameter_server") == (0, 1)
    assert [rank.node for rank in p.ranks] == [0, 1, 0, 1, 0, 1]


def test_monitor_of_its_own_and_evaluators():
    p = make(6, monitor="own", evaluators=2)
    assert [len(p.roles_of(rank)) for rank in range(4)] == [1, 1, 1, 1]
    assert (p.num("evaluator"), p.num("actor"), p.num("monitor")) == (2, 2, 1)


def test_split_shares_one_memory_per_node():
    p = make(10, [0] * 5 + [1] * 5, layout="split", learners=3, servers=2)
    assert (p.num("learner"), p.num("actor")) == (3, 5)
    assert sorted(learner for memory in p.memories for learner in memory.learners) == [0, 1, 2]
    assert sorted(actor for memory in p.memories for actor in memory.actors) == [0, 1, 2, 3, 4]
    for memory in p.memories:
        for kind, members in (("learner", memory.learners), ("actor", memory.actors)):
            assert {p.ranks[p.ranks_of(kind)[index]].node for index in members} == {memory.node}


def test_split_needs_learner_and_actors_on_the_same_node():
    with pytest.raises(TopologyError, match="node 0 has actors 0-2 but no learner.*topology.learners"):
        make(8, [0] * 4 + [1] * 4, layout="split")
    with pytest.raises(TopologyError, match="node 0 has learners 0 but no actor"):
        make(5, [0] * 2 + [1] * 3, layout="split", learners=2)


def test_learners_get_the_gpus_of_their_node_in_order_and_the_cores_that_others_leave():
    p = make(10, [0] * 5 + [1] * 5, servers=2, gpus_per_node=3, cores_per_node=[13, 5])
    assert [rank.device for rank in p.ranks] == ["cpu", "cuda:0", "cuda:1", "cuda:2", "cuda:0"] * 2
    # On the first node (13 - 1 for the server) / 4, of which one is for the GPU.
    assert [rank.threads for rank in p.ranks] == [1, 2, 2, 2, 2, 1, 1, 1, 1, 1]
    assert make(5, cores_per_node=9).ranks[1].threads == 2
    assert make(4, learner_threads=5).ranks[1].threads == 5
    assert make(4, cores_per_node=2).ranks[1].threads == 1


@pytest.mark.parametrize(
    ("world_size", "changes", "message"),
    [
        (
            4,
            {"bundles": 2},
            (
                "1 server + 2 bundles + 0 evaluators = 3 ranks, but the job has 4: start it with 3 ranks, "
                "or set topology.bundles=0 to use the rest"
            ),
        ),
        (
            3,
            {"bundles": 4},
            (
                "1 server + 4 bundles + 0 evaluators = 5 ranks, but the job has 3: start it with 5 ranks, "
                "or set topology.bundles=0 to use the rest"
            ),
        ),
        (
            2,
            {"servers": 2, "bundles": 1, "monitor": "own"},
            (
                "2 servers + 1 bundle + 0 evaluators + 1 monitor = 4 ranks, but the job has 2: start it with 4 ranks, "
                "or lower the counts"
            ),
        ),
        (
            1,
            {},
            (
                "1 server + 1 bundle + 0 evaluators = 2 ranks at least, but the job has 1: "
                "start it with 2 ranks or more, "
                'or lower the counts, or set topology.layout="serial" to run everything on one rank'
            ),
        ),
        (
            4,
            {"layout": "split", "learners": 2, "actors": 2},
            (
                "1 server + 2 learners + 2 actors + 0 evaluators = 5 ranks, but the job has 4: start it with 5 ranks, "
                "or set topology.actors=0 to use the rest"
            ),
        ),
        (
            2,
            {"layout": "serial"},
            (
                "the serial layout has 1 rank, but the job has 2: start it without mpiexec, "
                'or set topology.layout="bundled"'
            ),
        ),
    ],
)
def test_impossible_counts_show_the_arithmetic(world_size, changes, message):
    with pytest.raises(TopologyError) as caught:
        make(world_size, **changes)
    assert str(caught.value) == message


@given(
    layout=st.sampled_from(["bundled", "split"]),
    ranks_per_node=st.lists(st.integers(1, 8), min_size=1, max_size=4),
    servers=st.integers(1, 4),
    learners=st.integers(1, 4),
    evaluators=st.integers(0, 2),
    monitor=st.sampled_from(["shared", "own"]),
    gpus=st.integers(0, 2),
    global_replay=st.booleans(),
)
def test_any_plan_is_whole(layout, ranks_per_node, servers, learners, evaluators, monitor, gpus, global_replay):
    nodes = [node for node, ranks in enumerate(ranks_per_node) for _ in range(ranks)]
    keys = {"layout": layout, "servers": servers, "evaluators": evaluators, "monitor": monitor}
    keys["global_replay"] = global_replay
    try:
        p = make(len(nodes), nodes, **keys, learners=learners, gpus_per_node=gpus)
    except TopologyError:
        assume(False)
    assert [rank.rank for rank in p.ranks] == list(range(len(nodes)))
    assert all(rank.roles for rank in p.ranks)
    for kind in KINDS:
        assert sorted(role.index for rank in p.ranks for role in rank.roles if role.kind == kind) == list(
            range(p.num(kind))
        )
    assert p.num("parameter_server") == servers
    assert p.num("evaluator") == evaluators
    assert p.num("monitor") == 1
    for kind in ("learner", "actor"):
        for index in range(p.num(kind)):
            memory = p.memories[p.memory_of(Role(kind, index))]
            assert memory.node == (None if global_replay else p.ranks[p.ranks_of(kind)[index]].node)
    assert p.ranks_of("replay_host") == (p.ranks_of("parameter_server") if global_replay else ())
    assert all(rank.device == "cpu" for rank in p.ranks if Role("learner", 0).kind not in {r.kind for r in rank.roles})
    assert describe(p).count("\n") >= len(nodes)


def test_learners_of_a_global_memory_are_on_the_nodes_that_have_gpus():
    """One node with GPUs, whose only rank learns, beside nodes with cores alone."""
    nodes = [0, 1, 1, 1, 2, 2, 2]
    p = make(7, nodes, layout="split", servers=2, gpus_per_node=[2, 0, 0], global_replay=True)
    assert p.ranks_of("learner") == (0,)
    assert [rank.device for rank in p.ranks] == ["cuda:0"] + ["cpu"] * 6
    assert {p.ranks[rank].node for rank in p.ranks_of("parameter_server")} == {1, 2}
    p = make(7, nodes, layout="split", learners=2, gpus_per_node=[0, 2, 0], global_replay=True)
    assert p.ranks_of("learner") == (1, 2)
    assert [p.ranks[rank].device for rank in (1, 2)] == ["cuda:0", "cuda:1"]
    p = make(7, nodes, layout="split", learners=3, gpus_per_node=[1, 0, 0], global_replay=True)
    assert [p.ranks[rank].device for rank in p.ranks_of("learner")] == ["cuda:0", "cpu", "cpu"]


def test_learners_that_must_be_alike_use_gpus_only_where_every_node_has_some():
    p = make(4, [0, 0, 1, 1], layout="sampler_learner", servers=0, gpus_per_node=[2, 0])
    assert {rank.device for rank in p.ranks} == {"cpu"}
    p = make(4, [0, 0, 1, 1], layout="sampler_learner", servers=0, gpus_per_node=[2, 1])
    assert [rank.device for rank in p.ranks] == ["cuda:0"] * 4
    p = make(4, [0, 0, 1, 1], layout="bundled", gpus_per_node=[0, 1])
    assert [rank.device for rank in p.ranks] == ["cpu", "cpu", "cuda:0", "cuda:0"]


def test_published_size_is_planned():
    p = make(131, [rank // 16 for rank in range(131)], servers=31)
    assert p.num("learner") == 100


def test_a_global_memory_has_all_actors_and_learners_wherever_they_are():
    """Node 1 has actors alone: allowed, as experience goes to the servers."""
    nodes = [0, 0, 1, 1]
    with pytest.raises(TopologyError, match="replay.place"):
        make(4, nodes, layout="split", servers=1, learners=1)
    p = make(4, nodes, layout="split", servers=1, learners=1, global_replay=True)
    assert p.memories == (Memory((0,), (0, 1), None),)
    assert p.roles_of(0) == (Role("parameter_server", 0), Role("replay_host", 0), Role("monitor", 0))
    assert "replay memory 0 of all servers: filled by actors 0-1, sampled by learners 0" in describe(p)


def test_describe():
    assert describe(make(7, layout="split", servers=2, learners=1)) == (
        "split layout: 7 ranks on 1 node\n"
        "  rank  node  threads  device   roles\n"
        "     0     0        1  cpu      parameter_server 0, monitor 0\n"
        "     1     0        1  cpu      parameter_server 1\n"
        "     2     0        2  cpu      learner 0\n"
        "     3     0        1  cpu      actor 0\n"
        "     4     0        1  cpu      actor 1\n"
        "     5     0        1  cpu      actor 2\n"
        "     6     0        1  cpu      actor 3\n"
        "replay memory 0 on node 0: filled by actors 0-3, sampled by learners 0"
    )


def test_any_one_trainer_can_be_done_without_but_not_in_lock_step():
    rank_map = make(6, servers=2, monitor="own")
    trainers = rank_map.ranks_of("actor")
    alone = [(rank,) for rank in (*rank_map.ranks_of("parameter_server"), *rank_map.ranks_of("monitor"))]
    assert len(trainers) == 3
    node = tuple(range(6))
    assert rank_map.needed(lock_step=False) == [*alone, trainers, trainers, node]
    assert rank_map.needed(lock_step=True) == [*alone, *((rank,) for rank in trainers), node]


def test_a_node_cannot_be_done_without_where_it_holds_more_than_one_rank():
    assert make(6, nodes=[0, 0, 0, 1, 1, 2]).needed(lock_step=False)[-2:] == [(0, 1, 2), (3, 4)]


def test_lane_capacity_divides_over_all_simulators_of_the_memory():
    memory = Memory((0,), (0, 1, 2), 0)
    assert lane_capacity(memory, capacity_steps=1000, simulators=2, shortest_steps=14) == 166
    with pytest.raises(TopologyError, match="3 actors x 2 simulators = 6 lanes .* >= 84, got 80"):
        lane_capacity(memory, capacity_steps=80, simulators=2, shortest_steps=14)


@given(num_parameters=st.integers(1, 5000), num_servers=st.integers(1, 40))
def test_shards_cover_the_vector_in_aligned_pieces(num_parameters, num_servers):
    if num_servers > -(-num_parameters // 16):
        with pytest.raises(TopologyError, match="lower topology.servers"):
            shard_bounds(num_parameters, num_servers)
        return
    bounds = shard_bounds(num_parameters, num_servers)
    assert len(bounds) == num_servers + 1
    assert (bounds[0], bounds[-1]) == (0, num_parameters)
    assert all(bound % 16 == 0 for bound in bounds[:-1])
    sizes = [end - begin for begin, end in pairwise(bounds)]
    assert min(sizes) > 0
    assert max(sizes) - min(sizes) < 32


def test_synchronous_learners_have_no_servers_and_are_all_needed():
    p = make(4, [0, 0, 1, 1], layout="sampler_learner", servers=0, evaluators=1)
    assert p.synchronous
    assert [role.kind for role in p.roles_of(0)] == ["actor", "learner", "parameter_server", "evaluator", "monitor"]
    assert p.roles_of(3) == (Role("actor", 3), Role("learner", 3))
    assert p.memories == tuple(Memory((i,), (i,), i // 2) for i in range(4))
    assert {(rank,) for rank in range(4)} <= set(p.needed(lock_step=False))
    assert "each update of 4 minibatches" in describe(p)
    with pytest.raises(TopologyError, match="3 bundles .* = 3 ranks, but the job has 4"):
        make(4, layout="sampler_learner", servers=0, bundles=3)


def test_sampler_learners_with_servers_are_bundles():
    sampler, bundled = (make(5, layout=layout, servers=2) for layout in ("sampler_learner", "bundled"))
    assert sampler.ranks == bundled.ranks
    assert not sampler.synchronous


def test_simulators_are_beside_their_learner():
    p = make(7, layout="sampler_learner", simulator_ranks=2)
    assert p.roles_of(1) == (Role("actor", 0), Role("learner", 0))
    assert p.roles_of(6) == (Role("simulator", 3),)
    assert p.crews() == {1: (2, 3), 4: (5, 6)}
    assert "ranks 5-6 step the simulators of learner 1 on rank 4" in describe(p)
    assert p.ranks[1].threads == 1  # 8 cores less 5 for others, for 2 learners
    assert make(5, layout="sampler_learner", servers=2).crews() == {}


def test_a_crew_is_on_one_node_whatever_the_numbering():
    nodes = [0, 1, 0, 1, 0, 1]
    p = make(6, nodes, layout="sampler_learner", servers=0, simulator_ranks=2)
    assert p.crews() == {0: (2, 4), 1: (3, 5)}
    assert p.roles_of(0)[-1].kind == "monitor"
    assert [rank.node for rank in p.ranks] == nodes


@pytest.mark.parametrize(
    ("ranks", "nodes", "changes", "message"),
    [
        (5, None, {}, "are 3 ranks, but the job has 4 ranks for them: start it with 4 or 7 ranks"),
        (2, None, {}, "start it with 4 ranks"),
        (7, None, {"bundles": 1}, "1 server .* 2 simulators .* 1 bundle .* = 4 ranks, but the job has 7"),
        (7, [0, 0, 0, 0, 0, 1, 1], {}, "3 ranks of one node, but node 0 has 4 ranks for them"),
    ],
)
def test_crews_that_do_not_fit(ranks, nodes, changes, message):
    with pytest.raises(TopologyError, match=message):
        make(ranks, nodes, layout="sampler_learner", simulator_ranks=2, **changes)
