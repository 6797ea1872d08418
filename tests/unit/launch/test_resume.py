"""A checkpoint of some servers restored by any other number of them, bit for bit."""

import itertools

import numpy as np
import pytest

from hpcrl.errors import StorageError
from hpcrl.launch.resume import load_shard
from hpcrl.launch.topology import shard_bounds
from hpcrl.storage import checkpoint as checkpoints

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
        checkpoints.write_state(checkpoints.state_path(directory, owner), "parameter_server", shard, {})
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
