"""What the files of a checkpoint hold: every array, by file type. ``docs/hdf5.md`` says the same."""

from typing import NamedTuple


class Array(NamedTuple):
    """One dataset of a state file."""

    dtype: str
    shape: str
    """in words: ``[P]``; P parameters of the network, n of a shard, E simulators of the role, K servers"""
    unit: str
    meaning: str


_RNG = Array("uint64", "[6]", "1", "PCG64: two words of the state, two of the increment, has_uint32, uinteger")
_PULLED_PARAMS = Array("float32", "[P]", "1", "parameters as last pulled; only in the serial layout")
_PULLED_VERSIONS = Array("int64", "[K]", "updates", "their version, by shard")
_ENV = Array("any", "any", "any", "state of the simulators, if the environment can be saved: see its `state()`")

STATES: dict[str, dict[str, Array]] = {
    "parameter_server": {
        "params": Array("float32", "[n]", "1", "the shard: parameters from `shard_bounds[k]` to `shard_bounds[k + 1]`"),
        "target": Array("float32", "[n]", "1", "the shard as it was at `target_version`"),
        "version": Array("int64", "[]", "updates", "gradients applied to the shard"),
        "target_version": Array("int64", "[]", "updates", "version of the target"),
        "accepted": Array("int64", "[]", "gradients", "applied so far"),
        "dropped": Array("int64", "[]", "gradients", "refused as too old so far"),
        "staleness_sum": Array("int64", "[]", "updates", "sum of the delays of those applied"),
        "optimizer/*": Array("float32", "[n] or []", "1", "as torch names them: exp_avg, exp_avg_sq, sum, step, ..."),
    },
    "learner": {
        "updates": Array("int64", "[]", "updates", "minibatches trained"),
        "in_flight": Array("bool", "[]", "1", "whether a gradient was on its way"),
        "rng": _RNG,
        "ratio/steps": Array("int64", "[]", "steps", "agent steps written to the memory it samples"),
        "ratio/trained": Array("int64", "[]", "transitions", "transitions used from that memory"),
        "ratio/updates_due": Array("float64", "[]", "updates", "how far learning was behind its training intensity"),
        "guard/count": Array("int64", "[]", "updates", "losses seen by the outlier guard"),
        "guard/mean": Array("float64", "[]", "1", "their running mean"),
        "guard/variance": Array("float64", "[]", "1", "their running variance"),
        "fates": Array("int64", "[N, 3]", "1", "fate, delay and count of gradients not yet in the run log"),
        "online/params": _PULLED_PARAMS,
        "online/versions": _PULLED_VERSIONS,
        "trained": Array("int64", "[]", "transitions", "policy gradients: used so far"),
        "to_come/rows": Array("int64", "[N]", "1", "policy gradients: steps of the rollout to be trained on yet"),
        "to_come/lengths": Array("int64", "[M]", "steps", "in how many to a minibatch, the next one last"),
    },
    "actor": {
        "steps": Array("int64", "[]", "steps", "rounds of all its simulators"),
        "acted_steps": Array("int64", "[]", "steps", "agent decisions"),
        "rng": _RNG,
        "episodes/frame": Array("any", "[E, ...]", "1", "the frame to act upon"),
        "episodes/first": Array("bool", "[E]", "1", "whether it is the first of its episode"),
        "episodes/return": Array("float64", "[E]", "score", "raw return of the episode so far"),
        "episodes/steps": Array("int64", "[E]", "steps", "its length so far"),
        "episodes/env/*": _ENV,
        "episodes/newcomers/written": Array("int64", "[E]", "records", "written to each lane"),
        "episodes/newcomers/recent": Array("record", "[E, n_step + 1]", "1", "those that have no priority yet"),
        "rollout/return": Array("float64", "[E]", "score", "policy gradients: raw return of the episode so far"),
        "rollout/steps": Array("int64", "[E]", "steps", "its length so far"),
        "rollout/sampler/*": Array("int64", "[] or [G]", "1", "which group of simulators acts next, and their steps"),
        "rollout/experience/*": Array("any", "any", "any", "the rollout: the attributes of `sampling.rollout.Rollout`"),
        "rollout/env/*": _ENV,
        "rollout/replica/*": Array("any", "any", "any", "parameters that act, and their version, by shard"),
    },
    "evaluator": {
        "rng": _RNG,
        "next_update": Array("int64", "[]", "updates", "when it evaluates again"),
        "playing": Array("bool", "[]", "1", "whether an evaluation was under way"),
        "frames": Array("int64", "[]", "frames", "total frames when that began"),
        "global_update": Array("int64", "[]", "updates", "version that it evaluates"),
        "episodes/running": Array("float64", "[E]", "score", "raw return of the episode so far"),
        "episodes/returns": Array("float64", "[E, N]", "score", "of finished episodes; NaN for those to come"),
        "episodes/env/*": _ENV,
        "replica/params": _PULLED_PARAMS,
        "replica/versions": _PULLED_VERSIONS,
    },
    "secondary": {
        "rng": _RNG,
        "acting_rng": Array("uint64", "[6]", "1", "the same, of its actions when it is evaluated"),
        "next_update": Array("int64", "[]", "updates", "when it is evaluated again"),
        "shard/*": Array("any", "any", "any", "all parameters, as in `parameter_server-K.h5`"),
    },
    "monitor": {
        "returns": Array("float64", "[N]", "score", "of the last training episodes, up to 100"),
    },
}
"""Datasets in the group ``arrays`` of a state file; ``*`` stands for any further name."""

REPLAY: dict[str, Array] = {
    "begin": Array("int64", "[lanes]", "records", "index of the first record of each lane that is in the file"),
    "end": Array("int64", "[lanes]", "records", "index behind its last"),
    "origin": Array("int64", "[lanes]", "records", "index of the record in column 0"),
    "records/frame": Array("any", "[lanes, columns, ...]", "1", "one frame, without the stack; in compressed chunks"),
    "records/action": Array("int32", "[lanes, columns]", "1", "taken at the frame"),
    "records/reward": Array("float32", "[lanes, columns]", "score", "of that step, raw"),
    "records/terminated": Array("uint8", "[lanes, columns]", "1", "whether that step ended the episode, or a life"),
    "records/truncated": Array("uint8", "[lanes, columns]", "1", "whether that step cut the episode short"),
    "records/first": Array("uint8", "[lanes, columns]", "1", "whether the frame is the first of its episode"),
    "records/final": Array("uint8", "[lanes, columns]", "1", "0; 1: last frame; 2, 3: context behind, before a cut"),
    "priority": Array("float64", "[lanes, columns]", "1", "of each record; missing where sampling is uniform"),
    "priority_low": Array("int64", "[lanes]", "records", "records below this index have no priority any more"),
    "priority_highest": Array("float64", "[]", "1", "what a record without a TD error gets"),
}
"""Datasets of a replay file."""
