"""A checkpoint of some servers restored by any other number of them, bit for bit."""

import itertools

import numpy as np
import pytest

from hpcrl.config import from_dict
from hpcrl.errors import StorageError
from hpcrl.launch.agents import newest_checkpoint
from hpcrl.launch.resume import (
    check_same_problem,
    find_checkpoint,
    identity,
    is_exact,
    keeps_moments,
    load_shard,
    what_changed,
)
from hpcrl.launch.topology import plan, shard_bounds
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage.statefile import write_state

VECTORS = ("params", "target", "optimizer/exp_avg", "optimizer/exp_avg_sq")


def whole_state(size):
    rng = np.random.default_rng(0)
    vectors = {name: rng.normal(size=size).astype(np.float32) for name in VECTORS}
    return vectors | {
        "version": np.int64(41),
        "target_version": np.int64(40),
        "optimizer/step": np.array(41, np.float32),
    }


def cut(state, begin, end):
    return {name: value[begin:end] if np.ndim(value) else value for name, value in state.items()}


def write(run_dir, update, shards):
    directory = checkpoints.begin(run_dir, update)
    owners = [f"parameter_server-{i}" for i in range(len(shards))]
    bounds = [0, *np.cumsum([len(shard["params"]) for shard in shards]).tolist()]
    for owner, shard in zip(owners, shards, strict=True):
        write_state(checkpoints.state_path(directory, owner), "parameter_server", shard, {})
    return checkpoints.finish(directory, owners, [], {"total_frames": 4 * update, "shard_bounds": bounds})


def load(checkpoint, size, servers):
    bounds = shard_bounds(size, servers)
    return [load_shard(checkpoint, begin, end, size) for begin, end in itertools.pairwise(bounds)]


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, strict=True, err_msg=name)


@pytest.mark.parametrize("servers", [(3, 1, 2), (1, 3, 1), (2, 3, 2, 5), (3, 3)])
def test_state_passes_through_any_numbers_of_servers(tmp_path, servers):
    size = 103
    state = whole_state(size)
    shards = [cut(state, begin, end) for begin, end in itertools.pairwise(shard_bounds(size, servers[0]))]
    for update, number in enumerate(servers[1:], start=1):
        shards = load(write(tmp_path, update, shards), size, number)
        expected = [cut(state, begin, end) for begin, end in itertools.pairwise(shard_bounds(size, number))]
        for shard, part in zip(shards, expected, strict=True):
            assert_same(shard, part)


def test_more_than_ten_shards_come_in_the_order_of_their_numbers(tmp_path):
    size = 16 * 12
    state = whole_state(size)
    shards = [cut(state, begin, end) for begin, end in itertools.pairwise(shard_bounds(size, 12))]
    assert_same(load_shard(write(tmp_path, 1, shards), 0, size, size), state)


def test_what_is_loaded_may_be_written_to_and_shares_nothing(tmp_path):
    checkpoint = write(tmp_path, 1, [whole_state(64)])
    first, second = load_shard(checkpoint, 0, 32, 64), load_shard(checkpoint, 0, 32, 64)
    first["params"][:] = 0
    assert second["params"].any()


def test_single_numbers_are_those_of_the_shard_that_begins_the_piece(tmp_path):
    state = whole_state(96)
    shards = [cut(state, begin, begin + 32) | {"version": np.int64(begin)} for begin in (0, 32, 64)]
    checkpoint = write(tmp_path, 1, shards)
    assert [int(load_shard(checkpoint, begin, 96, 96)["version"]) for begin in (0, 31, 32, 80)] == [0, 0, 32, 64]


@pytest.mark.parametrize("total", [63, 65, 1000])
def test_another_network_is_refused(tmp_path, total):
    checkpoint = write(tmp_path, 1, [whole_state(64)])
    with pytest.raises(StorageError, match=f"holds 64 parameters, but this network has {total:,}.* another run.dir"):
        load_shard(checkpoint, 0, total, total)


def job(ranks=3, **changes):
    """Configuration and rank map of a job on catch."""
    raw = {
        "run": {"total_updates": 10},
        "env": {"id": "catch", "simulators": 2},
        "network": {"kind": "mlp", "hidden": [8]},
        "learning": {"optimizer": "adam", "learning_rate": 1e-3},
    }
    for dotted, value in changes.items():
        section, key = dotted.split("__")
        raw.setdefault(section, {})[key] = value
    config = from_dict(raw)
    topology = config.rank_map()
    return config, plan(ranks, [0] * ranks, **topology, cores_per_node=4, gpus_per_node=0)


def written_by(run_dir, config, rank_map, owners=("replay-0",), update=5):
    directory = checkpoints.begin(run_dir, update)
    for owner in owners:
        kind = owner.rpartition("-")[0]
        write_state(checkpoints.state_path(directory, owner), kind, {"some": np.zeros(1)}, {})
    attributes = {"total_frames": 20, **identity(config, rank_map)}
    return checkpoints.finish(directory, owners, [], attributes)


