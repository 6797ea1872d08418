"""Faults of a configuration: what is wrong between keys, and how a fault is worded."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrl.config.presets import PROTOCOLS

if TYPE_CHECKING:
    from hpcrl.config import Config
    from hpcrl.config.sections import EnvConfig, TopologyConfig

PLAIN_ONLY = {
    "protocol": "custom",
    "sticky_probability": 0.0,
    "noop_max": 0,
    "full_action_space": False,
    "life_loss": "ignore",
    "fire_reset": False,
    "frame_skip": 1,
    "max_episode_frames": 0,
    "exact": False,
    "stuck_frames": 0,
    "screen": "84x84",
    "random_start_steps": 0,
}
"""The only value of each Atari key that is true of an environment which is not Atari."""

LANE_SLACK_STEPS = 4
"""Records of a replay lane beyond two windows of stack + n."""

Fault = tuple[tuple[str, ...], str]
"""The keys concerned, the one to blame first, and what is wrong."""


def cross_faults(config: "Config") -> Iterator[Fault]:
    """Faults between keys: the keys concerned, the one to blame first, and what is wrong."""
    yield from _topology_faults(config.topology)
    yield from _env_faults(config.env)
    yield from _replay_faults(config) if config.learning.uses_replay else _policy_faults(config)
    yield from _update_faults(config)
    run, exploration, learning = config.run, config.exploration, config.learning
    if run.stall_seconds <= run.heartbeat_seconds:
        yield (
            ("run.stall_seconds", "run.heartbeat_seconds"),
            f"expected more than run.heartbeat_seconds = {run.heartbeat_seconds}, got {run.stall_seconds}",
        )
    if run.lock_step and learning.training_ratio != "block":
        yield (
            ("learning.training_ratio", "run.lock_step"),
            "expected 'block' with run.lock_step, where a turn ends when learning has to wait, got 'report'",
        )
    yield from _evaluation_faults(config)
    if exploration.epsilon_end > exploration.epsilon_start:
        yield (
            ("exploration.epsilon_end", "exploration.epsilon_start"),
            f"expected at most exploration.epsilon_start = {exploration.epsilon_start}, got {exploration.epsilon_end}",
        )
    if config.network.dueling and ":" in config.network.kind:
        yield (
            ("network.dueling", "network.kind"),
            f"expected false with a network of your own ({config.network.kind}), which makes its head itself, got true",
        )
    if config.network.layer_norm and (config.network.kind == "impala" or ":" in config.network.kind):
        yield (
            ("network.layer_norm", "network.kind"),
            f"expected false with network.kind {config.network.kind!r}, got true",
        )
    for key in ("learner.cuda_graph", "learner.compile"):
        if _value(config, key) and learning.algorithm != "dqn":
            yield (key, "learning.algorithm"), f"expected false with algorithm {learning.algorithm!r}, got true"
    alone = config.topology.layout == "serial" and learning.update == "server" and learning.uses_replay
    if config.secondary.batch_size and not alone:
        yield (
            ("secondary.batch_size", "topology.layout", "learning.update", "learning.algorithm"),
            "expected 0 but in the serial layout with learning.update 'server' and a replay memory, got "
            f"{config.secondary.batch_size}",
        )
    yield from _distribution_faults(config)
    if learning.optimizer_epsilon == 0 and learning.optimizer != "sgd":
        yield (
            ("learning.optimizer_epsilon", "learning.optimizer"),
            f"expected more than 0 with optimizer {learning.optimizer!r}, which divides by it, got 0",
        )
    if learning.momentum and learning.optimizer not in ("sgd", "rmsprop"):
        yield (
            ("learning.momentum", "learning.optimizer"),
            f"expected 0 with optimizer {learning.optimizer!r} (sgd and rmsprop have it), got {learning.momentum}",
        )


def _evaluation_faults(config: "Config") -> Iterator[Fault]:
    """A protocol of evaluations that the environment or the agent does not fit."""
    run, env = config.run, config.env
    if run.evaluation_protocol != "own" and not env.is_atari:
        yield (
            ("run.evaluation_protocol", "env.id"),
            f"expected 'own' for {env.id!r}, which is no Atari environment (ALE/…), got {run.evaluation_protocol!r}",
        )
    if run.evaluation_protocol == "saber" and not env.full_action_space:
        yield (
            ("run.evaluation_protocol", "env.full_action_space"),
            "expected another protocol for an agent without all 18 actions (env.full_action_space), got 'saber'",
        )
    if (run.evaluation_protocol == "human") != bool(run.evaluation_starts):
        yield (
            ("run.evaluation_starts", "run.evaluation_protocol"),
            f"expected a file with run.evaluation_protocol 'human', and none with another, got "
            f"{run.evaluation_starts!r} with {run.evaluation_protocol!r}",
        )


def _distribution_faults(config: "Config") -> Iterator[Fault]:
    """Keys of a distribution that contradict each other, or that it has no use for."""
    network, loss = config.network, config.learning.loss
    low, high = network.support
    if low >= high:
        yield ("network.support",), f"expected the lowest atom before the highest, got {low}, {high}"
    if network.distribution != "none" and loss != "huber":
        yield (
            ("learning.loss", "network.distribution"),
            f"expected it unset with network.distribution {network.distribution!r}, which has a loss of its own, "
            f"got {loss!r}",
        )


def _topology_faults(topology: "TopologyConfig") -> Iterator[Fault]:
    """Counts that the layout has no place for."""
    allowed = {
        "serial": {"servers": (1,), "bundles": (0, 1), "learners": (1,), "actors": (0, 1), "evaluators": (0, 1)},
        "bundled": {"learners": (1,), "actors": (0,)},
        "split": {"bundles": (0,)},
        "sampler_learner": {"learners": (1,), "actors": (0,)},
    }[topology.layout]
    if topology.layout != "sampler_learner":
        allowed["simulator_ranks"] = (0,)
    for key, values in allowed.items():
        if getattr(topology, key) not in values:
            expected = " or ".join(map(str, values))
            yield (
                (f"topology.{key}", "topology.layout"),
                f"expected {expected} in the {topology.layout} layout, got {getattr(topology, key)}",
            )
    if topology.layout == "serial" and topology.monitor == "own":
        yield ("topology.monitor", "topology.layout"), "expected 'shared' in the serial layout, got 'own'"


ALLOWED: dict[str, dict[str, tuple]] = {
    "server": {
        "learner.sync_period_updates": (1,),
        "learner.compression": ("none",),
        "learner.reduce_overlap": (False,),
    },
    "store": {
        "learner.compression": ("none",),
        "learner.reduce_overlap": (False,),
        "learning.node_combine": (False,),
        "run.lock_step": (False,),
        "log.apply_order": (False,),
        "learning.virtual_delay": ("",),
        "learner.pipeline": (0,),
        "learner.pull_period_updates": (1,),
    },
    "allreduce": {
        "topology.layout": ("sampler_learner", "serial"),
        "topology.servers": (1,),
        "topology.evaluators": (0, 1),
        "topology.monitor": ("shared",),
        "replay.place": ("local",),
        "learning.node_combine": (False,),
        "run.lock_step": (False,),
        "log.apply_order": (False,),
        "learning.virtual_delay": ("",),
        "learner.pipeline": (0,),
        "learner.pull_period_updates": (1,),
        "learner.sync_period_updates": (1,),
    },
}
"""The only values that a way of updating has a meaning for."""
BESIDE: dict[str, dict[str, Any]] = {
    "learning.node_combine": {"learner.pipeline": 0, "run.lock_step": False, "log.apply_order": False},
    "learner.reduce_overlap": {
        "learner.compression": "none",
        "learner.cuda_graph": False,
        "learner.compile": False,
        "policy.gradient_diversity": False,
    },
    "learner.compile": {"learner.cuda_graph": False},
}
"""The only values that other keys may have where a key is switched on."""


def _update_faults(config: "Config") -> Iterator[Fault]:
    """Keys that mean nothing to the way of updating, or under which ranks would wait for each other for ever."""
    update = config.learning.update
    for key, values in ALLOWED[update].items():
        if (value := _value(config, key)) not in values:
            yield (
                (key, "learning.update"),
                f"expected {' or '.join(map(repr, values))} with learning.update = {update!r}, got {value!r}",
            )
    yield from _switch_faults(config)
    if update == "store" and config.learner.sync_period_updates > 1 and config.learning.optimizer != "adam":
        yield (
            ("learner.sync_period_updates", "learning.optimizer"),
            f"expected 1 with optimizer {config.learning.optimizer!r}, as only adam has a rule for several steps "
            f"between two visits to the store, got {config.learner.sync_period_updates}",
        )


def _switch_faults(config: "Config") -> Iterator[Fault]:
    """Keys that contradict one which is switched on."""
    for switch, others in BESIDE.items():
        if not _value(config, switch):
            continue
        for key, value in others.items():
            if (got := _value(config, key)) != value:
                yield (key, switch), f"expected {value!r} with {switch}, got {got!r}"
    learning = config.learning
    if config.learner.reduce_overlap and (learning.takes_trajectories or ":" in learning.algorithm):
        yield (
            ("learner.reduce_overlap", "learning.algorithm"),
            f"expected false with algorithm {learning.algorithm!r}, which may make several passes for one, got true",
        )


def _value(config: "Config", dotted: str) -> Any:
    section, _, key = dotted.partition(".")
    return getattr(getattr(config, section), key)


def _env_faults(env: "EnvConfig") -> Iterator[Fault]:
    """Keys that contradict the protocol, or that this kind of environment does not have."""
    if env.is_atari:
        fixed, why = PROTOCOLS[env.protocol], f"protocol {env.protocol!r} fixes it (or choose protocol 'custom')"
        fixed = {**fixed, "autoreset": "next_step"}
    else:
        fixed, why = PLAIN_ONLY, f"{env.id!r} is not an Atari environment (ALE/…)"
    for key, value in fixed.items():
        if getattr(env, key) != value:
            reason = "ALE's vector environment resets so" if key == "autoreset" else why
            yield (
                (f"env.{key}", "env.id", "env.protocol"),
                f"expected {value!r}, because {reason}, got {getattr(env, key)!r}",
            )
    if env.is_atari and 0 < env.stuck_frames < env.frame_skip:
        yield (
            ("env.stuck_frames", "env.frame_skip"),
            f"expected 0 or at least env.frame_skip = {env.frame_skip}, got {env.stuck_frames}",
        )
    if env.is_atari and env.max_episode_frames < env.frame_skip:
        yield (
            ("env.max_episode_frames", "env.frame_skip"),
            f"expected at least env.frame_skip = {env.frame_skip}, got {env.max_episode_frames}",
        )


def _replay_faults(config: "Config") -> Iterator[Fault]:
    """A memory must hold what learning waits for, in lanes longer than two windows of frames."""
    replay, env, batch_size = config.replay, config.env, config.learning.batch_size
    if config.topology.simulator_ranks:
        yield (
            ("topology.simulator_ranks", "learning.algorithm"),
            f"expected 0 with algorithm {config.learning.algorithm!r}, which learns from a replay memory, "
            f"got {config.topology.simulator_ranks}",
        )
    together = 2 * replay.send_period_steps if replay.place == "global" else 0  # a writer overwrites so many at once
    least = env.simulators * (2 * (env.stack + replay.n_step) + LANE_SLACK_STEPS + together)
    if replay.capacity_steps < least:
        yield (
            ("replay.capacity_steps", "env.simulators", "env.stack", "replay.n_step", "replay.send_period_steps"),
            f"expected at least {least} (what env.simulators, env.stack, replay.n_step need), "
            f"got {replay.capacity_steps}",
        )
    if replay.learning_starts_steps > replay.capacity_steps:
        yield (
            ("replay.learning_starts_steps", "replay.capacity_steps"),
            f"expected at most replay.capacity_steps = {replay.capacity_steps}, got {replay.learning_starts_steps}",
        )
    if batch_size > replay.learning_starts_steps:
        yield (
            ("learning.batch_size", "replay.learning_starts_steps"),
            f"expected at most replay.learning_starts_steps = {replay.learning_starts_steps}, got {batch_size}",
        )
    if replay.priority_beta_end < replay.priority_beta_start:
        yield (
            ("replay.priority_beta_end", "replay.priority_beta_start"),
            f"expected at least replay.priority_beta_start = {replay.priority_beta_start}, "
            f"got {replay.priority_beta_end}",
        )


def _policy_faults(config: "Config") -> Iterator[Fault]:
    """Keys that the algorithms without replay have no place for, and rollouts that cannot be divided."""
    policy, algorithm, simulators = config.policy, config.learning.algorithm, config.env.simulators
    takes_trajectories = config.learning.takes_trajectories
    fixed = {
        "replay.place": "local",
        "learner.pipeline": 0,
        "learner.pull_period_updates": 1,
        "learner.outlier_deviations": 0.0,
        "network.dueling": False,
        "network.distribution": "none",
        "learning.double": False,
        "learning.virtual_delay": "",
        "log.apply_order": False,
        **({"policy.epochs": 1, "policy.minibatches": 1} if algorithm in ("a2c", "impala", "ga3c") else {}),
        **({"policy.gradient_diversity": False} if takes_trajectories else {"policy.rollouts": 1}),
        **({"exploration.ladder_alpha": 0.0} if algorithm == "pqn" else {"network.layer_norm": False}),
    }
    for dotted, value in fixed.items():
        if (got := _value(config, dotted)) != value:
            yield (dotted, "learning.algorithm"), f"expected {value!r} with algorithm {algorithm!r}, got {got!r}"
    if config.topology.layout == "split" and not takes_trajectories:
        yield (
            ("topology.layout", "learning.algorithm"),
            f"expected 'serial' or 'bundled' with algorithm {algorithm!r}, got 'split'",
        )
    scaling = config.learning.learning_rate_scaling_by
    if config.learning.learning_rate_scaling != "none" and scaling != "simulators":
        yield (
            ("learning.learning_rate_scaling_by", "learning.algorithm"),
            f"expected 'simulators' with algorithm {algorithm!r}, got {scaling!r}",
        )
    if config.run.lock_step:
        yield ("run.lock_step", "learning.algorithm"), f"expected false with algorithm {algorithm!r}, got true"
    ranks = config.topology.simulator_ranks
    if simulators % policy.groups:
        yield (
            ("policy.groups", "env.simulators"),
            f"expected a divisor of env.simulators = {simulators}, got {policy.groups}",
        )
    elif ranks and simulators % (ranks * policy.groups):
        yield (
            ("topology.simulator_ranks", "env.simulators", "policy.groups"),
            f"expected a divisor of env.simulators / policy.groups = {simulators // policy.groups}, got {ranks}",
        )
    if policy.minibatches > simulators * policy.horizon_steps:
        yield (
            ("policy.minibatches", "env.simulators", "policy.horizon_steps"),
            f"expected at most env.simulators x policy.horizon_steps = {simulators * policy.horizon_steps}, "
            f"got {policy.minibatches}",
        )


def expected(detail: Mapping[str, Any]) -> str:
    """Word one of pydantic's error details."""
    message = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ").removeprefix("a valid ")
    message = {"boolean": "true or false"}.get(message, message).replace("String should match pattern", "text like")
    hint = ""
    if detail["type"] == "literal_error" and isinstance(detail["input"], str):
        hint = near(detail["input"], re.findall(r"'([^']*)'", message))
    return f"expected {message}, got {detail['input']!r}{hint}"


def near(word: str, names: Iterable[str]) -> str:
    """A hint at the closest name, or nothing."""
    close = difflib.get_close_matches(word, list(names), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def near_key(dotted: str, names: Sequence[str]) -> str:
    """A hint for an unknown key: the same key in another section, else the closest one of its own section."""
    section, _, key = dotted.partition(".")
    elsewhere = [name for name in names if name.endswith(f".{key}")]
    own = [name for name in names if name.startswith(f"{section}.")]
    return f"; did you mean {elsewhere[0]}?" if elsewhere else near(dotted, own)
