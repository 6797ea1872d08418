"""Writes a few checkpoints as a job does, going on from what it finds; a test kills it at some point of them.

``dying.py RUN_DIR``; prints the number of each checkpoint that is finished.
"""

import sys
from pathlib import Path

import numpy as np

from hpcrl.replay import local_lanes
from hpcrl.storage import checkpoint as checkpoints
from hpcrl.storage import replay as replay_files
from hpcrl.storage.best import mark_best, read_best
from hpcrl.storage.replay import ReplayCut
from hpcrl.storage.statefile import write_state

OWNERS = ("parameter_server-0", "learner-0", "replay-0")
SIZES = {"capacity": 200, "stack": 2, "n_step": 1}


def fill(lanes, update):
    for index in range(150):
        frame = np.full((1, 4), update, np.int32)
        outcome = {"action": update % 1000, "reward": 1.0, "terminated": False, "truncated": False}
        lanes.append(np.array([0]), frame, **outcome, first=index == 0)


def write(run_dir, update):
    directory = checkpoints.begin(run_dir, update)
    for owner in OWNERS[:2]:
        path = checkpoints.state_path(directory, owner)
        write_state(path, owner.rpartition("-")[0], {"value": np.full(5000, update)}, {})
    lanes = local_lanes(1, (4,), np.int32, **SIZES)
    fill(lanes, update)
    ReplayCut(lanes.memory, lanes.cursors, **SIZES).write(checkpoints.state_path(directory, "replay-0"))
    number = checkpoints.finish(directory, OWNERS, [], {}).number
    print(number, flush=True)
    mark_best(run_dir, update, float(update), 10)
    best = read_best(run_dir)
    checkpoints.prune(run_dir, keep_last=2, keep_every=0, best=best.path(run_dir) if best else None)


def run(run_dir):
    checkpoints.clean(run_dir)
    newest, _ = checkpoints.latest(run_dir)
    update = newest.global_update if newest else 0
    for step in (10, 20, 30, 30):  # the last replaces the one before
        write(run_dir, update + step)


if __name__ == "__main__":
    replay_files.CHUNK_RECORDS, replay_files.CHUNK_BYTES = 16, 16
    run(Path(sys.argv[1]))
