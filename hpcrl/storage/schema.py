"""Every name, type, unit and version found in the files of a run.

A run directory holds::

    config.toml                       the resolved configuration
    runlog-NNN.h5                     one segment for each start of the run (see `runlog`)
    events.log                        text, for ``tail -f``
    checkpoints/step-NNNNNNNNNNNN/    one checkpoint, named by its global update (see `checkpoint`)
    stop                              its presence asks the run to end cleanly
    lock                              JSON: the job that writes here now (see `runlock`)

A change of meaning of any name here raises the version of its file type.
"""

import datetime
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcrl.errors import StorageError

CONFIG_FILE = "config.toml"
EVENTS_FILE = "events.log"
STOP_FILE = "stop"
LOCK_FILE = "lock"
RUNLOG_FILE = "runlog-{:03d}.h5"
RUNLOG_PATTERN = r"runlog-(\d{3,})\.h5"
CHECKPOINTS_DIRECTORY = "checkpoints"
CHECKPOINT_DIRECTORY = "step-{:012d}"
CHECKPOINT_PATTERN = r"step-(\d{12,})"
UNFINISHED_SUFFIX = ".tmp"
"""A checkpoint still being written, or left by a run that was killed."""
REPLACED_SUFFIX = ".old"
"""The former checkpoint of the same update, for the moment in which a new one takes its name."""
MANIFEST_FILE = "manifest.json"
BEST_FILE = "best.json"
"""Beside the checkpoints: which of them is the best by evaluation."""
STATE_FILE = "{}.h5"
"""State of one owner, named after it: ``parameter_server-0.h5``."""
OWNER_PATTERN = r"[a-z_]+-\d+"
PACK_FILE = "node-{}.tar"
PACK_PATTERN = r"node-\d+\.tar"

VERSIONS = {
    "runlog": 2,
    "manifest": 2,
    "parameter_server": 2,
    "learner": 1,
    "actor": 1,
    "evaluator": 1,
    "secondary": 1,
    "monitor": 1,
    "replay": 1,
    "best": 1,
    "weights": 1,
    "starts": 1,
}
"""Format version of each file type."""

ARRAYS_GROUP = "arrays"
"""State files: one dataset for each array; nested keys are nested groups."""
ATTRIBUTES_GROUP = "attributes"
"""State files: the attributes of this group are JSON texts, one for each value that is not an array."""

BEGIN, END, ORIGIN = "begin", "end", "origin"
"""Replay files, int64 ``[lanes]`` each: absolute indices of the first record of a lane, of the one behind its last,
and of the one in column 0. Columns before ``begin`` are void: they were overwritten while the file was written."""
SLOTS = "slots"
"""Replay files, int64 attribute: records that a lane has room for; beside it ``num_lanes``, ``capacity``, ``stack``
and ``n_step`` of the memory."""
RECORDS_GROUP = "records"
"""Replay files: one dataset ``[lanes, columns, ...]`` for each field of a record."""
PRIORITY = "priority"
"""Replay files, float64 ``[lanes, columns]``: priority of each record; missing where the memory has none."""
PRIORITY_LOW = "priority_low"
"""Replay files, int64 ``[lanes]``: records below this absolute index have no priority any more."""
PRIORITY_HIGHEST = "priority_highest"
"""Replay files, float64: what a record without a TD error gets."""

RESUMED_UPDATE = "resumed_update"
"""Run log, int64 attribute: rows of earlier segments with a greater ``global_update`` are superseded by this one."""
RESUMED_FRAMES = "resumed_frames"
"""Run log, int64 attribute: the same for rows with greater ``total_frames``."""
COMMITTED_ROWS = "committed_rows"
"""Run log, int64 ``[1]`` in each table: rows whose columns are all in the file. It is written last."""
CHUNK_ROWS = 1024

ACTIVITIES = (
    *("wait", "simulate", "infer", "sample", "gradient", "pull", "push"),
    *("apply", "publish", "reduce", "evaluate", "copy", "write"),
)
"""Run log, table `spans`: what a rank can be doing; there it is a number, in this order."""


class Column(NamedTuple):
    """One growable dataset of a run-log table, ``dtype [rows]``."""

    dtype: str
    unit: str
    meaning: str


_WALL_SECONDS = Column("f8", "s", "training time since the run began, counted on over restarts")
_TOTAL_FRAMES = Column("i8", "frames", "emulator frames played by all actors so far")
_GLOBAL_UPDATE = Column("i8", "updates", "version of parameter shard 0")