def test_the_same_job_changes_nothing(tmp_path):
    checkpoint = written_by(tmp_path, *job())
    check_same_problem(checkpoint, *job())
    assert what_changed(checkpoint, *job()) == []
    without = written_by(tmp_path, *job(), owners=["monitor-0"])
    (line,) = what_changed(without, *job())
    assert "no replay: learning goes on when each memory holds 5,000 steps again" in line
    assert keeps_moments(checkpoint, job()[0])


def test_what_changed_is_said_key_by_key_and_in_one_line_for_the_job(tmp_path):
    checkpoint = written_by(tmp_path, *job())
    now = job(5, learning__learning_rate=5e-4, topology__servers=2, topology__evaluators=1, env__simulators=3)
    check_same_problem(checkpoint, *now)
    assert what_changed(checkpoint, *now) == [
        "this job is another than the one that wrote it: ranks 3 -> 5, servers 1 -> 2, evaluators 0 -> 1",
        "changed: topology.servers = 2, was 1",
        "changed: topology.evaluators = 1, was 0",
        "changed: env.simulators = 3, was 2",
        "changed: learning.learning_rate = 0.0005, was 0.001",
        "changed: learning.learning_rate_final = 0.0005, was 0.001",
    ]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"network__hidden": [9]}, r"network.hidden: \[8\] there, \[9\] here"),
        ({"env__kwargs": {"rows": 12}}, r"observation: \[1, 10, 5\] there, \[1, 12, 5\] here"),
        ({"env__stack": 2}, r"observation: \[1, 10, 5\] there, \[2, 10, 5\] here"),
        ({"env__id": "CartPole-v1"}, r'dtype: "uint8" there, "float32" here; actions: 3 there, 2 here'),
        ({"network__dueling": True}, "network.dueling: false there, true here"),
    ],
)
def test_what_cannot_change_is_an_error_that_names_it(changes, why, tmp_path):
    checkpoint = written_by(tmp_path, *job())
    with pytest.raises(StorageError, match=rf"another network or environment .*{why}.* another run.dir"):
        check_same_problem(checkpoint, *job(**changes))


@pytest.mark.parametrize(
    ("then", "now", "kept"),
    [
        ({}, {"learning__learning_rate": 1.0}, True),
        ({}, {"learning__optimizer": "adagrad"}, False),
        ({"learning__optimizer": "rmsprop"}, {"learning__optimizer": "rmsprop", "learning__momentum": 0.9}, False),
        (
            {"learning__optimizer": "sgd", "learning__momentum": 0.5},
            {"learning__optimizer": "sgd", "learning__momentum": 0.9},
            True,
        ),
    ],
)
def test_moments_go_on_unless_another_optimizer_needs_others(then, now, kept, tmp_path):
    checkpoint = written_by(tmp_path, *job(**then))
    config, rank_map = job(**now)
    assert keeps_moments(checkpoint, config) == kept
    assert any("moments begin anew" in line for line in what_changed(checkpoint, config, rank_map)) != kept


@pytest.mark.parametrize(
    ("then", "now", "owners", "exact"),
    [
        ({"topology__layout": "serial"}, {"topology__layout": "serial"}, ["replay-0"], True),
        ({"topology__layout": "serial"}, {"topology__layout": "serial"}, ["monitor-0"], False),
        ({"topology__layout": "serial"}, {"topology__layout": "serial", "env__simulators": 1}, ["replay-0"], False),
        ({}, {"topology__layout": "serial"}, ["replay-0"], False),
        ({}, {}, ["replay-0"], False),
    ],
)
def test_a_run_goes_on_exactly_only_in_one_rank_with_its_replay(then, now, owners, exact, tmp_path):
    def sized(keys):
        return job(1 if "topology__layout" in keys else 3, **keys)

    checkpoint = written_by(tmp_path, *sized(then), owners=owners)
    assert is_exact(checkpoint, *sized(now)) == exact


def test_a_run_whose_checkpoints_are_all_of_an_older_format_is_refused_with_what_to_do(tmp_path):
    config, rank_map = job(run__dir=tmp_path)
    assert find_checkpoint(config, rank_map) == (None, [])
    older = written_by(tmp_path, config, rank_map)
    assert find_checkpoint(config, rank_map) == (older, [])
    manifest = older.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"version": 2', '"version": 1'))
    found = "expected 'manifest' version 2, found version 1, written by hpcrl"
    with pytest.raises(StorageError, match=f"(?s)none that can be used; move them away .*{found}"):
        find_checkpoint(config, rank_map)
    (tmp_path / "config.toml").write_text("")
    with pytest.raises(StorageError, match=f"(?s)no checkpoint that can be used.*{found}"):
        newest_checkpoint(tmp_path)
    newer = written_by(tmp_path, config, rank_map, update=6)
    assert find_checkpoint(config, rank_map)[0] == newer
