"""What every rank of a run did when, for Perfetto (https://ui.perfetto.dev) and as shares of the time."""

import json
from pathlib import Path

import numpy as np

from hpcrl.errors import ConfigError, StorageError
from hpcrl.storage.runlog import list_segments, read_runlog
from hpcrl.storage.schema import ACTIVITIES

COMPUTING = ("simulate", "infer", "gradient")
"""What a bundle is there for; all else is the price of being distributed."""


def write_trace(run_dir: Path, output: Path) -> dict[str, dict[str, float]]:
    """Write the spans of a run in Chrome's trace event format: a process for each host, a track for each rank.

    Returns
    -------
    dict
        See :func:`shares`.

    Raises
    ------
    ConfigError
        The run was not traced.
    StorageError
        The run log cannot be read, or the file not be written.
    """
    spans, labels = read_spans(run_dir)
    try:
        with output.open("w") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            file.write(",\n".join(json.dumps(event) for event in _events(spans, labels)))
            file.write("\n]}\n")
    except OSError as error:
        raise StorageError(f"{output}: cannot be written: {error.strerror}") from error
    return shares(spans, labels)


def read_spans(run_dir: Path) -> tuple[dict[str, np.ndarray], list[str]]:
    """Table ``spans`` of a run log, and what each rank is called.

    Raises
    ------
    ConfigError
        The run was not traced.
    StorageError
        The run log cannot be read.
    """
    spans, labels = read_runlog(run_dir, "spans"), _labels(run_dir)
    if not len(spans["rank"]) or not labels:
        raise ConfigError(f"{run_dir} has no record of what its ranks did: run it anew with --set log.trace=true")
    return spans, labels


def _labels(run_dir: Path) -> list[str]:
    """What the ranks of the last traced start of a run are called."""
    segments = list_segments(run_dir)[0]
    return next((json.loads(s.attributes["ranks"]) for s in reversed(segments) if "ranks" in s.attributes), [])


def _events(spans: dict[str, np.ndarray], labels: list[str]):
    """Names of hosts and ranks, and then the spans; times are in microseconds."""
    hosts = list(dict.fromkeys(label.rpartition(" on ")[2] for label in labels))
    host_of = [hosts.index(label.rpartition(" on ")[2]) for label in labels]
    for pid, host in enumerate(hosts):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": host}}
    tracks = sorted(set(zip(spans["rank"].tolist(), spans["background"].tolist(), strict=True)))
    for rank, background in tracks:
        track = {"pid": host_of[rank], "tid": 2 * rank + background}
        name = labels[rank].rpartition(" on ")[0] + (", in the background" if background else "")
        yield {"ph": "M", "name": "thread_name", **track, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", **track, "args": {"sort_index": track["tid"]}}
    columns = ("rank", "background", "activity", "wall_seconds", "seconds", "global_update")
    for rank, background, activity, begin, seconds, update in zip(*(spans[c].tolist() for c in columns), strict=True):
        yield {
            "ph": "X",
            "name": ACTIVITIES[activity],
            "cat": "hpcrl",
            "pid": host_of[rank],
            "tid": 2 * rank + background,
            "ts": round(1e6 * begin, 1),
            "dur": round(1e6 * seconds, 1),
            "args": {"global_update": update},
        }


def shares(spans: dict[str, np.ndarray], labels: list[str]) -> dict[str, dict[str, float]]:
    """Share of each rank's time that went into each activity of its loop, 0 to 1, and into none of them (``other``).

    A rank's time goes from its first span to the end of its last.

    Parameters
    ----------
    spans : dict
        Table ``spans`` of a run log.
    labels : list of str
        What each rank is called.
    """
    found = {}
    for rank in np.unique(spans["rank"]):
        mine = (spans["rank"] == rank) & (spans["background"] == 0)
        begin, seconds, activity = (spans[name][mine] for name in ("wall_seconds", "seconds", "activity"))
        if not len(begin):
            continue
        whole = (begin + seconds).max() - begin.min()
        sums = np.bincount(activity, seconds, len(ACTIVITIES)) / whole
        found[labels[rank]] = {name: float(s) for name, s in zip(ACTIVITIES, sums, strict=True) if s}
        found[labels[rank]]["other"] = max(0.0, 1.0 - float(sums.sum()))
    return found


def transport_share(share: dict[str, float]) -> float | None:
    """Share of a bundle's time in which it neither simulates, infers nor computes gradients; None of other ranks."""
    if not all(name in share for name in COMPUTING):
        return None
    return 1.0 - sum(share[name] for name in COMPUTING)
