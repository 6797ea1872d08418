"""A real Slurm of four nodes on this machine: a controller, and one daemon for each node; two say they have GPUs."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
NODES = 4
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "setpriv", "unshare", "nsenter")
NAMESPACE = ("setpriv", "--pdeathsig", "KILL", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""All daemons and jobs are in a process namespace that ends with us."""
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
GresTypes=gpu
FirstJobId={first_job}
NodeName=n[1-2] NodeHostName={host} NodeAddr=127.0.0.1 Port=[{first}-{second}] CPUs=20 RealMemory=8000 Gres=gpu:2
NodeName=n[3-4] NodeHostName={host} NodeAddr=127.0.0.1 Port=[{third}-{last}] CPUs=20 RealMemory=8000
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
                # MPI's ranks meet in a file named after the job: not one that another cluster's job here has, too.
                first_job=1000 + os.getpid() % 30000 * 1000,
                port=(ports := free_ports(NODES + 1)),
                **dict(zip(("first", "second", "third", "last"), range(ports + 1, ports + 1 + NODES), strict=True)),
            )
        )
        for number in range(2):
            (directory / f"gpu{number}").touch()
        (directory / "gres.conf").write_text(f"NodeName=n[1-2] Name=gpu File={directory}/gpu[0-1]\n")
        self.environment = {**os.environ, "PATH": path, "SLURM_CONF": str(directory / "slurm.conf")}
        self._namespace = subprocess.Popen(
            [*NAMESPACE, "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE
        )
        if not self._namespace.stdout.readline():
            raise NoSlurm("process namespaces are not allowed here")
        pid = self._namespace.pid
        self._init = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        self._start("slurmctld", "slurmctld", "-D")
        for node in range(1, NODES + 1):
            (directory / f"spool-n{node}").mkdir()
            self.start_node(f"n{node}")
        deadline = time.monotonic() + 60
        while self.client(
            "sinfo", "--noheader", "--states=idle", "--format=%D", "-p", "main", check=False
        ).strip() != str(NODES):
            if time.monotonic() > deadline:
                self.close()
                raise NoSlurm(f"its nodes do not come up: {(directory / 'slurmctld.log').read_text()[-500:]}")
            time.sleep(0.2)

    def _start(self, name: str, *command: str) -> None:
        enter = ["nsenter", "--target", self._init, "--pid", "--mount", *command]
        with open(self.directory / f"{name}.out", "ab") as out:
            subprocess.Popen(enter, env=self.environment, stdout=out, stderr=out)

    def start_node(self, name: str) -> None:
        """Start the daemon of a node."""
        self._start(name, "slurmd", "-D", "-N", name)

    def fail_node(self, name: str) -> None:
        """Kill the daemon of a node, and the batch script and the tasks there."""
        self._kill(
            lambda environment, command: (
                f"SLURMD_NODENAME={name}".encode() in environment or command.endswith(f"-N\0{name}\0".encode())
            )
        )

    def kill_ranks(self, job: str) -> None:
        """Kill the ranks of a job, but not its batch script."""
        self._kill(
            lambda environment, command: (
                f"SLURM_JOB_ID={job}".encode() in environment
                and any(variable.startswith(b"PMI_RANK=") for variable in environment)
            )
        )

    def _kill(self, chosen: Callable[[list[bytes], bytes], bool]) -> None:
        """Kill the processes of this cluster for whose environment and command line ``chosen`` is true."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):  # processes come and go; most entries are none
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes()
                here = f"SLURM_CONF={self.environment['SLURM_CONF']}".encode() in environment
                if here and chosen(environment, command):
                    os.kill(int(entry.name), signal.SIGKILL)

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
        """End all daemons and jobs."""
        self._namespace.kill()
        self._namespace.wait()


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