TABLES: dict[str, dict[str, Column]] = {
    "episodes": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": _TOTAL_FRAMES,
        "global_update": _GLOBAL_UPDATE,
        "actor": Column("i4", "1", "index of the actor"),
        "simulator": Column("i4", "1", "index of the simulator within its actor"),
        "episode_return": Column("f8", "score", "undiscounted sum of the raw, unclipped rewards"),
        "length_steps": Column("i8", "steps", "agent decisions in the episode"),
    },
    "progress": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": _TOTAL_FRAMES,
        "total_steps": Column("i8", "steps", "agent decisions of all actors so far"),
        "global_update": _GLOBAL_UPDATE,
        "steps_per_second": Column("f8", "steps/s", "all actors, since the row before"),
        "frames_per_second": Column("f8", "frames/s", "all actors, since the row before"),
        "updates_per_second": Column("f8", "updates/s", "global updates since the row before"),
        "epsilon": Column("f8", "1", "probability of a random action"),
        "mean_return_100": Column("f8", "score", "mean return of the last 100 training episodes; NaN before the first"),
        "staleness_mean": Column("f8", "updates", "mean age of the gradients applied since the row before"),
        "gradients_accepted": Column("i8", "gradients", "applied so far, mean over the shards"),
        "gradients_dropped": Column("i8", "gradients", "refused as too old so far, mean over the shards"),
        "learning_rate": Column("f8", "1", "of the servers' optimizers"),
        "effective_rate": Column(
            "f8",
            "1",
            "adagrad: mean over the parameters of rate / (sqrt(sum of squares) + epsilon); else learning_rate",
        ),
        "training_intensity": Column("f8", "1", "transitions trained per step acted, since the row before"),
        "replay_fill": Column("f8", "1", "filled share of the replay memories, 0 to 1"),
        "sampling_hidden": Column(
            "f8", "1", "share of drawing minibatches not waited for so far; NaN: none drawn ahead"
        ),
        "samples_redrawn": Column(
            "i8", "transitions", "drawn again so far, as they were overwritten while they were copied"
        ),
        "priorities_dropped": Column(
            "i8", "1", "that came to the hosts of a shared memory too late so far: their records were overwritten"
        ),
        "replay_age_steps": Column(
            "f8", "steps", "mean age of the newest minibatches: steps of its simulator since a transition was written"
        ),
        "mean_priority": Column("f8", "1", "of the records that may be drawn, when a minibatch last was; NaN: none"),
        "loss": Column("f8", "1", "mean training loss since the row before; NaN without one"),
        "mean_q": Column("f8", "score", "mean value of the actions in the minibatches since the row before"),
    },
    # A histogram for each learner: rows add up. Written at each checkpoint and at the end of the run.
    "gradients": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": _TOTAL_FRAMES,
        "global_update": _GLOBAL_UPDATE,
        "learner": Column("i4", "1", "index of the learner"),
        "fate": Column("i4", "1", "0 applied, 1 applied by some shards only, 2 dropped as too old, 3 loss an outlier"),
        "delay_updates": Column("i4", "updates", "age at shard 0, up to 2046 (which stands for more); -1: not sent"),
        "count": Column("i8", "gradients", "such gradients since the rows before"),
    },
    # Policy-gradient algorithms alone: means since the learner's row before, a row every actor.report_period_seconds.
    "policies": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": _TOTAL_FRAMES,
        "global_update": Column("i8", "updates", "version of the parameters that the learner held"),
        "learner": Column("i4", "1", "index of the learner"),
        "policy_loss": Column("f8", "1", "of the actions taken"),
        "value_loss": Column("f8", "score^2", "half the squared error of the state values"),
        "entropy": Column("f8", "nats", "of the policy, mean over states"),
        "kl": Column("f8", "nats", "from the policy that acted to the learner's, estimated by r - 1 - log r"),
        "clipped": Column("f8", "1", "share of the steps whose ratio r is beyond PPO's clip"),
        "gradient_norm": Column("f8", "1", "before it is clipped"),
        "diversity": Column(
            "f8", "1", "of the gradients of two halves of a minibatch: 0.5 alike, 1 orthogonal; NaN: not compared"
        ),
        "explained_variance": Column("f8", "1", "of the returns, by the values of the network that acted"),
        "lag": Column("f8", "updates", "between the parameters that acted and those that learn"),
    },
    # With log.norms alone.
    "norms": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": _TOTAL_FRAMES,
        "global_update": Column("i8", "updates", "version of the parameters that the gradient was computed at"),
        "learner": Column("i4", "1", "index of the learner"),
        "layer": Column("i4", "1", "number among the file's attribute `layers`; -1: all parameters"),
        "parameters": Column("f8", "1", "norm of the parameters"),
        "distance": Column("f8", "1", "norm of their difference from those that the run began with"),
        "gradient": Column("f8", "1", "norm of the learner's gradient"),
        "step": Column("f8", "1", "norm of the parameters' change until the learner's next gradient"),
        "step_updates": Column("i8", "updates", "that this change is made of"),
    },
    # With a second learner alone: a row for each of its evaluations.
    "secondary": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": _TOTAL_FRAMES,
        "global_update": _GLOBAL_UPDATE,
        "updates": Column("i8", "updates", "of the second learner"),
        "loss": Column("f8", "1", "its mean training loss since the row before"),
        "mean_return": Column("f8", "score", "mean undiscounted raw return of its episodes"),
        "episodes": Column("i8", "episodes", "episodes played"),
        "parameters": Column("f8", "1", "norm of its parameters"),
        "distance": Column("f8", "1", "norm of their difference from those that both learners began with"),
        "first_parameters": Column("f8", "1", "norm of the first learner's parameters"),
        "first_distance": Column("f8", "1", "norm of their difference from those that both learners began with"),
    },
    # With log.apply_order alone. The rows of one role are in the order of its events, one for each shard it looked at.
    "order": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": Column("i8", "frames", "of all actors, as an actor knew it after it acted; else 0"),
        "global_update": Column("i8", "updates", "version of the shard: held, or the gradient was computed at"),
        "event": Column("i4", "1", "0 an actor acted, 1 a learner computed a gradient, 2 a server judged one"),
        "index": Column("i4", "1", "index of that actor, learner or server"),
        "shard": Column("i4", "1", "which shard"),
        "target_version": Column("i8", "updates", "version of the shard's target that a learner held; else 0"),
        "learner": Column("i4", "1", "whose gradient; an actor: 0"),
        "sequence": Column(
            "i8", "1", "number of the gradient among that learner's minibatches, or of the actor's step"
        ),
        "accepted": Column("i4", "1", "whether the server applied it; else 0"),
        "learning_rate": Column("f8", "1", "at which it was applied; else 0"),
    },
    # With log.trace alone.
    "spans": {
        "wall_seconds": _WALL_SECONDS._replace(meaning="when it began: training time since the run began"),
        "total_frames": Column("i8", "frames", "of all actors, when the monitor heard of it"),
        "global_update": Column("i8", "updates", "version of parameter shard 0, when the monitor heard of it"),
        "rank": Column("i4", "1", "rank that did something; its roles are in the file's attribute `ranks`"),
        "activity": Column("i4", "1", ", ".join(f"{number} {name}" for number, name in enumerate(ACTIVITIES))),
        "background": Column("i4", "1", "1: in a thread beside the rank's loop"),
        "seconds": Column("f8", "s", "how long it took"),
    },
    "evaluations": {
        "wall_seconds": _WALL_SECONDS,
        "total_frames": _TOTAL_FRAMES,
        "global_update": Column("i8", "updates", "version of the parameters that were evaluated"),
        "episodes": Column("i8", "episodes", "episodes played"),
        "mean_return": Column("f8", "score", "mean undiscounted raw return of these episodes"),
        "std_return": Column("f8", "score", "standard deviation of the returns over these episodes"),
        "epsilon": Column("f8", "1", "probability of a random action during evaluation"),
    },
}
"""Tables of a run log: group name, then dataset name."""


