"""``hpcrl bench checkpoint``: writing a replay memory, over what its compressor alone does; and pulls meanwhile.

A memory of a million frames (fewer where there is no room) is written to a checkpoint and read back, as it was and
divided over other lanes. The bound is the compressor alone, on chunks of the same frames that lie ready in memory, in
the same process and by turns. Then a job of a server and a bundle tells whether pulls keep their latency.
"""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from hpcrl import bench
from hpcrl.bench import _jobs
from hpcrl.bench._frames import N_STEP, NOISE, STACK, Replay, pong_frames
from hpcrl.launch.replay_shares import MemoryShare, share_replay
from hpcrl.replay.lanes import Lanes
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage import codec
from hpcrl.storage.replay import Shape

RECORDS, LANES = 1_000_000, 4
DIVIDED = Shape(num_lanes=10, capacity=RECORDS // 10, stack=STACK, n_step=N_STEP)
MEMORY_SHARE = 0.6
"""Of the memory that is free, the most that the replay takes."""
PAIRS = 7
SAMPLED_CHUNKS = 800
LIMIT_SECONDS = 120.0
"""The job that pulls may take this long."""
PULLS = 100_000, 2.0, 3
"""Records of the replay that is saved beside the pulls, seconds of each phase, and rounds of all phases."""


def run(json_path: Path | None = None, *, quick: bool = False) -> None:
    """Measure, print the table, and write it to ``json_path``; takes about three minutes, ``quick`` (a small
    memory, short pulls) seconds.

    Raises
    ------
    ConfigError
        There is no mpiexec.
    HpcrlError
        The job that pulls failed.
    StorageError
        The temporary directory or ``json_path`` cannot be written.
    """
    with _jobs.measurement("hpcrl bench checkpoint", json_path) as job:
        records, pulled = (20_000, (10_000, 0.3, 1)) if quick else (RECORDS, PULLS)
        pulls = pull_latencies(job.launcher, job.directory / "pulls.out", *pulled)
        replay = Replay(affordable(records), LANES)
        replay.fill(pong_frames())
        rows, notes = storage_rows(replay, job.directory, job.console)
        job.rows.extend(rows + pull_rows(pulls))
        job.notes.extend(notes)


def affordable(records: int) -> int:
    """As many records as are wanted, or as fit into the memory that is free."""
    text = Path("/proc/meminfo").read_text()
    available = 1024 * next(int(line.split()[1]) for line in text.splitlines() if line.startswith("MemAvailable"))
    return min(records, int(MEMORY_SHARE * available / 7072))


def storage_rows(replay: Replay, run_dir: Path, console: Console) -> tuple[list[bench.Row], list[str]]:
    """Rows of writing and reading."""
    replay_bytes = replay.num_lanes * replay.capacity * replay.dtype.itemsize
    samples, peaks = [], []
    for pair in range(PAIRS):
        begin = time.perf_counter()
        cut = replay.cut()
        held = time.perf_counter() - begin
        directory = checkpoints.begin(run_dir, pair)
        path = checkpoints.state_path(directory, "replay-0")
        seconds, peak = measured(lambda cut=cut, path=path: cut.write(path))
        peaks.append(peak)
        del cut
        bound, ratio = compressor_rate(replay)
        samples.append({"write": replay_bytes / seconds, "bound": bound, "packed": ratio, "cut": held})
        console.print(
            f"{pair + 1}/{PAIRS}: {replay_bytes / seconds / 1e6:,.0f} MB/s, compressor {bound / 1e6:,.0f}",
            highlight=False,
        )
        file_bytes = path.stat().st_size
        if pair < PAIRS - 1:
            checkpoints.discard(directory)
    middle = bench.medians(samples)
    saved = checkpoints.finish(directory, ["replay-0"], [], {})
    same = Shape(replay.num_lanes, replay.capacity, STACK, N_STEP)
    divided = DIVIDED._replace(capacity=replay.num_lanes * replay.capacity // DIVIDED.num_lanes)
    (read_seconds, read_peak), (divide_seconds, divide_peak) = (
        measured(lambda shape=shape: load(saved, shape, replay)) for shape in (same, divided)
    )
    rows = [
        *bench.compared("checkpoint.write", middle["write"] / 1e6, "MB/s", middle["bound"] / 1e6),
        bench.Row("checkpoint.write.peak", max(peaks) / 1e6, "MB"),
        bench.Row("checkpoint.cut", 1e3 * middle["cut"], "ms"),
        bench.Row("checkpoint.packed", replay_bytes / file_bytes, "1"),
        bench.Row("checkpoint.read", replay_bytes / read_seconds / 1e6, "MB/s"),
        bench.Row("checkpoint.read.peak", read_peak / 1e6, "MB"),
        bench.Row("checkpoint.divide", replay_bytes / divide_seconds / 1e6, "MB/s"),
        bench.Row("checkpoint.divide.peak", divide_peak / 1e6, "MB"),
    ]
    ratios = [sample["write"] / sample["bound"] for sample in samples]
    notes = [
        f"{replay.num_lanes * replay.capacity:,} records, {replay_bytes / 1e9:.2f} GB, as {file_bytes / 1e6:,.0f} MB",
        f"frames: random play of Pong, {NOISE:.1%} of the pixels replaced by random ones, in {replay.num_lanes} lanes",
        f"checkpoint.write.bound: {codec.best().name} alone, packing {middle['packed']:.0f} to 1; {PAIRS} pairs, ratio "
        f"{min(ratios):.3f} to {max(ratios):.3f}",
        "checkpoint.write ends with fsync; .cut is the time that training is held; .peak is how far memory rises",
        f"checkpoint.divide: the same file, restored into {divided.num_lanes} lanes",
        "checkpoint.pull: while the server, or the bundle that pulls, saves all the time; bound: while nobody does",
    ]
    return rows, notes


def measured(do: Callable[[], None]) -> tuple[float, float]:
    """Seconds that something takes, and bytes by which this process's resident memory rises meanwhile, at most."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, begin = _resident("VmRSS"), time.perf_counter()
    do()
    return time.perf_counter() - begin, _resident("VmHWM") - before


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def compressor_rate(replay: Replay) -> tuple[float, float]:
    """Bytes per second of the compressor alone, and how many of them make one of its own."""
    compression, step = codec.best(), 148  # as many frames as make a chunk of a megabyte
    frames, chunk = replay.lanes.memory["frame"], np.zeros((step, 84, 84), np.uint8)
    seconds, packed = 0.0, 0
    starts = np.linspace(0, replay.capacity - step, SAMPLED_CHUNKS // replay.num_lanes, dtype=int)
    for start in starts:
        for lane in range(replay.num_lanes):
            chunk[:] = frames[lane, start : start + step]
            begin = time.perf_counter()
            packed += len(compression.compress(chunk))
            seconds += time.perf_counter() - begin
    total = len(starts) * replay.num_lanes * chunk.nbytes
    return total / seconds, total / packed


def load(saved: checkpoints.Checkpoint, shape: Shape, replay: Replay) -> Lanes:
    """What a resumed run does with the file, into the memory that was saved."""
    share = MemoryShare(share_replay(saved, [shape]), 0, [shape])
    lanes = replay.shaped(shape.num_lanes, share.slots)
    share.restore(lanes)
    return lanes


def pull_latencies(
    launcher: Sequence[str], output: Path, records: int, seconds: float, rounds: int
) -> dict[str, list[float]]:
    """Seconds of pulls while nothing is saved, while the server saves, and while the bundle that pulls does.

    Raises
    ------
    HpcrlError
        The job failed.
    """
    numbers = map(str, (records, seconds, rounds))
    _jobs.run([*launcher, "-n", "2", sys.executable, "-m", "hpcrl.bench._pulls", *numbers], output, LIMIT_SECONDS)
    line = next(line for line in output.read_text().splitlines() if line.startswith(_jobs.MARK))
    return json.loads(line.removeprefix(_jobs.MARK))


def pull_rows(pulls: dict[str, Sequence[float]]) -> list[bench.Row]:
    """Median and 99th percentile of the latencies while server or bundle saves; the bound is that of a quiet time."""
    rows = []
    for name, of in (("median", statistics.median), ("p99", lambda values: float(np.quantile(values, 0.99)))):
        quiet = 1e3 * of(pulls["quiet"])
        for who in ("server", "bundle"):
            rows += bench.compared(f"checkpoint.pull.{who}.{name}", 1e3 * of(pulls[who]), "ms", quiet)
    return rows
