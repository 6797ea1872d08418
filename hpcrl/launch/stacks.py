"""What is known about MPI libraries: which ones are bad, and which settings of theirs help. Data; nothing is imported.

Faults that hpcrl avoids by construction (derived datatypes, Accumulate of vectors, more than 128 requests in flight to
one rank) are not listed.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

Version = tuple[int, ...]


class Library(NamedTuple):
    """An MPI library."""

    vendor: str
    """``MPICH``, ``Open MPI``, ``Intel MPI``, ``Cray MPICH`` or ``MVAPICH``; else the first line that it says"""
    version: Version
    """empty where it could not be read"""

    def __str__(self) -> str:
        return " ".join([self.vendor, ".".join(map(str, self.version))]).strip()


VENDORS = {
    "Open MPI": r"Open MPI v(?P<version>[\d.]+)",
    "Intel MPI": r"Intel\(R\) MPI Library (?P<version>[\d.]+)",
    "Cray MPICH": r"CRAY MPICH version\s*:?\s*(?P<version>[\d.]+)",
    "MVAPICH": r"MVAPICH\d?\s+Version\s*:\s*(?P<version>[\d.]+)",
    "MPICH": r"MPICH Version:\s*(?P<version>[\d.]+)",
}
"""How each library names itself, those that also say MPICH before it."""


def identify(library_version: str) -> Library:
    """The library behind what ``MPI.Get_library_version()`` returned."""
    for vendor, pattern in VENDORS.items():
        if found := re.search(pattern, library_version, re.IGNORECASE):
            return Library(vendor, tuple(int(part) for part in found["version"].split(".") if part))
    return Library(" ".join(library_version.split("\n")[0].strip("\0 ").split())[:80], ())


# Bad stacks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """Where a library runs: what decides whether one of its faults matters."""

    environ: Mapping[str, str] = field(default_factory=dict)
    nodes: int = 1
    most_ranks_on_a_node: int = 1
    libfabric: Version = ()
    """empty where none is loaded"""


class KnownFault(NamedTuple):
    """A fault of a range of versions."""

    vendor: str
    first: Version
    """first version with the fault"""
    fixed: Version
    """first version without it; empty: none yet"""
    fatal: bool
    """hpcrl cannot be trusted on it; otherwise a caution"""
    symptom: str
    remedy: str
    report: str
    matters: Callable[[Setting], bool] = lambda setting: True

    def found_in(self, library: Library, setting: Setting) -> bool:
        """Whether this library, where it runs, has the fault."""
        within = self.first <= library.version and (not self.fixed or library.version < self.fixed)
        return library.vendor == self.vendor and bool(library.version) and within and self.matters(setting)


def _is_on(name: str) -> Callable[[Setting], bool]:
    return lambda setting: setting.environ.get(name, "").lower() in ("1", "true", "yes", "on", "enabled")


def _spread(setting: Setting) -> bool:
    return setting.nodes > 1 and setting.most_ranks_on_a_node > 1


def _names(variables: tuple[str, ...], word: str) -> Callable[[Setting], bool]:
    """Whether one of the variables asks for the component ``word`` (``^a,b`` asks for all but a and b)."""

    def asked(setting: Setting) -> bool:
        values = [setting.environ.get(name, "") for name in variables]
        return any(word in value.split(",") for value in values if not value.startswith("^"))

    return asked


KNOWN_FAULTS = (
    KnownFault(
        "Open MPI",
        (0,),
        (5, 0),
        True,
        "one-sided operations are unusable with threads (osc/pt2pt) or hang between nodes (UCX)",
        "use Open MPI 5.0.7 or newer",
        "ompi#5200, ompi#14173",
    ),
    KnownFault(
        "Open MPI",
        (5, 0, 0),
        (5, 0, 4),
        False,
        "mpi4py leaves out its own tests of this version's fault tolerance",
        "use Open MPI 5.0.7 or newer",
        "mpi4py's test suite",
    ),
    KnownFault(
        "Open MPI",
        (5, 0, 5),
        (5, 0, 7),
        True,
        "shared memory (btl sm) hangs with more than 64 ranks on a node",
        "set OMPI_MCA_btl=self,tcp, use UCX, or Open MPI 5.0.7 or newer",
        "ompi#12979, ompi#12816",
        lambda setting: setting.most_ranks_on_a_node > 64 and "sm" in setting.environ.get("OMPI_MCA_btl", "sm"),
    ),
    KnownFault(
        "Open MPI",
        (5, 0),
        (),
        False,
        "windows by MPI_Win_allocate can crash over OFI (osc/rdma) with two or more ranks on a node",
        'if the self-test or a run crashes, set server.window_flavour = "create"',
        "ompi#14203",
        _spread,
    ),
    KnownFault(
        "Open MPI",
        (0,),
        (),
        True,
        "non-blocking accumulates of osc/ucx freeze",
        "unset OMPI_MCA_osc_ucx_enable_nonblocking_accumulate",
        "ompi#13064",
        _is_on("OMPI_MCA_osc_ucx_enable_nonblocking_accumulate"),
    ),
    KnownFault(
        "Open MPI",
        (0,),
        (),
        False,
        "MPI_Win_flush of osc/ucx now and then hangs inside a node",
        "set OMPI_MCA_osc=^ucx where there is no InfiniBand",
        "ompi#10559",
        _names(("OMPI_MCA_osc",), "ucx"),
    ),
    KnownFault(
        "Open MPI",
        (5, 0),
        (),
        False,
        "ranks that wait for a window's lock keep the core that its holder needs, where ranks share cores (osc/rdma)",
        "unset OMPI_MCA_mpi_yield_when_idle",
        "measured: see hpcrl.launch.stacks.recommended",
        lambda setting: setting.environ.get("OMPI_MCA_mpi_yield_when_idle", "1").lower() in ("0", "false", "no", "off"),
    ),
    KnownFault(
        "Open MPI",
        (0,),
        (),
        False,
        "MPI_Win_lock_all crashes with an old libfabric",
        "use libfabric 1.12 or newer",
        "ompi#9123",
        lambda setting: () < setting.libfabric < (1, 12),
    ),
    KnownFault(
        "MPICH",
        (0,),
        (4, 1),
        True,
        "windows by MPI_Win_allocate are broken over UCX 1.13 and newer",
        "use MPICH 5.0.2 or newer",
        "mpich#6110, mpich#6140",
    ),
    KnownFault(
        "MPICH",
        (4, 2),
        (4, 3),
        False,
        "MPI_Win_shared_query of shared windows is faulty, which the split layout needs",
        "use MPICH 5.0.2 or newer",
        "mpi4py's test suite",
    ),
    KnownFault(
        "MPICH",
        (5, 0, 0),
        (5, 0, 2),
        False,
        "one-sided put and get over OFI are not thread-safe, and non-contiguous requests return early",
        "use MPICH 5.0.2 or newer",
        "MPICH 5.0.2's changes",
    ),
    KnownFault(
        "MPICH",
        (0,),
        (),
        False,
        "making a window hung with a new libfabric for Slingshot",
        "if the self-test stalls, load the libfabric that the MPI was built with",
        "mpich#7830",
        _names(("FI_PROVIDER", "MPIR_CVAR_OFI_USE_PROVIDER"), "cxi"),
    ),
    KnownFault(
        "Intel MPI",
        (2021, 14),
        (2021, 17),
        True,
        "windows are faulty",
        "use Intel MPI 2021.13 or 2021.17",
        "mpi4py's test suite",
    ),
)
"""Faults of released libraries that hpcrl's windows meet, with where they are reported."""


