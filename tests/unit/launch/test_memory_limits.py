"""Every limit on a node's memory, read from files and variables as Linux and Slurm write them."""

from dataclasses import replace

import pytest

from hpcrl.errors import EXIT_CONFIG, MachineError
from hpcrl.launch.forecast import NodeForecast
from hpcrl.launch.memory_limits import Limit, check_memory, held_bytes, memory_limits, shared_memory_limit

MEBI, GIGA = 2**20, 10**9
NODE = NodeForecast(
    node=3,
    ranks=4,
    memory_bytes=10 * GIGA,
    shared_bytes=2 * GIGA,
    sent_bytes_per_second=0,
    received_bytes_per_second=0,
)


def limits(tmp_path, files, **environ):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return {limit.source.split()[0]: limit.available_bytes for limit in memory_limits(environ, root=tmp_path)}


def test_the_machine(tmp_path):
    assert limits(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable:    7 kB\n"}) == {"MemAvailable": 7 * 1024}


def test_nothing_known(tmp_path):
    assert limits(tmp_path, {}) == {}


def test_cgroup_v2_counts_what_is_used_but_not_the_page_cache(tmp_path):
    files = {
        "proc/self/cgroup": "0::/job/step\n",
        "sys/fs/cgroup/job/memory.max": "1000\n",
        "sys/fs/cgroup/job/memory.current": "700\n",
        "sys/fs/cgroup/job/memory.stat": "anon 500\ninactive_file 150\n",
        "sys/fs/cgroup/job/step/memory.max": "max\n",
    }
    assert limits(tmp_path, files) == {"memory.max": 1000 - 700 + 150}


def test_cgroup_v2_as_a_container_sees_it(tmp_path):
    """Its own group is mounted at the top, while /proc shows the path outside."""
    files = {
        "proc/self/cgroup": "0::/../outside\n",
        "sys/fs/cgroup/memory.max": "5000\n",
        "sys/fs/cgroup/memory.current": "1000\n",
    }
    assert limits(tmp_path, files) == {"memory.max": 4000}


def test_cgroup_v1(tmp_path):
    files = {
        "proc/self/cgroup": "9:cpu,cpuacct:/x\n4:memory:/slurm/job_7\n0::/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": "3000\n",
        "sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes": "1000\n",
        "sys/fs/cgroup/memory/slurm/job_7/memory.stat": "total_inactive_file 5\n",
    }
    assert limits(tmp_path, files) == {"memory.limit_in_bytes": 2005}


def test_slurm(tmp_path):
    assert limits(tmp_path, {}, SLURM_MEM_PER_NODE="512") == {"SLURM_MEM_PER_NODE": 512 * MEBI}
    (limit,) = memory_limits({"SLURM_MEM_PER_NODE": "512"}, 12 * MEBI, tmp_path)
    assert limit.available_bytes == 500 * MEBI
    assert limits(tmp_path, {}, SLURM_MEM_PER_NODE="0") == {}  # --mem=0 asks for all of the node
    assert limits(tmp_path, {}, SLURM_MEM_PER_CPU="100", SLURM_CPUS_ON_NODE="4") == {"SLURM_MEM_PER_CPU": 400 * MEBI}


def test_this_machine_has_something():
    assert all(limit.available_bytes > 0 for limit in memory_limits({}))
    assert held_bytes() > MEBI
    assert shared_memory_limit("/no/such/place") is None
    assert shared_memory_limit("/tmp").available_bytes > 0


def test_what_fits_passes():
    check_memory(NODE, "n3", 0, [Limit(11 * GIGA, "a")], Limit(3 * GIGA, "/dev/shm"))
    check_memory(NODE, "n3", 0, [], None)
    check_memory(NODE, "n3", 2 * GIGA, [Limit(9 * GIGA, "a")], None)  # 2 GB of the 10 are held already


def test_a_rank_alone_on_its_node_needs_no_dev_shm():
    check_memory(replace(NODE, ranks=1), "n3", 0, [], Limit(1, "/dev/shm"))


def test_needed_and_available_bytes_of_the_tightest_limit_are_told():
    with pytest.raises(MachineError) as caught:
        check_memory(NODE, "n3", 0, [Limit(9 * GIGA, "loose"), Limit(8 * GIGA, "SLURM_MEM")], Limit(GIGA, "/dev/shm"))
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_CONFIG
    assert message.startswith("node 3 (n3) needs")
    assert "10 GB (10,000,000,000 bytes) of memory for 4 ranks" in message
    assert "8 GB (8,000,000,000 bytes) are available (SLURM_MEM)" in message
    assert "2 GB (2,000,000,000 bytes) in /dev/shm" in message
    assert "1 GB (1,000,000,000 bytes) are free there" in message
    assert "--shm-size" in message
    assert "loose" not in message