def header(file_type: str) -> dict[str, str | int]:
    """Return the attributes that begin every file: its type and version, the program's version and the date.

    Raises
    ------
    StorageError
        `file_type` is not in `VERSIONS`.
    """
    if file_type not in VERSIONS:
        raise StorageError(f"unknown file type {file_type!r}: expected one of {', '.join(VERSIONS)}")
    try:
        program_version = importlib.metadata.version("hpcrl")
    except importlib.metadata.PackageNotFoundError:
        program_version = "unknown"
    date = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return {"file_type": file_type, "version": VERSIONS[file_type], "hpcrl_version": program_version, "date": date}


def check_header(attributes: Mapping, file_type: str, path: Path) -> None:
    """Check that a file is of the type and version that its reader understands.

    Raises
    ------
    StorageError
        It is not; the message says what was expected and what was found.
    """
    found = attributes.get("file_type"), attributes.get("version")
    expected = file_type, VERSIONS[file_type]
    if found[0] != expected[0] or found[1] is None:
        raise StorageError(f"{path}: expected an hpcrl file of type {file_type!r}, found type {found[0]!r}")
    if int(found[1]) != expected[1]:
        raise StorageError(
            f"{path}: expected {file_type!r} version {expected[1]}, found version {found[1]}, written by hpcrl "
            f"{attributes.get('hpcrl_version')}; read it with that version of hpcrl"
        )
