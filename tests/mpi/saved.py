"""What a checkpoint holds, whatever number of servers and memories it is spread over."""

from collections import Counter

import numpy as np

from hpcrl.replay.division import transitions
from hpcrl.storage.checkpoint import Checkpoint, state_path
from hpcrl.storage.replay import ReplayFile
from hpcrl.storage.statefile import read_state


def parameters(checkpoint: Checkpoint) -> dict[str, bytes]:
    """Parameters, target and Adam's two moments of all servers, laid end to end."""
    owners = sorted(owner for owner in checkpoint.owners if owner.startswith("parameter_server"))
    states = [read_state(state_path(checkpoint.path, owner), "parameter_server")[0] for owner in owners]
    names = [name for name in states[0] if name in ("params", "target") or name.startswith("optimizer/exp")]
    assert len(names) == 4
    return {name: np.concatenate([state[name] for state in states]).tobytes() for name in names}


def stored(checkpoint: Checkpoint) -> Counter:
    """How often each transition of catch, with its priority where it has one, is in the memories."""
    found = Counter()
    for owner in checkpoint.owners:
        if not owner.startswith("replay"):
            continue
        with ReplayFile(state_path(checkpoint.path, owner)) as file:
            for lane in range(file.shape.num_lanes):
                records = file.outcomes(lane)
                priorities = file.priorities(lane) if file.has_priorities else np.zeros(len(records))
                frames = np.concatenate(
                    [np.zeros((0, 50), np.uint8), *(f.reshape(-1, 50) for _, f in file.frames(lane))]
                )
                for t in transitions(records, stack=file.shape.stack, n_step=file.shape.n_step):
                    outcome = [records[name][t].item() for name in ("action", "reward", "terminated", "truncated")]
                    found[frames[t : t + 2].tobytes(), *outcome, priorities[t].item()] += 1
    return found