def known_faults(library: Library, setting: Setting) -> list[KnownFault]:
    """What is known to be wrong with this library where it runs."""
    return [fault for fault in KNOWN_FAULTS if fault.found_in(library, setting)]


# Settings -----------------------------------------------------------------------------------------------------------


def recommended(library: Library, *, has_infiniband: bool) -> dict[str, str]:
    """Environment variables that help hpcrl with this library, to be set before MPI starts.

    Only what measurement shows to help. Open MPI without its UCX component for windows, which cannot work without RDMA
    hardware and says so in a line per rank and window, starts in half the time with 8 ranks on 2 cores and trains 1.8
    times as fast with windows by create. Its ranks yield their core while they wait: it does so by itself only where
    its launcher sees more ranks than slots, and a waiting rank else keeps the core that the holder of a window's lock
    (one for each rank; every atomic operation takes it) needs to give it back: 8 ranks on 2 cores, as 3 hosts that were
    given their slots, opened a window and added to one counter 3,000 times in 11 s, and in 0.5 s if they yield. With a
    core for each rank it makes no difference. Not here, as they changed nothing or for the worse:
    ``MPIR_CVAR_POLLS_BEFORE_YIELD`` and ``MPIR_CVAR_CH4_PROGRESS_THROTTLE``.
    """
    if library.vendor != "Open MPI":
        return {}
    without_ucx = {} if has_infiniband else {"OMPI_MCA_osc": "^ucx"}
    return {**without_ucx, "OMPI_MCA_mpi_yield_when_idle": "true"}
