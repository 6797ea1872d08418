"""Going on from a checkpoint that another rank map, and a somewhat other configuration, may have written."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpcrl.config import Config, toml_value
from hpcrl.envs import env_spec
from hpcrl.errors import StorageError
from hpcrl.launch.sizes import num_parameters
from hpcrl.launch.topology import Plan
from hpcrl.roles.checkpointing import is_replay, owner_name
from hpcrl.storage.checkpoint import Checkpoint, clean, latest
from hpcrl.storage.statefile import read_state

FIXED_KEYS = tuple(f"network.{key}" for key in ("kind", "hidden", "dueling", "layer_norm", "distribution", "support"))
"""Keys that decide what the parameters mean."""
MOMENT_KEYS = ("learning.optimizer", "learning.rmsprop_centered", "learning.momentum")
"""Keys that decide what an optimizer keeps; with another value it begins with fresh moments."""


def identity(config: Config, plan: Plan) -> dict[str, Any]:
    """What the manifest of a checkpoint says about the job that wrote it, for the next to compare itself with."""
    spec = env_spec(**config.env.arguments())
    return {
        "config": config.model_dump(mode="json"),
        "parameters": num_parameters(config),
        "observation": [spec.stack, *spec.obs_shape],
        "dtype": spec.obs_dtype.name,
        "actions": spec.num_actions,
        "job": {
            "ranks": len(plan.ranks),
            "nodes": len({rank.node for rank in plan.ranks}),
            "servers": plan.num("parameter_server"),
            **{f"{kind}s": plan.num(kind) for kind in ("learner", "actor", "simulator", "evaluator")},
        },
    }


def find_checkpoint(config: Config, plan: Plan) -> tuple[Checkpoint | None, list[tuple[Path, str]]]:
    """The checkpoint that a job in ``run.dir`` goes on from, if there is any, and those passed over, with the reason.

    Called by the holder of the directory's lock. Nothing else was changed there yet: a mistaken run directory loses
    nothing.

    Raises
    ------
    StorageError
        There are checkpoints, but none that can be used, or the newest is that of another network.
    """
    clean(config.run.dir)
    newest, skipped = latest(config.run.dir)
    if newest:
        check_same_problem(newest, config, plan)
    elif skipped:
        reasons = "".join(f"\n  {path.name}: {why}" for path, why in skipped)
        raise StorageError(
            f"{config.run.dir} has checkpoints, but none that can be used; move them away to train from the beginning, "
            f"or give another run.dir:{reasons}"
        )
    return newest, skipped


def check_same_problem(checkpoint: Checkpoint, config: Config, plan: Plan) -> None:
    """Raise a :class:`StorageError` where the parameters of a checkpoint are not those of this network.

    The network, and the shapes of observations and actions, are all that a run cannot change.
    """
    then, now = checkpoint.attributes, identity(config, plan)
    different = [
        f"{key}: {_words(old)} there, {_words(new)} here"
        for key, old, new in _changes(then, now, FIXED_KEYS)
        if old is not None  # a key that an older version did not have
    ]
    for name in ("parameters", "observation", "dtype", "actions"):
        if then[name] != now[name]:
            different.append(f"{name}: {_words(then[name])} there, {_words(now[name])} here")
    if different:
        raise StorageError(
            f"{checkpoint.path} was written with another network or environment ("
            + "; ".join(different)
            + "): go on with the same, or give another run.dir"
        )


def what_changed(checkpoint: Checkpoint, config: Config, plan: Plan) -> list[str]:
    """What is other than when a checkpoint was written: one line for the job, one for each key."""
    then, now = checkpoint.attributes, identity(config, plan)
    counts = [
        f"{name} {old} -> {count}"
        for name, count in now["job"].items()
        if (old := then["job"].get(name, 0)) != count  # an older version had fewer kinds of roles
    ]
    lines = [f"this job is another than the one that wrote it: {', '.join(counts)}"] if counts else []
    for key, old, new in _changes(then, now):
        fresh = ", so its moments begin anew" if key in MOMENT_KEYS and _moments_changed(then, now) else ""
        lines.append(f"changed: {key} = {_words(new)}, was {_words(old)}{fresh}")
    if config.learning.uses_replay and not _has_replay(checkpoint):
        starts = config.replay.learning_starts_steps
        lines.append(f"the checkpoint has no replay: learning goes on when each memory holds {starts:,} steps again")
    return lines


def is_exact(checkpoint: Checkpoint, config: Config, plan: Plan) -> bool:
    """Whether the run goes on bit for bit, with the episodes in flight: one rank then and now, the same simulators.

    The old parameters that a virtual delay looks back on are in no checkpoint, nor are steps between visits to a store,
    nor the rollouts of an asynchronous sampler.
    """
    then = checkpoint.attributes["config"]
    return (
        plan.layout == then["topology"]["layout"] == "serial"
        and config.env.simulators == then["env"]["simulators"]
        and not config.learning.virtual_delay
        and not config.policy.lag_updates
        and config.learner.sync_period_updates == 1
        and not config.learning.takes_trajectories
        and (_has_replay(checkpoint) if config.learning.uses_replay else _same_rollouts(then, config))
    )


def _same_rollouts(then: Mapping, config: Config) -> bool:
    policy = then.get("policy", {})  # older versions had none
    return all(policy.get(key) == getattr(config.policy, key) for key in ("horizon_steps", "groups"))


def _has_replay(checkpoint: Checkpoint) -> bool:
    return any(is_replay(owner) for owner in checkpoint.owners)


def load_state(checkpoint: Checkpoint, role) -> dict[str, np.ndarray]:
    """State of a role; empty where the checkpoint has none, because there are more of its kind now or it was absent."""
    name = owner_name(role)
    return read_state(checkpoint.file(name), role.kind)[0] if name in checkpoint.owners else {}


def load_shard(checkpoint: Checkpoint, begin: int, end: int, total: int) -> dict[str, np.ndarray]:
    """State of the parameters ``begin:end`` of ``total``, cut from or pieced together from the shards of a checkpoint.

    Vectors are laid end to end in the order of the shards; single numbers (versions, step counts) are those of the
    first shard that has them.

    Raises
    ------
    StorageError
        The checkpoint holds parameters of another size.
    """
    held = checkpoint.attributes["shard_bounds"][-1]
    if held != total:
        raise StorageError(
            f"{checkpoint.path} holds {held:,} parameters, but this network has {total:,}; give another run.dir"
        )
    owners = [owner for owner in checkpoint.owners if owner.startswith("parameter_server-")]
    owners.sort(key=lambda owner: int(re.sub(r"\D", "", owner)))
    vectors: dict[str, np.ndarray] = {}
    numbers: dict[str, np.ndarray] = {}
    at = 0
    for owner in owners:
        arrays, _ = read_state(checkpoint.file(owner), "parameter_server")
        length = len(arrays["params"])
        low, high = max(begin - at, 0), min(end - at, length)
        if low < high:
            for name, value in arrays.items():
                if value.ndim:
                    # A shard that never accepted a gradient has no moments yet: they are zero.
                    whole = vectors.setdefault(name, np.zeros(end - begin, value.dtype))
                    whole[at + low - begin : at + high - begin] = value[low:high]
                else:
                    numbers.setdefault(name, value)
        at += length
    return {**vectors, **numbers}


def keeps_moments(checkpoint: Checkpoint, config: Config) -> bool:
    """Whether the optimizer can go on with the moments of a checkpoint."""
    return not _moments_changed(checkpoint.attributes, {"config": config.model_dump(mode="json")})


def _moments_changed(then: Mapping, now: Mapping) -> bool:
    *_, momentum = MOMENT_KEYS
    return any(key != momentum or not (old and new) for key, old, new in _changes(then, now, MOMENT_KEYS))


def _changes(then: Mapping, now: Mapping, only: Sequence[str] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Dotted key, old and new value of each key of the configuration that differs; None where there is no such key."""
    old, new = (
        {f"{section}.{key}": value for section, keys in side["config"].items() for key, value in keys.items()}
        for side in (then, now)
    )
    for key in dict.fromkeys([*new, *old]):
        if old.get(key) != new.get(key) and (not only or key in only):
            yield key, old.get(key), new.get(key)


def _words(value: Any) -> str:
    return "unset" if value is None else toml_value(value)
