"""Latency of pulls while checkpoints are written: ``mpiexec -n 2 python -m hpcrl.bench._pulls RECORDS SECONDS ROUNDS``.

Rank 0 serves a vector as large as Nature DQN's and publishes it all the time; rank 1 pulls it. By turns, nothing is
saved; the server writes its state, over and over, in a thread; and the bundle that pulls writes its replay so. Prints
``{"quiet": [seconds, ...], "server": [seconds, ...], "bundle": [seconds, ...]}``.
"""

import itertools
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from mpi4py import MPI

from hpcrl.bench._frames import Replay, pong_frames
from hpcrl.bench._jobs import MARK
from hpcrl.storage.statefile import write_state
from hpcrl.transport.parameters import ShardedVector

SIZE = 1_687_206
"""Parameters of the Nature network with six actions."""
PUBLISH_SECONDS, PULL_SECONDS = 0.01, 0.005


class Saver:
    """Writes a file again and again, in a thread, between `start` and `stop`."""

    def __init__(self, write: Callable[[Path], None], directory: Path):
        self._write, self._path = write, directory / "state.h5"
        self._over = threading.Event()

    def start(self) -> None:
        self._over.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            self._write(self._path)
            self._path.unlink()


def publishing(vector: ShardedVector, values: np.ndarray, versions: Iterator[int], seconds: float) -> None:
    """Publish new versions for so long."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        vector.publish(values, next(versions))
        time.sleep(PUBLISH_SECONDS)


def pulling(vector: ShardedVector, out: np.ndarray, seconds: float) -> list[float]:
    """Pull for so long; the seconds of each pull that brought a new version."""
    versions, taken, end = np.full(1, -1, np.int64), [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.perf_counter()
        if vector.pull(out, versions):
            taken.append(time.perf_counter() - begin)
        time.sleep(PULL_SECONDS)
    return taken


def main() -> None:
    """Measure, and print it on rank 1."""
    records, seconds, rounds = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    comm = MPI.COMM_WORLD
    vector = ShardedVector(comm, name="parameters", owners=[0], bounds=[0, SIZE], readers=[1])
    values, versions = np.zeros(SIZE, np.float32), itertools.count()
    with tempfile.TemporaryDirectory(prefix="hpcrl-bench-") as tmp:
        if comm.rank == 0:
            state = {name: values.copy() for name in ("params", "target", "moment_1", "moment_2")}
            saver = Saver(lambda path: write_state(path, "parameter_server", state, {}), Path(tmp))
        else:
            replay = Replay(records, lanes=4)
            replay.fill(pong_frames())
            saver = Saver(lambda path: replay.cut().write(path), Path(tmp))
        saves = {"quiet": None, "server": 0, "bundle": 1}
        taken: dict[str, list[float]] = {phase: [] for phase in saves}
        for _ in range(rounds):
            for phase, who in saves.items():
                comm.Barrier()
                if comm.rank == who:
                    saver.start()
                if comm.rank == 0:
                    publishing(vector, values, versions, seconds)
                else:
                    taken[phase] += pulling(vector, values, seconds)
                if comm.rank == who:
                    saver.stop()
    if comm.rank == 1:
        print(MARK + json.dumps(taken), flush=True)
    vector.free()


if __name__ == "__main__":
    main()
