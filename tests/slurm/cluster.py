"""A real Slurm of four nodes on this machine: a controller, and one daemon for each node."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
NODES = 4
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "setpriv", "unshare")
NODE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A node is a process namespace: what runs there ends with its daemon."""
CONFIG = """\
ClusterName=hpcrl
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SwitchType=switch/none
ReturnToService=2
PropagateResourceLimits=NONE
SlurmdTimeout=20
KillWait=30
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=2,requeue_delay=1
NodeName=n[1-{nodes}] NodeHostName={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=4 RealMemory=8000
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=30 MaxTime=INFINITE State=UP
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


class NoSlurm(Exception):
    """Slurm cannot run here; the message says why."""


class Cluster:
    """A Slurm cluster with the partitions ``main`` and ``urgent``, whose jobs take the place of the former's.

    Parameters
    ----------
    directory : Path
        For its configuration, state and logs.

    Raises
    ------
    NoSlurm
        It is not installed, or not allowed.
    """

    def __init__(self, directory: Path):
        path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
        missing = [name for name in NEEDED if shutil.which(name, path=path) is None]
        if missing:
            raise NoSlurm(f"{', '.join(missing)} not found: install Slurm (Debian, Ubuntu: slurm-wlm)")
        if os.geteuid() != 0:
            raise NoSlurm("several of Slurm's nodes on one machine take root")
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "state").mkdir()
        (directory / "slurm.conf").write_text(
            CONFIG.format(
                host=socket.gethostname().partition(".")[0],
                directory=directory,
                nodes=NODES,
                port=(ports := free_ports(NODES + 1)),
                first=ports + 1,
                last=ports + NODES,
            )
        )
        self.environment = {**os.environ, "PATH": path, "SLURM_CONF": str(directory / "slurm.conf")}
        self._daemons: dict[str, subprocess.Popen] = {}
        self._start("slurmctld", "slurmctld", "-D")
        for node in range(1, NODES + 1):
            (directory / f"spool-n{node}").mkdir()
            self.start_node(f"n{node}")
        deadline = time.monotonic() + 60
        while self.client("sinfo", "--noheader", "--states=idle", "--format=%D", "-p", "main").strip() != str(NODES):
            if time.monotonic() > deadline or self._daemons["slurmctld"].poll() is not None:
                self.close()
                raise NoSlurm(f"its nodes do not come up: {(directory / 'slurmctld.log').read_text()[-500:]}")
            time.sleep(0.2)

    def _start(self, name: str, *command: str) -> None:
        with open(self.directory / f"{name}.out", "ab") as out:
            self._daemons[name] = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], env=self.environment, stdout=out, stderr=out
            )

    def start_node(self, name: str) -> None:
        """Start the daemon of a node; it ends with this process at the latest."""
        self._start(name, *NODE, "slurmd", "-D", "-N", name)

    def fail_node(self, name: str) -> None:
        """Kill everything that runs on a node."""
        self._daemons[name].kill()
        self._daemons[name].wait()

    def client(self, *command: object, check: bool = True, **extra: str) -> str:
        """Run one of Slurm's commands, from the root of the repository, and return what it prints."""
        done = subprocess.run(
            list(map(str, command)),
            cwd=ROOT,
            env={**self.environment, **extra},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if check and done.returncode:
            raise RuntimeError(f"{command}: {done.stderr}")
        return done.stdout

    def close(self) -> None:
        """End all daemons, and with them all jobs."""
        for process in self._daemons.values():
            process.kill()
            process.wait()


def free_ports(count: int) -> int:
    """The first of so many ports side by side that nobody listens at now."""
    for first in range(17000, 30000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(sockets):
                each.bind(("127.0.0.1", first + number))
            return first
        except OSError:
            continue
        finally:
            for each in sockets:
                each.close()
    raise NoSlurm("no free ports")
