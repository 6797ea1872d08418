"""What a cluster offers: partitions with their nodes, cores, memory, GPUs and time, from a small TOML file."""

import os
import tomllib
from pathlib import Path

from pydantic import Field, ValidationError

from hpcrl.config.base import Float, Int, Section
from hpcrl.config.faults import expected
from hpcrl.errors import ConfigError


class Partition(Section):
    """``[partitions.NAME]``: nodes that are alike."""

    cores: Int = Field(ge=1, description="cores of a node")
    memory_gb: Float = Field(gt=0, description="memory of a node that jobs may use [1e9 bytes]")
    gpus: Int = Field(0, ge=0, description="GPUs of a node")
    nodes: Int = Field(1, ge=1, description="most nodes of one job")
    hours: Float = Field(24.0, gt=0, description="longest time limit of a job")
    options: list[str] = Field([], description="further options of sbatch, say --account=…")


class Cluster(Section):
    """The whole file."""

    partitions: dict[str, Partition] = Field(min_length=1)
    mpi: str = Field("pmi2", min_length=1, description="what srun --mpi is given: pmi2 for MPICH, pmix for Open MPI")
    setup: list[str] = Field([], description="shell commands that each job begins with, say module load …")


def read_cluster(path: str | os.PathLike) -> Cluster:
    """Read a cluster's profile.

    Raises
    ------
    ConfigError
        It cannot be read, or holds faults; all of them are listed.
    """
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"{path}: expected the profile of your cluster, got: {error.strerror}; jobs/cluster.toml is an example"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML, got: {error}") from error
    try:
        return Cluster(**raw)
    except ValidationError as error:
        details = error.errors()
        faults = [f"{'.'.join(map(str, detail['loc']))}: {_fault(detail)}" for detail in details]
        raise ConfigError("\n  ".join([f"{path}: {len(faults)} fault(s):", *faults])) from error


def _fault(detail) -> str:
    match detail["type"]:
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return "is no key of a cluster's profile"
    return expected(detail)
