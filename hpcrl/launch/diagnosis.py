"""What ``hpcrl doctor`` found, and what follows from it. Without MPI, so that every judgement can be tested."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpcrl.launch.memory_limits import Limit
from hpcrl.launch.stacks import Library, Setting, Version, known_faults
from hpcrl.launch.threads import Place, crowded

DEFAULT_FLAVOUR = "allocate"
MOST_SKEW_SECONDS = 1.0
LEAST_SHARED_BYTES = 256 * 2**20
"""Docker's /dev/shm has 64 MiB; Pong by four ranks needs about 60 MB of it, and MPI some for itself."""


class WindowTest(NamedTuple):
    """Result of the one-sided self-test for one way of making windows, between two ranks."""

    flavour: str
    where: str
    """``inside a node`` or ``between nodes``"""
    latency_seconds: float
    """of one atomic word"""
    get_bytes_per_second: float
    put_bytes_per_second: float
    needs_target: bool
    """a Get waits until its target calls MPI"""


@dataclass
class Report:
    """What is known so far; a member that was not reached is None or empty."""

    library: Library | None = None
    mpi_version: Version = ()
    launcher: str = "none"
    announced_size: int | None = None
    size: int | None = None
    multiple_threads: bool | None = None
    """MPI may be called from any thread"""
    places: Sequence[Place] = ()
    unresolved: Sequence[str] = ()
    """hosts whose own name has no address"""
    models: Mapping[str, bool] = field(default_factory=dict)
    """window flavour -> whether its memory model is unified"""
    wrong: Sequence[str] = ()
    """results of the self-test that were not what they had to be"""
    windows: Sequence[WindowTest] = ()
    skew_seconds: float | None = None
    """largest difference between the clock of a node and that of rank 0"""
    shared: Mapping[int, Limit] = field(default_factory=dict)
    """node -> free bytes of /dev/shm"""
    memory: Mapping[int, Limit] = field(default_factory=dict)
    """node -> the tightest limit on its memory"""
    transports: Mapping[str, Version] = field(default_factory=dict)
    """communication library that MPI has loaded -> version"""
    gpus: Sequence[str] = ()
    nccl: str = "none"
    settings_made: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


class Finding(NamedTuple):
    """One judgement."""

    fatal: bool
    text: str


def judge(report: Report) -> list[Finding]:
    """Everything that is wrong or worth knowing, the fatal first."""
    findings = [*_of_the_library(report), *_of_the_windows(report), *_of_the_nodes(report)]
    return sorted(findings, key=lambda finding: not finding.fatal)


def verdict(findings: Sequence[Finding]) -> str:
    """The last line of the report."""
    fatal = [finding.text for finding in findings if finding.fatal]
    if fatal:
        return f"fit for hpcrl: no, because {'; and '.join(fatal)}"
    cautions = len(findings)
    kept = "" if not cautions else f" ({cautions} caution{'s' if cautions > 1 else ''} above)"
    return f"fit for hpcrl: yes, because launcher, MPI and windows do what training needs{kept}"


def _of_the_library(report: Report) -> list[Finding]:
    found = []
    if report.library is not None:
        nodes = [place.node for place in report.places] or [0]
        setting = Setting(
            environ=report.environ,
            nodes=len(set(nodes)),
            most_ranks_on_a_node=max(nodes.count(node) for node in set(nodes)),
            libfabric=report.transports.get("libfabric", ()),
        )
        for fault in known_faults(report.library, setting):
            text = f"{report.library} has a known fault: {fault.symptom} ({fault.report}); {fault.remedy}"
            found.append(Finding(fault.fatal, text))
    if report.size is not None and report.announced_size not in (None, report.size):
        found.append(
            Finding(report.size == 1, f"the launcher says {report.announced_size} ranks, and MPI sees {report.size}")
        )
    if report.multiple_threads is False:
        found.append(
            Finding(False, "MPI may not be called from several threads: a stalled rank cannot end the job cleanly")
        )
    return found


def _of_the_windows(report: Report) -> list[Finding]:
    found = [Finding(True, text) for text in report.wrong]
    separate = [flavour for flavour, unified in report.models.items() if not unified]
    if separate:
        others = [flavour for flavour in report.models if flavour not in separate]
        remedy = f'; set server.window_flavour = "{others[0]}"' if others else ", which hpcrl needs"
        found.append(Finding(not others, f"windows by {', '.join(separate)} have no unified memory model{remedy}"))
    for test in report.windows:
        if test.needs_target and test.flavour == DEFAULT_FLAVOUR:
            text = f"one-sided access {test.where} waits until its target calls MPI: servers do that all the time"
            found.append(Finding(False, f"{text}, so training works, but a busy one answers late"))
    return found


def _of_the_nodes(report: Report) -> list[Finding]:
    places = report.places
    found = [Finding(False, f"{text}: give each rank cores of its own, or bind none") for text in crowded(places)]
    found += [
        Finding(False, f"host {host} cannot resolve its own name: check /etc/hosts") for host in report.unresolved
    ]
    for node, limit in report.shared.items():
        ranks = sum(place.node == node for place in places)
        if ranks > 1 and limit.available_bytes < LEAST_SHARED_BYTES:
            text = f"{limit.source} of node {node} has only {limit.available_bytes / 2**20:,.0f} MiB free for windows"
            found.append(Finding(False, f"{text}: enlarge it (docker run --shm-size), and see hpcrl plan"))
    if report.skew_seconds is not None and abs(report.skew_seconds) > MOST_SKEW_SECONDS:
        found.append(
            Finding(False, f"clocks differ by {report.skew_seconds:.1f} s between nodes: times in logs mislead")
        )
    return found
