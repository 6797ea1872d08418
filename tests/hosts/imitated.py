"""Several hosts on one machine, and MPI jobs on them: see `switch.py` for how they are made."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from launching import environment, is_open_mpi, mpiexec

HERE = Path(__file__).parent
AGENT = HERE / "agent.sh"
START_SECONDS = 30.0
"""How long a launcher may take until all ranks are there, before Python's first line; it takes one or two."""


class NoHosts(Exception):
    """This machine does not let us imitate hosts; the message says why."""


class Hosts:
    """Imitated hosts with real TCP between them. One job at a time.

    Parameters
    ----------
    names : sequence of str
        Host names. Launchers run on the first.

    Raises
    ------
    NoHosts
        Namespaces are not allowed here.
    """

    def __init__(self, *names: str):
        self.names = names
        command = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
        command += [sys.executable, HERE / "switch.py", *names]
        self._switch = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        numbers = self._switch.stdout.readline().split()
        if not numbers:
            why = self._switch.communicate()[1].strip().rpartition("\n")[2]
            raise NoHosts(f"hosts cannot be imitated here (it takes root, and leave to make namespaces): {why}")
        self._init = self._children(self._switch.pid)[0]
        self._inner = dict(zip(names, numbers, strict=True))
        # The same processes, as they are numbered out here.
        self._outer = dict(zip(names, self._children(self._init), strict=True))
        self._networks = {name: os.readlink(f"/proc/{pid}/ns/net") for name, pid in self._outer.items()}

    @staticmethod
    def _children(pid: int) -> list[int]:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def _tell(self, *command: object) -> None:
        print(*command, file=self._switch.stdin, flush=True)
        assert self._switch.stdout.readline() == "ok\n", self._switch.communicate()[1]

    def limit(self, host: str, bits_per_second: int) -> None:
        """Limit a host's cable in both directions; 0 for no limit."""
        self._tell("rate", host, bits_per_second)

    def cut(self, host: str) -> None:
        """Pull a host's cable out of the switch."""
        self._tell("cut", host)

    def join(self, host: str) -> None:
        """Plug it in again."""
        self._tell("join", host)

    def repair(self) -> None:
        """Plug every cable in and lift every limit."""
        for host in self.names:
            self.join(host)
            self.limit(host, 0)

    def processes(self, host: str) -> list[int]:
        """Ids of all processes that run on a host, lowest first."""
        found = []
        for entry in Path("/proc").iterdir():
            # Processes come and go while we look.
            with contextlib.suppress(OSError, ValueError):
                if os.readlink(entry / "ns" / "net") == self._networks[host] and int(entry.name) != self._outer[host]:
                    found.append(int(entry.name))
        return sorted(found)

    def ranks(self, host: str) -> list[int]:
        """Ids of the ranks on a host, lowest first."""
        python, found = sys.executable.encode(), []
        for pid in self.processes(host):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(python):
                    found.append(pid)
        return found

    @contextlib.contextmanager
    def job(self, placement: Mapping[str, int], arguments: list, **extra: str) -> Iterator[subprocess.Popen]:
        """``python arguments...`` on so many ranks of each host, started on the first. Killed on the way out.

        Launchers now and then fail on a busy machine before any rank is there, or do not get on; then once more. What
        ranks do is never tried again.
        """
        with tempfile.TemporaryDirectory(prefix="job-") as tmp:
            # The numbers of processes come again in the next namespace, and with them names of a launcher's own files.
            command, env = self._command(placement, arguments), self._environment(TMPDIR=tmp, **extra)
            for last in (False, False, True):
                process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
                try:
                    if last or self._has_started(process, sum(placement.values())):
                        yield process
                        return
                finally:
                    self._kill_all()
                    said = process.communicate()
                print(f"{mpiexec()} did not start the ranks, so once more; it said: {said}")

    def _command(self, placement: Mapping[str, int], arguments: list) -> list[str]:
        total, places = sum(placement.values()), ",".join(f"{host}:{n}" for host, n in placement.items())
        enter = ["nsenter", "--target", self._outer[self.names[0]], "--net", "--uts", "--mount", "--ipc"]
        # The process namespace: every rank has a number there, and ends with it.
        enter += [f"--pid=/proc/{self._init}/ns/pid"]
        if is_open_mpi():
            launch = ["--prtemca", "plm_ssh_agent", AGENT, "--map-by", "slot", "--bind-to", "none", "--host", places]
        else:
            launch = ["-launcher", "ssh", "-launcher-exec", AGENT, "-hosts", places]
        return list(map(str, [*enter, "--", mpiexec(), *launch, "-n", total, sys.executable, *arguments]))

    def _environment(self, **extra: str) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        addresses = " ".join(f"{name}={pid}" for name, pid in self._inner.items())
        return environment(PATH=path, HPCRL_TEST_HOSTS=addresses, PYTHONFAULTHANDLER="1", **extra)

    def _has_started(self, launcher: subprocess.Popen, total: int) -> bool:
        """Wait until all ranks are there; False where the launcher ended without any, or has taken too long."""
        deadline, most = time.monotonic() + START_SECONDS, 0
        while time.monotonic() < deadline:
            ended = launcher.poll() is not None
            most = max(most, sum(len(self.ranks(host)) for host in self.names))
            if most == total or ended:
                return most > 0
            time.sleep(0.02)
        return False

    def _kill_all(self, number: int = signal.SIGKILL) -> None:
        for pid in [pid for host in self.names for pid in self.processes(host)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def run_ranks(
        self, placement: Mapping[str, int], arguments: list, *, timeout: float = 120.0, **extra: str
    ) -> subprocess.CompletedProcess:
        """Run a job to its end; output is captured as text. Where it does not end, each rank says where it stands."""
        with self.job(placement, arguments, **extra) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                for pid in [pid for host in self.names for pid in self.ranks(host)]:
                    os.kill(pid, signal.SIGABRT)  # and Python prints its stack
                time.sleep(5)
                self._kill_all()
                out, err = process.communicate()
                raise AssertionError(f"the job did not end in {timeout} s\n{out}\n{err}") from None
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def close(self) -> None:
        """End the hosts and all that runs on them."""
        self._switch.communicate()
