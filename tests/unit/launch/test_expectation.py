"""What ``hpcrl plan`` says of a job by the cost model."""

import json

import pytest

from hpcrl.analysis.scaling import MEASURED, Cluster, Costs, read_costs
from hpcrl.config import Config, load
from hpcrl.errors import StorageError
from hpcrl.launch.expectation import compute_seconds, expectation
from hpcrl.launch.topology import plan

CLUSTER = Cluster(cores=64, nodes=8)


def lines(overrides=(), ranks=9, **further):
    config = load("configs/pong_gorila.toml", [*overrides])
    rank_map = plan(ranks, [0] * ranks, **config.rank_map(), cores_per_node=64, gpus_per_node=further.pop("gpus", 0))
    return list(expectation(config, rank_map, 1_687_206, CLUSTER, **further))


def test_a_job_of_natures_network_has_a_rate_a_limit_and_a_right_number_of_servers():
    rate, servers = lines()
    assert "updates/s; limited by" in rate
    assert servers.startswith("of 9 ranks ")


def test_what_was_never_measured_must_be_said():
    assert lines(["network.kind=dqn_net"]) == []
    assert lines(gpus=1) == []
    assert "5 ms of computing" in lines(["network.kind=dqn_net"], compute=5e-3)[0]


def test_more_to_learn_from_each_step_takes_longer():
    nature = Config()
    assert compute_seconds(nature) == pytest.approx(
        compute_seconds(nature.model_copy(update={"learning": nature.learning.model_copy(update={"batch_size": 64})}))
        / 2
    )


def test_costs_of_another_machine_come_from_its_figures(tmp_path):
    rows = [{"name": f"scale.cost.{name}", "value": 2 * value} for name, value in vars(MEASURED).items()]
    (tmp_path / "rows.json").write_text(json.dumps([{"name": "scale.full.1+1", "value": 1.0}, *rows]))
    assert read_costs(tmp_path / "rows.json") == Costs(**{name: 2 * value for name, value in vars(MEASURED).items()})
    (tmp_path / "rows.json").write_text(json.dumps(rows[1:]))
    with pytest.raises(StorageError, match="expected the figures of hpcrl bench scale"):
        read_costs(tmp_path / "rows.json")
