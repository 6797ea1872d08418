"""What ranks cost: memory as it was forecast, no core burnt while idle, many ranks on few cores."""

import os
import signal
import time
from pathlib import Path

from launching import rank_pids, train, training_job

from hpcrl.storage.runlog import read_runlog

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


def test_a_server_whose_bundles_have_stopped_leaves_its_core_alone(tmp_path):
    with training_job(2, HERE / "small.toml", tmp_path / "run", "run.heartbeat_seconds=100") as job:
        server, bundle = (pids_by_rank(job)[rank] for rank in (0, 1))
        os.kill(bundle, signal.SIGSTOP)
        time.sleep(0.5)
        before = cpu_seconds(server)
        time.sleep(IDLE_SECONDS)
        burnt = cpu_seconds(server) - before
        os.kill(bundle, signal.SIGCONT)
    assert burnt < 0.1 * IDLE_SECONDS


def test_many_ranks_on_two_cores_do_the_work_of_two_in_less_than_three_times_their_time(tmp_path):
    """The same number of updates by one bundle and by seven; training time, without the start of Python."""
    cores = set(sorted(os.sched_getaffinity(0))[:2])
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # what is started from here inherits it
    try:
        seconds = []
        for ranks in (2, 8):
            done = train(ranks, HERE / "small.toml", tmp_path / str(ranks), "run.total_updates=700")
            assert done.returncode == 0, done.stderr
            seconds.append(float(read_runlog(tmp_path / str(ranks), "progress")["wall_seconds"][-1]))
    finally:
        os.sched_setaffinity(0, everywhere)
    assert seconds[1] < 3 * seconds[0]
