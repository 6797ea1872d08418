"""What a start costs: the figures of docs/slurm.md. Needs strace, and root to forget what is cached.

python docs/startup.py [RANKS ...]
"""

import collections
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "tests" / "mpi" / "small.toml"
FORGET = Path("/proc/sys/vm/drop_caches")


def command(ranks: int, run_dir: str) -> list[str]:
    """A run that ends after its first update."""
    keys = ["run.total_updates=1", "checkpoint.replay=none", "log.period_seconds=60.0", f"run.dir={run_dir}"]
    launcher = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks)] if ranks > 1 else []
    keys += [] if launcher else ["topology.layout=serial"]
    return [*launcher, sys.executable, "-m", "hpcrl", "train", str(CONFIG), *(f"--set={key}" for key in keys)]


def seconds(ranks: int, *, cold: bool) -> float:
    """From the command to the end of its run."""
    with tempfile.TemporaryDirectory() as run_dir:
        if cold:
            os.sync()
            FORGET.write_text("3\n")
        began = time.perf_counter()
        subprocess.run(command(ranks, run_dir), check=True, capture_output=True)
        return time.perf_counter() - began


def opened(ranks: int) -> tuple[int, int]:
    """Files that a rank opens, and the names that it tries besides; of the rank that opens most."""
    found, missed = collections.Counter(), collections.Counter()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "strace"
        # One log for each process (-ff); threads of a rank have logs of their own, and open next to nothing.
        trace = ["strace", "-ff", "-qq", "-e", "trace=open,openat", "-o", str(log)]
        subprocess.run([*trace, *command(ranks, f"{directory}/run")], check=True, capture_output=True)
        for path in Path(directory).glob("strace.*"):
            for result in re.findall(r"= (-?\d+)", path.read_text()):
                (missed if result.startswith("-") else found)[path.name] += 1
    most = max(found, key=found.get)
    return found[most], missed[most]


def main(numbers: list[int]) -> None:
    print("| ranks | files opened | not found | cold [s] | warm [s] |\n|---|---|---|---|---|")
    for ranks in numbers:
        files = opened(ranks)
        cold = seconds(ranks, cold=True)
        warm = min(seconds(ranks, cold=False) for _ in range(3))
        print(f"| {ranks} | {files[0]:,} | {files[1]:,} | {cold:.1f} | {warm:.1f} |", flush=True)


if __name__ == "__main__":
    main([int(argument) for argument in sys.argv[1:]] or [1, 3])
