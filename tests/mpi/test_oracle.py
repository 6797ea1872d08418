"""The distributed DQN equals a serial one, parameter by parameter, and does not depend on the number of servers."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from launching import train
from serial_dqn import train as train_serially

from hpcrl.config import load
from hpcrl.launch.resume import load_shard
from hpcrl.storage.checkpoint import latest

CONFIG = Path(__file__).with_name("oracle.toml")


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """Parameters after 200 updates in lock step, by number of servers."""

    @cache
    def run(servers: int) -> np.ndarray:
        run_dir = tmp_path_factory.mktemp(f"servers-{servers}")
        done = train(servers + 2, CONFIG, run_dir, f"topology.servers={servers}")
        assert done.returncode == 0, done.stderr
        checkpoint, skipped = latest(run_dir)
        assert not skipped
        assert checkpoint.global_update == 200
        assert sum(owner.startswith("parameter_server-") for owner in checkpoint.owners) == servers
        size = checkpoint.attributes["shard_bounds"][-1]
        return load_shard(checkpoint, 0, size, size)["params"]

    return run


def test_one_server_one_learner_one_actor_equal_a_serial_dqn(distributed):
    expected = train_serially(load(CONFIG))
    params = distributed(1)
    assert params.shape == expected.shape
    np.testing.assert_allclose(params, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.one_mpi
def test_one_process_whose_roles_share_the_parameters_equals_it_too(tmp_path):
    done = train(0, CONFIG, tmp_path, "topology.layout=serial", "run.lock_step=false")
    assert done.returncode == 0, done.stderr
    checkpoint, _ = latest(tmp_path)
    size = checkpoint.attributes["shard_bounds"][-1]
    params = load_shard(checkpoint, 0, size, size)["params"]
    np.testing.assert_allclose(params, train_serially(load(CONFIG)), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "servers", [pytest.param(2, marks=pytest.mark.one_mpi), 3, pytest.param(7, marks=pytest.mark.long)]
)
def test_any_number_of_servers_is_bit_equal_to_one(distributed, servers):
    np.testing.assert_array_equal(distributed(servers), distributed(1))
