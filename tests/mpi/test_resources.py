"""What ranks cost: memory as it was forecast, no core burnt while idle, many ranks on few cores."""

import os
import signal
import time
from pathlib import Path

import pytest
from launching import is_open_mpi, rank_pids, train, training_job

from hpcrl.config import load
from hpcrl.launch.sizes import forecast_of
from hpcrl.launch.topology import plan
from hpcrl.storage.runlog import read_runlog

pytestmark = pytest.mark.one_mpi

HERE = Path(__file__).parent
CONFIGS = HERE.parents[1] / "configs"
IDLE_SECONDS = 3.0


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def environ(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def pids_by_rank(job) -> dict[int, int]:
    names = ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
    found = {pid: environ(pid) for pid in rank_pids(job)}
    return {int(next(env[name] for name in names if name in env)): pid for pid, env in found.items()}


def memory(pid: int) -> dict[str, int]:
    """Bytes of a process: its own, code and files, and its share of windows."""
    numbers = {}
    for file in ("status", "smaps_rollup"):
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.endswith(" kB"):
                name, number, _ = line.split()
                numbers[name.rstrip(":")] = int(number) * 1024
    return {"own": numbers["RssAnon"], "code": numbers["RssFile"], "windows": numbers["Pss_Shmem"]}


def compare_with_forecast(job, config: Path, overrides: list[str], ranks: int, but: str = "") -> None:
    """Each rank's forecast is within 15 % of what it holds, and so is the node's; ``but`` is a role left out."""
    loaded = load(config, overrides)
    rank_map = plan(ranks, [0] * ranks, **loaded.rank_map(), cores_per_node=2, gpus_per_node=0)
    forecast = forecast_of(loaded, rank_map)
    pids = pids_by_rank(job)
    held = [memory(pids[rank]) for rank in range(ranks)]
    pairs = {
        f"rank {rank} ({', '.join(map(str, rank_map.roles_of(rank)))})": (
            forecast.ranks[rank].private_bytes,
            parts["own"] + parts["code"],
        )
        for rank, parts in enumerate(held)
    }
    # Not the sum of proportional sizes: code is shared with whatever else runs on the machine.
    everything = sum(parts["own"] + parts["windows"] for parts in held) + max(parts["code"] for parts in held)
    pairs["the node"] = forecast.nodes[0].memory_bytes, everything
    for what, (expected, found) in pairs.items():
        print(f"{what}: forecast {expected / 1e6:.0f} MB, holds {found / 1e6:.0f} MB")
    wrong = {what for what, (expected, found) in pairs.items() if abs(expected / found - 1) >= 0.15}
    assert {what for what in wrong if not but or but not in what} == set()


FULL = ["replay.learning_starts_steps=400", "checkpoint.period_seconds=2", "log.display=plain", "log.period_seconds=1"]


@pytest.mark.long
@pytest.mark.skipif(is_open_mpi(), reason="ranks hold the same under both MPIs; run with MPICH")
def test_memory_of_each_kind_of_rank_on_atari_is_as_forecast(tmp_path):
    overrides = ["topology.monitor=own", "topology.evaluators=1", "topology.learners=1", "replay.capacity_steps=2000"]
    overrides += ["run.evaluation_period_updates=10", *FULL]
    with training_job(5, CONFIGS / "pong_split.toml", tmp_path / "run", *overrides) as job:
        time.sleep(7)  # until the replay is full, and a checkpoint has been written
        compare_with_forecast(job, CONFIGS / "pong_split.toml", overrides, 5)


@pytest.mark.long
@pytest.mark.skipif(is_open_mpi(), reason="ranks hold the same under both MPIs; run with MPICH")
@pytest.mark.parametrize("simulators", [16, 64])
def test_memory_of_simulator_ranks_is_as_forecast(tmp_path, simulators):
    overrides = ["topology.simulator_ranks=2", f"env.simulators={simulators}", "policy.horizon_steps=16"]
    overrides += ["checkpoint.period_seconds=4", "log.display=plain", "log.period_seconds=1"]
    with training_job(3, CONFIGS / "pong_ppo.toml", tmp_path / "run", *overrides) as job:
        time.sleep(10)  # until a checkpoint has been written
        # The learner's is too high, by a fifth to a third: its network needs less for a pass than Nature's.
        compare_with_forecast(job, CONFIGS / "pong_ppo.toml", overrides, 3, but="learner")


@pytest.mark.long  # it measures, and needs the machine for itself
def test_memory_of_bundles_is_as_forecast_and_a_server_without_work_leaves_its_core_alone(tmp_path):
    overrides = ["replay.capacity_steps=2000", "run.total_frames=0", "run.heartbeat_seconds=100", *FULL]
    with training_job(2, CONFIGS / "catch_bundled.toml", tmp_path / "run", *overrides) as job:
        time.sleep(4)
        compare_with_forecast(job, CONFIGS / "catch_bundled.toml", overrides, 2)
        server, bundle = (pids_by_rank(job)[rank] for rank in (0, 1))
        os.kill(bundle, signal.SIGSTOP)
        time.sleep(0.5)
        before = cpu_seconds(server)
        time.sleep(IDLE_SECONDS)
        burnt = cpu_seconds(server) - before
        os.kill(bundle, signal.SIGCONT)
    print(f"an idle server takes {burnt / IDLE_SECONDS:.1%} of a core")
    assert burnt < 0.1 * IDLE_SECONDS


def training_seconds(ranks: int, run_dir: Path) -> float:
    """Time of 700 updates by one bundle or several, without the start of Python."""
    done = train(ranks, HERE / "small.toml", run_dir, "run.total_updates=700")
    assert done.returncode == 0, done.stderr
    return float(read_runlog(run_dir, "progress")["wall_seconds"][-1])


@pytest.mark.long
def test_many_ranks_on_two_cores_do_the_work_of_two_in_less_than_three_times_their_time(tmp_path):
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(everywhere)[:2]))  # what is started from here inherits it
    ratios = []
    try:
        while len(ratios) < 2 and min(ratios, default=3) >= 3:  # once more, where the machine was busy with other work
            few, many = (training_seconds(ranks, tmp_path / f"{len(ratios)}-{ranks}") for ranks in (2, 8))
            ratios.append(many / few)
            print(f"{few:.2f} s with 2 ranks, {many:.2f} s with 8")
    finally:
        os.sched_setaffinity(0, everywhere)
    assert min(ratios) < 3
