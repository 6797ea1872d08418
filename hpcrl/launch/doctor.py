"""``hpcrl doctor``: is this MPI, as it was launched here, fit for hpcrl?

Every step is collective and under a time limit of its own, so that a stack that hangs is reported like one that fails.
"""

import contextlib
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from hpcrl.errors import EXIT_CONFIG, EXIT_FINISHED, EXIT_STALLED, HpcrlError, MachineError, TransportError
from hpcrl.launch import mpi
from hpcrl.launch.diagnosis import Finding, Report, judge
from hpcrl.launch.doctor_report import show
from hpcrl.launch.launcher import SIZE_VARIABLES, announced_size, launcher_rank
from hpcrl.launch.memory_limits import memory_limits, shared_memory_limit
from hpcrl.launch.stacks import Version, identify

FLAVOURS = ("allocate", "create")
SPEAK_FIRST_SECONDS = 3.0
"""How much longer than rank 0 another rank waits before it reports a stalled step itself."""


class Steps:
    """Steps of the examination; one that takes longer than ``limit_seconds`` ends the process with a report.

    Parameters
    ----------
    report : Report
        What is known so far.
    limit_seconds : float
    """

    def __init__(self, report: Report, limit_seconds: float):
        self.report, self.limit = report, limit_seconds
        self.is_first = launcher_rank(os.environ) in (None, "0")
        self.abort = None
        """ends all ranks, once MPI is up"""

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Do what is inside, within the limit; a failure that nobody foresaw ends the process as well."""
        patience = self.limit + (0 if self.is_first else SPEAK_FIRST_SECONDS)
        why = f"the step '{name}' did not end within {self.limit:g} s on some rank"
        timer = threading.Timer(patience, self._end, [why, EXIT_STALLED])
        timer.daemon = True
        timer.start()
        try:
            yield
        except HpcrlError:
            raise
        except Exception as error:
            timer.cancel()
            if not self.is_first:
                time.sleep(SPEAK_FIRST_SECONDS)
            self._end(f"the step '{name}' failed: {error}", EXIT_CONFIG)
        finally:
            timer.cancel()

    def conclude(self, findings: list[Finding]) -> None:
        """Let the first rank show the report, and no other end before, as a launcher then may end that one too."""
        if self.is_first:
            show(self.report, findings)
        else:
            time.sleep(SPEAK_FIRST_SECONDS)

    def _end(self, why: str, code: int) -> None:
        if self.is_first:
            show(self.report, [Finding(True, why), *judge(self.report)])
        else:
            os.write(2, f"hpcrl doctor: rank {launcher_rank(os.environ)}: {why}\n".encode())
        sys.stdout.flush()
        time.sleep(0.5)  # the launcher drops what is still on its way when it hears of an abort
        if self.abort is not None:
            threading.Thread(target=self.abort, args=(code,), daemon=True).start()
            time.sleep(2)
        os._exit(code)


def main(step_seconds: float) -> int:
    """Examine, print one report on rank 0, and return the exit code of this rank."""
    report = Report(environ=dict(os.environ))
    if announced := announced_size(os.environ):
        variable, report.announced_size = announced
        report.launcher = f"{SIZE_VARIABLES[variable]} ({variable}={report.announced_size})"
    steps = Steps(report, step_seconds)
    try:
        with steps.step("MPI_Init"):
            mpi.start()
    except MachineError as error:
        steps.conclude([Finding(True, str(error))])
        return EXIT_CONFIG
    report.settings_made = mpi.settings_made
    return _examine(report, steps)


def _examine(report: Report, steps: Steps) -> int:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    steps.abort = comm.Abort
    report.library, report.mpi_version = identify(MPI.Get_library_version()), MPI.Get_version()
    report.size, report.multiple_threads = comm.size, MPI.Query_thread() == MPI.THREAD_MULTIPLE
    report.transports = loaded_transports()
    if comm.size == 1 and (report.announced_size or 1) > 1:  # as many jobs of one rank: the first speaks for all
        steps.conclude(judge(report))
        return EXIT_CONFIG
    steps.is_first = comm.rank == 0
    _gather(comm, report, steps)
    _test_windows(comm, report, steps)
    findings = judge(report) if comm.rank == 0 else None
    with steps.step("the verdict"):
        fit = comm.bcast(not any(finding.fatal for finding in findings) if comm.rank == 0 else None)
    if comm.rank == 0:
        show(report, findings)
    return EXIT_FINISHED if fit else EXIT_CONFIG


def _gather(comm, report: Report, steps: Steps) -> None:
    """What every rank says of itself and its node."""
    from hpcrl.launch.nodes import places

    with steps.step("the node map"):
        report.places = places(comm)
    with steps.step("what every rank sees of its node"):
        mine = (unresolved_host(), shared_memory_limit(), min(memory_limits(os.environ), default=None), gpu_models())
        found = comm.gather(mine)
    if comm.rank == 0:
        report.unresolved = sorted({host for host, *_ in found if host})
        for place, (_, shared, memory, _) in zip(report.places, found, strict=True):
            if shared is not None:
                report.shared.setdefault(place.node, shared)
            if memory is not None:
                report.memory.setdefault(place.node, memory)
        report.gpus = found[0][3]
        report.nccl = nccl_version()


def _test_windows(comm, report: Report, steps: Steps) -> None:
    from hpcrl.launch import selftest

    report.wrong, report.windows = [], []
    for flavour in FLAVOURS:
        with steps.step(f"one-sided results, windows by {flavour}"):
            try:
                report.wrong += selftest.wrong_results(comm, flavour)
                report.models[flavour] = True
            except TransportError:
                report.models[flavour] = False
                continue
        for where, partner in selftest.partners(report.places).items():
            with steps.step(f"one-sided speed {where}, windows by {flavour}"):
                test = selftest.measure(comm, flavour, where, partner)
            report.windows += [test] if test is not None else []
    with steps.step("clock skew"):
        report.skew_seconds = selftest.clock_skew(comm, report.places)


def unresolved_host() -> str:
    """This host's name where it has no address; else empty."""
    host = socket.gethostname()
    try:
        socket.getaddrinfo(host, None)
    except OSError:
        return host
    return ""


def loaded_transports() -> dict[str, Version]:
    """Versions of UCX and libfabric as this process has loaded them."""
    import ctypes

    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return {}
    found = {}
    with contextlib.suppress(OSError, AttributeError):
        if path := re.search(r"/\S*libucp\.so\S*", maps):
            numbers = [ctypes.c_uint() for _ in range(3)]
            ctypes.CDLL(path[0]).ucp_get_version(*map(ctypes.byref, numbers))
            found["UCX"] = tuple(number.value for number in numbers)
    with contextlib.suppress(OSError, AttributeError):
        if path := re.search(r"/\S*libfabric\.so\S*", maps):
            version = ctypes.CDLL(path[0]).fi_version
            version.restype = ctypes.c_uint32
            found["libfabric"] = divmod(version(), 2**16)
    return found


def gpu_models() -> list[str]:
    """Names of this node's GPUs, as the driver lists them."""
    found = []
    for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        with contextlib.suppress(OSError):
            found += re.findall(r"Model:\s*(.+)", file.read_text())
    return found


def nccl_version() -> str:
    """Version of NCCL beside torch; ``none`` with a torch for CPUs."""
    installed = {name.lower(): d.version for d in metadata.distributions() if (name := d.metadata["Name"])}
    return next((version for name, version in installed.items() if name.startswith("nvidia-nccl")), "none")
