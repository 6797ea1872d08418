"""Batch scripts: how much of which partition a configuration gets, and what is written."""

import shutil
import subprocess
from pathlib import Path

import pytest

from hpcrl.config import load
from hpcrl.errors import ConfigError, TopologyError
from hpcrl.launch.cluster import Cluster, read_cluster
from hpcrl.launch.sbatch import choose, main, seconds_of

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "configs"
CLUSTER = read_cluster(ROOT / "jobs" / "cluster.toml")


def chosen(config, *overrides, cluster=CLUSTER, nodes=2, seconds=3600, partition=None, gb_per_rank=0.1):
    def memory_of(rank_map):
        on = [rank.node for rank in rank_map.ranks]
        return 1e9 * gb_per_rank * max(on.count(node) for node in on)

    arguments = {"nodes": nodes, "seconds": seconds, "partition": partition, "memory_of": memory_of}
    return choose(load(CONFIGS / config, overrides), cluster, **arguments)


def test_gorila_gets_every_core_of_nodes_without_gpus():
    found = chosen("pong_gorila.toml")
    assert (found.partition, found.ranks, found.ranks_per_node, found.cores_per_rank) == ("cpu", 128, 64, 1)
    assert (found.gpus_per_node, found.memory_gb) == (0, 8)  # 64 ranks of 0.1 GB, and a quarter more
    assert found.reasons[0] == "partition cpu: nothing would gain from GPUs"


def test_synchronous_learners_get_a_gpu_each_and_their_share_of_the_cores():
    found = chosen("am_ppo.toml")
    assert (found.partition, found.ranks, found.cores_per_rank, found.gpus_per_node) == ("gpu", 8, 8, 4)


def test_learners_have_their_simulator_ranks_beside_them():
    found = chosen("am_ppo.toml", "topology.simulator_ranks=2")
    assert (found.ranks, found.ranks_per_node, found.gpus_per_node) == (24, 12, 4)
    found = chosen("am_ppo.toml", "topology.simulator_ranks=2", "topology.bundles=2", nodes=1)
    assert (found.ranks, found.ranks_per_node) == (6, 6)
    found = chosen("am_ppo.toml", "topology.simulator_ranks=2", partition="cpu")
    assert found.ranks_per_node == 63


def test_a_configuration_that_names_every_count_gets_so_many_ranks():
    found = chosen("apex.toml", nodes=6)
    assert (found.ranks, found.ranks_per_node) == (366, 61)
    assert "not gpu: 6 x 32 cores, got a configuration of 366 ranks" in found.reasons[0]
    assert chosen("catch_serial.toml", nodes=1).ranks == 1
    with pytest.raises(TopologyError, match="expected at most a node for each of the 1 rank .* got --nodes 2"):
        chosen("catch_serial.toml")


def test_fewer_ranks_where_more_do_not_fit_into_memory():
    found = chosen("pong_gorila.toml", gb_per_rank=10.0)
    assert found.ranks_per_node == 20  # 20 x 12.5 GB of 250 GB
    assert (found.cores_per_rank, found.memory_gb) == (3, 250)
    assert "20 ranks on a node instead of 64: no more fit into its 250 GB" in found.reasons
    with pytest.raises(ConfigError, match="expected nodes of 375 GB, for 1 rank on each, got 250 GB"):
        chosen("pong_gorila.toml", gb_per_rank=300.0)


def test_partitions_that_will_not_do_are_told():
    with pytest.raises(ConfigError, match=r"cpu: at most 24 h, got --time 25 h; gpu: at most 8 nodes .* --nodes 9"):
        chosen("pong_gorila.toml", nodes=9, seconds=90000)
    with pytest.raises(ConfigError, match="--partition: expected cpu or gpu, got 'fat'"):
        chosen("pong_gorila.toml", partition="fat")
    assert chosen("pong_gorila.toml", partition="gpu").gpus_per_node == 4
    only = Cluster(partitions={"gpu": CLUSTER.partitions["gpu"]})
    assert chosen("pong_gorila.toml", cluster=only).partition == "gpu"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("1:30", 90), ("4:00:00", 14400), ("2-0", 172800), ("1-12:30", 131400), ("1-0:0:5", 86405)],
)
def test_time_limits_are_read_as_sbatch_does(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "4h", "1:2:3:4", "-5"])
def test_other_time_limits_are_refused(text):
    with pytest.raises(ConfigError, match="--time: expected"):
        seconds_of(text)


def test_every_fault_of_a_profile_is_told(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text('mpi = ""\n[partitions.cpu]\ncores = 0\ngpu = 1\n')
    with pytest.raises(ConfigError) as raised:
        read_cluster(path)
    message = str(raised.value)
    assert "4 fault(s)" in message
    for part in ("mpi: expected", "partitions.cpu.cores: expected", "partitions.cpu.memory_gb: is missing"):
        assert part in message
    assert "partitions.cpu.gpu: is no key of a cluster's profile" in message
    with pytest.raises(ConfigError, match=r"jobs/cluster.toml is an example"):
        read_cluster(tmp_path / "absent.toml")


def write(tmp_path, config="catch_bundled.toml", **changes):
    arguments = {"nodes": 1, "time_limit": "10", "cluster_file": ROOT / "jobs" / "cluster.toml", "partition": None}
    arguments |= {"games": None, "seeds": None, "output": tmp_path / "job.sh"}
    overrides = [f"run.dir={tmp_path}/runs/it's", "run.total_updates=20"]
    told = main(CONFIGS / config, overrides, **{**arguments, **changes})
    return told, (tmp_path / "job.sh").read_text()


def test_the_script_says_what_it_asks_for_and_why(tmp_path):
    told, text = write(tmp_path)
    for reason in told[:-1]:
        assert f"# - {reason}\n" in text
    for option in ("nodes=1", "ntasks=64", "time=10", "requeue", "open-mode=append", "signal=B:USR1@60"):
        assert f"#SBATCH --{option}\n" in text
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=False).returncode == 0
    if shutil.which("shellcheck"):
        done = subprocess.run(["shellcheck", tmp_path / "job.sh"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
    with pytest.raises(ConfigError, match="exists"):
        write(tmp_path)


def test_the_script_of_an_array_trains_each_member_in_a_directory_of_its_own(tmp_path):
    games = tmp_path / "games"
    games.write_text("catch\nCartPole-v1\n")
    told, text = write(tmp_path, games=games, seeds="3,5")
    assert told[-5:-1] == ["0: catch, seed 3", "1: catch, seed 5", "2: CartPole-v1, seed 3", "3: CartPole-v1, seed 5"]
    assert "#SBATCH --array=0-3\n" in text
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "bin" / "srun").chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2", "SLURM_SUBMIT_DIR": "/"}
    environment |= {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n1"}
    command = ["bash", tmp_path / "job.sh"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)
    assert "member 2: CartPole-v1, seed 3\n" in done.stdout, done.stderr
    assert "--set env.id=CartPole-v1 --set run.seed=3" in done.stdout
    assert f"--run-dir {tmp_path}/runs/it's/CartPole-v1/seed-3\n" in done.stdout
