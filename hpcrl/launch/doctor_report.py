"""The report of ``hpcrl doctor`` as text."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table

from hpcrl.launch.diagnosis import Finding, Report, verdict
from hpcrl.launch.topology import ranges

MOST_RANKS = 64
"""Ranks listed one by one; of more, each node is one row."""
LEAST_WIDTH = 110


def show(report: Report, findings: Sequence[Finding], console: Console | None = None) -> None:
    """Print everything known, the findings, and the verdict as the last line."""
    if console is None:
        # What goes through a launcher has no width of its own.
        console = Console(highlight=False, width=max(Console().width, LEAST_WIDTH), height=25)
    console.print(_stack(report))
    if report.places:
        console.print(_ranks(report))
    if report.windows:
        console.print(_windows(report))
    for finding in findings:
        mark = "[bold red]fault  [/]" if finding.fatal else "[yellow]caution[/]"
        console.print(f"{mark} ", end="")
        console.print(finding.text, markup=False, soft_wrap=True)
    fit = not any(finding.fatal for finding in findings)
    console.print(verdict(findings), style="bold green" if fit else "bold red", markup=False, soft_wrap=True)


def _table(title: str) -> Table:
    return Table(title=f"\n{title}", title_justify="left", title_style="bold", box=None, pad_edge=False)


def _stack(report: Report) -> Table:
    table = _table("hpcrl doctor")
    table.show_header = False
    table.add_column(style="cyan", no_wrap=True)
    table.add_column()
    if report.library is not None:
        standard = ".".join(map(str, report.mpi_version))
        table.add_row("library", f"{report.library}, MPI {standard}")
        loaded = ", ".join(f"{name} {'.'.join(map(str, version))}" for name, version in report.transports.items())
        table.add_row("transports", loaded or "none that can be read")
    table.add_row("launcher", report.launcher)
    if report.size is not None:
        said = "" if report.announced_size is None else f", and the launcher says {report.announced_size}"
        table.add_row("ranks", f"MPI sees {report.size}{said}")
        table.add_row("threads", "MPI_THREAD_MULTIPLE" if report.multiple_threads else "less than MPI_THREAD_MULTIPLE")
    for flavour, unified in report.models.items():
        table.add_row(f"windows by {flavour}", f"{'unified' if unified else 'separate'} memory model")
    if report.skew_seconds is not None:
        nodes = {place.node for place in report.places}
        skew = f"differ by {1e3 * report.skew_seconds:.3g} ms" if len(nodes) > 1 else "one node, one clock"
        table.add_row("clocks", skew)
    table.add_row("GPUs here", f"{', '.join(report.gpus) or 'none'}; NCCL {report.nccl}")
    made = ", ".join(f"{name}={value}" for name, value in report.settings_made.items())
    table.add_row("set by hpcrl", made or "nothing")
    return table


def _ranks(report: Report) -> Table:
    table = _table("ranks")
    for name in ("ranks", "node", "host", "may run on", "given", "GPUs", "/dev/shm free", "memory available"):
        table.add_column(name, overflow="fold")
    rows = list(enumerate(report.places))
    if len(rows) > MOST_RANKS:
        rows = [next(group) for _, group in groupby(sorted(rows, key=lambda row: row[1].node), lambda row: row[1].node)]
    shown: set[int] = set()
    for rank, place in rows:
        ranks = [r for r, other in enumerate(report.places) if other.node == place.node]
        of_node = ["", ""]
        if place.node not in shown:
            shared, memory = report.shared.get(place.node), report.memory.get(place.node)
            of_node = [
                f"{shared.available_bytes / 1e9:.3g} GB" if shared else "none",
                f"{memory.available_bytes / 1e9:.3g} GB ({memory.source})" if memory else "unknown",
            ]
        shown.add(place.node)
        table.add_row(
            str(rank) if len(report.places) <= MOST_RANKS else ranges(ranks),
            str(place.node),
            place.host,
            f"cores {ranges(sorted(place.affinity))} of {place.machine_cores}",
            str(place.cores_given),
            str(place.gpus),
            *of_node,
        )
    return table


def _windows(report: Report) -> Table:
    table = _table("one-sided access from rank 0")
    for name in ("windows by", "path", "one word", "Get 8 MiB", "Put 8 MiB", "target must call MPI"):
        table.add_column(name)
    for test in report.windows:
        table.add_row(
            test.flavour,
            test.where,
            f"{1e6 * test.latency_seconds:.3g} us",
            f"{test.get_bytes_per_second / 1e9:.3g} GB/s",
            f"{test.put_bytes_per_second / 1e9:.3g} GB/s",
            "yes" if test.needs_target else "no",
        )
    return table
