"""The configuration: every key with its type, default, unit and bounds, and the one loader that checks them all.

A configuration is a TOML file of the sections below. :func:`load` fills in what a protocol or an optimizer decides,
checks each key and the keys against each other, and reports every fault at once. Only ``cli`` and ``launch`` read
these objects; everything below them takes plain named arguments.
"""

import datetime
import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, field_validator, model_validator
from pydantic_core import PydanticUndefined

from hpcrl.config_faults import PROTOCOLS, cross_faults, expected, near, near_key
from hpcrl.errors import ConfigError

# Strict, so that `servers = true` or `servers = "4"` is a fault and not a silent 1 or 4.
Int = Annotated[int, Strict()]
Float = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]

MODULE_ATTRIBUTE = r"[A-Za-z_][\w.]*:[A-Za-z_]\w*"

ATARI_DEFAULTS = {"frame_skip": 4, "stack": 4, "max_episode_frames": 108_000}
PLAIN_DEFAULTS = {"frame_skip": 1, "stack": 1, "max_episode_frames": 0}
OPTIMIZER_DEFAULTS = {
    "sgd": {"learning_rate": 0.01, "optimizer_epsilon": 0.0},
    "rmsprop": {"learning_rate": 2.5e-4, "optimizer_epsilon": 1e-5},
    "adagrad": {"learning_rate": 0.01, "optimizer_epsilon": 1e-10},
    "adam": {"learning_rate": 6.25e-5, "optimizer_epsilon": 1.5e-4},
}
"""RMSProp: dqn_zoo (epsilon 0.01 / 32^2). Adam: Dopamine. AdaGrad: torch's own; Gorila published no rate."""


ALGORITHM_DEFAULTS: dict[str, dict[str, dict[str, Any]]] = {
    "a2c": {
        "learning": {
            "optimizer": "rmsprop",
            "learning_rate": 7e-4,
            "optimizer_epsilon": 1e-5,
            "rmsprop_decay": 0.99,
            "rmsprop_centered": False,
            "max_gradient_norm": 0.5,
        },
        "policy": {
            "horizon_steps": 5,
            "trace_decay": 1.0,
            "epochs": 1,
            "minibatches": 1,
            "normalize_advantages": False,
            "value_weight": 0.25,
        },
        "exploration": {"evaluation_epsilon": 0.0},
    },
    "ppo": {
        "learning": {
            "optimizer": "adam",
            "learning_rate": 2.5e-4,
            "optimizer_epsilon": 1e-5,
            "max_gradient_norm": 0.5,
        },
        "exploration": {"evaluation_epsilon": 0.0},
    },
    "pqn": {
        "network": {"layer_norm": True},
        "learning": {
            "optimizer": "adam",
            "learning_rate": 2.5e-4,
            "optimizer_epsilon": 1e-5,
            "max_gradient_norm": 10.0,
        },
        "policy": {"horizon_steps": 32, "trace_decay": 0.65, "epochs": 2, "minibatches": 32},
        "exploration": {"epsilon_end": 0.001, "evaluation_epsilon": 0.0},
    },
}
"""What an algorithm takes for keys left unset. A2C: Accelerated Methods, with the RMSProp of its baselines; PPO:
Schulman et al. 2017, as CleanRL has it; PQN: Gallici et al. 2024, with Adam for its RAdam."""


class Section(BaseModel):
    """One table of the file: unknown keys are faults, values never change after loading."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True)


class RunConfig(Section):
    """``[run]``: identity, length and supervision of the run."""

    name: str = Field("run", pattern=r"^[\w.+-]+$", description="name of the run: letters, digits, . _ + -")
    dir: Path = Field(Path("runs/{name}"), description="run directory; {name}, ~ and $VARIABLES are filled in")
    seed: Int = Field(1, ge=0, lt=2**63, description="root of every random stream of the run")
    total_frames: Int = Field(0, ge=0, description="stop after this many emulator frames of all actors; 0 = no limit")
    total_updates: Int = Field(0, ge=0, description="stop after this many global updates; 0 = no limit")
    time_limit_seconds: Float = Field(0.0, ge=0, description="stop cleanly after this many seconds; 0 = no limit")
    heartbeat_seconds: Float = Field(30.0, gt=0, description="seconds between two signs of life of a rank")
    stall_seconds: Float = Field(300.0, gt=0, description="seconds without progress after which a rank is stalled")
    lock_step: Bool = Field(False, description="ranks take turns by ticket: deterministic, slow, for debugging")
    evaluation_period_updates: Int = Field(5000, ge=1, description="global updates between two evaluations")
    evaluation_episodes: Int = Field(10, ge=1, description="episodes of one evaluation")

    @field_validator("dir", mode="before")
    @classmethod
    def _expand(cls, value: Any, info) -> Any:
        if not isinstance(value, str | Path):
            return value
        path = os.path.expanduser(os.path.expandvars(value))
        unset = re.findall(r"\$\w+|\$\{[^}]*\}", path)
        if unset:
            raise ValueError(f"a path whose variables are all set ({', '.join(unset)} is not)")
        path = path.replace("{name}", info.data.get("name", "run"))
        if "{" in path:
            raise ValueError("a path in which only {name} is filled in")
        return path


class TopologyConfig(Section):
    """``[topology]``: how many ranks hold which role."""

    layout: Literal["serial", "bundled", "split", "sampler_learner"] = Field("bundled", description="which rank map")
    servers: Int = Field(1, ge=1, description="parameter server ranks (shards of the parameters)")
    bundles: Int = Field(
        0, ge=0, description="bundled, sampler_learner: ranks with actor, replay and learner; 0 = all remaining"
    )
    learners: Int = Field(1, ge=1, description="split: learner ranks")
    actors: Int = Field(0, ge=0, description="split: actor ranks; 0 = all remaining")
    evaluators: Int = Field(0, ge=0, description="ranks that only evaluate")
    monitor: Literal["shared", "own"] = Field("shared", description="display and run log: on server 0 or a rank alone")
    learner_threads: Int = Field(
        0, ge=0, description="threads of a learner; 0 = its share of its node's cores, 1 for an mlp"
    )


class EnvConfig(Section):
    """``[env]``: the environment and its protocol; keys left unset follow the protocol."""

    id: str = Field("ALE/Pong-v5", min_length=1, description='"ALE/…", "catch", gymnasium id or "module:attribute"')
    protocol: Literal["nature", "dopamine", "machado", "saber", "custom"] = Field(
        "custom", description="Atari: fixes stickiness, no-ops, actions, lost lives, FIRE and ends; custom fixes none"
    )
    simulators: Int = Field(4, ge=1, description="simulators per actor")
    sticky_probability: Float = Field(0.0, ge=0, le=1, description="Atari: probability of repeating the last action")
    noop_max: Int = Field(0, ge=0, description="Atari: most no-op actions at the start of an episode")
    full_action_space: Bool = Field(False, description="Atari: all 18 actions rather than the game's own")
    life_loss: Literal["ignore", "terminate"] = Field(
        "ignore", description="Atari: is a lost life terminal in training (the game goes on)"
    )
    fire_reset: Bool = Field(False, description="Atari: press FIRE at the start of an episode")
    frame_skip: Int = Field(4, ge=1, description="emulator frames per step; 1 where it is not Atari")
    stack: Int = Field(4, ge=1, description="frames per observation; unset: 4 for Atari, else 1")
    max_episode_frames: Int = Field(
        108_000, ge=0, description="emulator frames after which an Atari episode is truncated; 0 = the environment's"
    )
    stuck_frames: Int = Field(
        0, ge=0, description="Atari: emulator frames without a reward after which an episode is truncated; 0 = never"
    )
    screen: Literal["84x84", "104x80"] = Field(
        "84x84", description="Atari: area-averaged as in Nature DQN, or cropped and halved as in Accelerated Methods"
    )
    random_start_steps: Int = Field(
        0, ge=0, description="Atari: an actor's simulators begin after up to so many random steps, out of phase"
    )
    autoreset: Literal["next_step", "same_step"] = Field(
        "next_step", description="gymnasium: does a finished simulator reset in a step of its own or in the same one"
    )
    exact: Bool = Field(
        False,
        description="Atari: slower simulators that a checkpoint can hold, for bit-exact resume of serial runs",
    )
    kwargs: dict[str, Any] = Field({}, description="further arguments of the environment")

    @property
    def is_atari(self) -> bool:
        return self.id.startswith("ALE/")

    def arguments(self, threads: int = 1) -> dict[str, Any]:
        """Keyword arguments of ``hpcrl.envs.env_spec`` and ``make_env``."""
        return {**self.model_dump(exclude={"protocol", "simulators"}), "threads": threads}

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        atari = str(data.get("id", "ALE/")).startswith("ALE/")
        preset = PROTOCOLS.get(str(data.get("protocol")), {}) if atari else {}
        return {**(ATARI_DEFAULTS if atari else PLAIN_DEFAULTS), **preset, **data}


class NetworkConfig(Section):
    """``[network]``: the Q-network."""

    kind: str = Field(
        "nature",
        pattern=rf"^(nature|dqn_net|a3c_net|impala|mlp|{MODULE_ATTRIBUTE})$",
        description='"nature", "dqn_net", "a3c_net", "impala", "mlp" or "module:attribute"',
    )
    hidden: tuple[Annotated[Int, Field(ge=1)], ...] = Field((64, 64), description="mlp: units of each hidden layer")
    dueling: Bool = Field(False, description="two streams, state value and advantages; each has the last hidden layer")
    layer_norm: Bool = Field(False, description="hidden layers are normalised; not those of impala")
    distribution: Literal["none", "categorical", "quantile"] = Field(
        "none", description="what an action has: its value, or the distribution of its return (C51, QR-DQN)"
    )
    atoms: Int = Field(ge=2, description="atoms of a categorical distribution (unset: 51), or quantiles (unset: 200)")
    support: tuple[Float, Float] = Field((-10.0, 10.0), description="categorical: lowest and highest atom")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="learner's arithmetic; auto: bfloat16 on a GPU"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {"atoms": 200 if data.get("distribution") == "quantile" else 51, **data}


class ReplayConfig(Section):
    """``[replay]``: the experience memories."""

    place: Literal["local", "global"] = Field(
        "local", description="local: one memory per bundle (split: per node); global: one for all, on the server ranks"
    )
    capacity_steps: Int = Field(200_000, ge=1, description="transitions per memory, divided over its simulators")
    learning_starts_steps: Int = Field(5000, ge=1, description="transitions in a memory before its learners begin")
    n_step: Int = Field(1, ge=1, description="steps of the return before bootstrapping")
    sampling: Literal["uniform", "prioritized"] = Field(
        "uniform", description="how minibatches are drawn; new data come first, or with their actor's errors"
    )
    priority_alpha: Float = Field(0.6, ge=0, le=1, description="prioritized: priority is |TD error| to this power")
    priority_beta_start: Float = Field(0.4, ge=0, le=1, description="prioritized: exponent of the weights at first")
    priority_beta_end: Float = Field(1.0, ge=0, le=1, description="prioritized: exponent of the weights at last")
    priority_beta_length_updates: Int = Field(
        1_000_000, ge=1, description="prioritized: global updates in which it goes there linearly"
    )
    send_period_steps: Int = Field(
        8, ge=1, description="global: steps of each simulator that an actor gathers before it writes them"
    )
    prefetch: Bool = Field(True, description="global: a thread draws the next minibatch while the learner computes")


class ExplorationConfig(Section):
    """``[exploration]``: epsilon falls linearly from start to end; on a ladder, it is that to a power."""

    epsilon_start: Float = Field(1.0, ge=0, le=1, description="probability of a random action at first")
    epsilon_end: Float = Field(0.1, ge=0, le=1, description="probability of a random action at last")
    decay: Literal["updates", "frames"] = Field("updates", description="clock: global updates or total frames")
    decay_length: Int = Field(1_000_000, ge=1, description="length of the fall, in the unit of decay")
    ladder_alpha: Float = Field(
        0.0,
        ge=0,
        description="simulator i of N explores with epsilon^(1 + alpha i / (N - 1)); 0 = all alike (Ape-X: 7)",
    )
    evaluation_epsilon: Float = Field(0.05, ge=0, le=1, description="probability of a random action when evaluating")


class PolicyConfig(Section):
    """``[policy]``: rollouts of the algorithms without replay (a2c, ppo, pqn), and the losses of the first two."""

    horizon_steps: Int = Field(128, ge=1, description="steps of each simulator in a rollout (a2c: 5, pqn: 32)")
    groups: Int = Field(
        1, ge=1, description="groups of simulators that take turns: one is simulated while another's actions are chosen"
    )
    trace_decay: Float = Field(
        0.95, ge=0, le=1, description="lambda of the returns; 1 = n-step returns (a2c: 1, pqn: 0.65)"
    )
    epochs: Int = Field(4, ge=1, description="passes over each rollout (a2c: 1, pqn: 2)")
    minibatches: Int = Field(4, ge=1, description="gradients of each pass (a2c: 1, pqn: 32)")
    clip: Float = Field(0.2, gt=0, description="ppo: epsilon, how far the probability of an action may move")
    clip_decay: Bool = Field(False, description="ppo: the clip falls in proportion to the learning rate")
    normalize_advantages: Bool = Field(True, description="to mean 0 and deviation 1 in each minibatch (a2c: false)")
    value_weight: Float = Field(0.5, ge=0, description="of the value loss, half the squared error (a2c: 0.25)")
    entropy_weight: Float = Field(0.01, ge=0, description="of the policy's entropy, which is rewarded")
    gradient_diversity: Bool = Field(
        False, description="log how unlike the gradients of the halves of a minibatch are; two passes instead of one"
    )
    evaluation: Literal["draw", "mode"] = Field(
        "draw", description="actions when evaluating: drawn from the policy, or its most probable ones"
    )


class LearningConfig(Section):
    """``[learning]``: the learning rule and the optimizer the servers apply."""

    algorithm: str = Field(
        "dqn",
        pattern=rf"^(dqn|a2c|ppo|pqn|{MODULE_ATTRIBUTE})$",
        description='"dqn", "a2c", "ppo", "pqn" (the last three use [policy]), or "module:attribute", made as dqn is',
    )
    update: Literal["server", "store", "allreduce"] = Field(
        "server",
        description="who applies gradients: each server to its shard; learners in turn to what servers store; "
        "or all learners their average (allreduce)",
    )
    discount: Float = Field(0.99, ge=0, le=1, description="discount per step")
    batch_size: Int = Field(32, ge=1, description="transitions per minibatch")
    training_intensity: Float = Field(8.0, gt=0, description="transitions trained per step acted (DQN: 32 / 4 = 8)")
    training_ratio: Literal["block", "report"] = Field(
        "block", description="block: who is ahead of the intensity waits; report: nobody waits, the log has the ratio"
    )
    double: Bool = Field(False, description="the online network chooses the action that the target network values")
    loss: Literal["huber", "mse"] = Field("huber", description="loss of the TD error, averaged over the batch")
    reward_clip: Float = Field(1.0, ge=0, description="learner's rewards are clipped to [-c, c]; 0 = not clipped")
    optimizer: Literal["sgd", "rmsprop", "adagrad", "adam"] = Field("adagrad", description="rule of the servers")
    learning_rate: Float = Field(gt=0, description="unset: sgd and adagrad 0.01, rmsprop 2.5e-4, adam 6.25e-5")
    learning_rate_scaling: Literal["none", "linear", "sqrt"] = Field(
        "none", description="how the rate grows with what learning_rate_scaling_by says, beyond its reference"
    )
    learning_rate_scaling_by: Literal["batch_size", "simulators"] = Field(
        "batch_size", description="what the rate grows with: the minibatch of an update, or all actors' simulators"
    )
    learning_rate_scaling_reference: Int = Field(
        32, ge=1, description="minibatch or simulators at which the rate is learning_rate itself"
    )
    learning_rate_final: Float = Field(ge=0, description="the rate goes to it linearly; unset: it stays as it is")
    learning_rate_decay: Literal["updates", "frames"] = Field(
        "updates", description="clock of that: global updates or total frames"
    )
    learning_rate_decay_length: Int = Field(1_000_000, ge=1, description="length of that, in the unit of its clock")
    momentum: Float = Field(0.0, ge=0, lt=1, description="sgd, rmsprop: momentum")
    adagrad_initial_accumulator: Float = Field(
        0.1, ge=0, description="adagrad: first value of the squared-gradient sum"
    )
    rmsprop_decay: Float = Field(0.95, ge=0, lt=1, description="rmsprop: decay of the running averages")
    rmsprop_centered: Bool = Field(True, description="rmsprop: divide by the variance rather than the second moment")
    rmsprop_epsilon_inside_root: Bool = Field(
        True, description="rmsprop: epsilon is added under the root, as in the published DQN, not to it, as in torch"
    )
    adam_betas: tuple[Annotated[Float, Field(ge=0, lt=1)], Annotated[Float, Field(ge=0, lt=1)]] = Field(
        (0.9, 0.999), description="adam: decay of the first and second moment"
    )
    optimizer_epsilon: Float = Field(
        ge=0, description="added to the optimizer's denominator; unset: adagrad 1e-10, rmsprop 1e-5, adam 1.5e-4"
    )
    optimizer_epsilon_per_batch: Float = Field(
        0.0, ge=0, description="with it, epsilon is this over the minibatch of an update (C51: 0.01, Rainbow: 0.005)"
    )
    target_period_updates: Int = Field(2500, ge=1, description="global updates between two target networks")
    virtual_delay: str = Field(
        "",
        description='gradients are made so many updates older: "30", "0:1, 10:2.5" (delay:weight), or a run to imitate',
    )
    max_gradient_norm: Float = Field(
        0.0, ge=0, description="the whole gradient, or with allreduce the average, is clipped to it; 0 = off"
    )

    @property
    def uses_replay(self) -> bool:
        """Whether it learns from a replay memory, and not from rollouts."""
        return self.algorithm not in ALGORITHM_DEFAULTS

    @property
    def has_action_values(self) -> bool:
        """Whether its network gives the values of actions, and not a policy."""
        return self.algorithm not in ("a2c", "ppo")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        filled = {**OPTIMIZER_DEFAULTS.get(str(data.get("optimizer")), OPTIMIZER_DEFAULTS["adagrad"]), **data}
        rate = filled["learning_rate"]
        return {"learning_rate_final": rate if isinstance(rate, float | int) and rate > 0 else 0.0, **filled}


class LearnerConfig(Section):
    """``[learner]``: when a learner pulls, and which gradients it keeps to itself."""

    pipeline: Int = Field(0, ge=0, le=1, description="0: pull when the last push is consumed; 1: overlap them")
    pull_period_updates: Int = Field(1, ge=1, description="own updates between two pulls of the parameters")
    sync_period_updates: Int = Field(
        1, ge=1, description="store: own updates between two visits to the central parameters; above 1 with adam only"
    )
    reduce: Literal["auto", "mpi", "gloo", "nccl"] = Field(
        "auto",
        description="allreduce: what sums gradients inside a node, MPI between nodes; auto: nccl on GPUs, else mpi",
    )
    compression: Literal["none", "bfloat16"] = Field(
        "none", description="allreduce: gradients are rounded to it before they are summed, for half the traffic"
    )
    verify_period_updates: Int = Field(
        1000, ge=0, description="allreduce: updates between two comparisons of all learners' parameters; 0 = never"
    )
    outlier_deviations: Float = Field(
        0.0, ge=0, description="gradients whose loss exceeds mean + so many deviations are dropped; 0 = none (ours)"
    )
    outlier_window_updates: Int = Field(
        1000, ge=2, description="own updates that this running mean and deviation reach back; before, none is dropped"
    )


class SecondaryConfig(Section):
    """``[secondary]``: a second learner on the same replay that never acts; in the serial layout."""

    batch_size: Int = Field(0, ge=0, description="transitions per minibatch of it; 0 = there is none")
    optimizer: Literal["sgd", "rmsprop", "adagrad", "adam"] = Field("adam", description="its optimizer")
    learning_rate: Float = Field(gt=0, description="its learning rate; unset: as in [learning]")
    optimizer_epsilon: Float = Field(ge=0, description="its epsilon; unset: as in [learning]")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        return {**OPTIMIZER_DEFAULTS.get(str(data.get("optimizer")), OPTIMIZER_DEFAULTS["adam"]), **data}


class ActorConfig(Section):
    """``[actor]``: when an actor pulls and reports."""

    sync_period_steps: Int = Field(1, ge=1, description="steps of each simulator between two pulls of the parameters")
    report_period_seconds: Float = Field(2.0, gt=0, description="seconds between two reports of finished episodes")


class ServerConfig(Section):
    """``[server]``: guards and transport of the parameter servers."""

    staleness_bound_updates: Int = Field(
        0, ge=0, description="older gradients are dropped; 0 = 4 x (learners + longest virtual delay) (ours)"
    )
    chunks: Int = Field(3, ge=1, description="store: parts of each shard with a lock of their own")
    slots: Int = Field(4, ge=3, description="published copies per shard")
    window_flavour: Literal["allocate", "create"] = Field("allocate", description="how MPI windows get their memory")
    max_requests_in_flight: Int = Field(64, ge=1, description="outstanding one-sided requests per peer")
    idle_sleep_seconds: Float = Field(
        0.001, ge=0, description="longest sleep of an idle server between two looks for gradients; it grows from 20 us"
    )


class CheckpointConfig(Section):
    """``[checkpoint]``: when to write and what to keep."""

    period_seconds: Float = Field(300.0, gt=0, description="seconds between two checkpoints")
    keep_last: Int = Field(3, ge=1, description="newest checkpoints kept")
    keep_every: Int = Field(0, ge=0, description="every M-th checkpoint is kept for ever; 0 = none")
    replay: Literal["full", "none"] = Field(
        "full", description="whether replay memories are saved too; without, a resumed run fills them anew"
    )


class LogConfig(Section):
    """``[log]``: what is shown and how often."""

    period_seconds: Float = Field(10.0, gt=0, description="seconds between two lines of progress")
    norms: Int = Field(
        0, ge=0, description="a learner's updates between two rows of norms of each layer in the log; 0 = none"
    )
    apply_order: Bool = Field(
        False, description="log every act, gradient and application in its order, so that hpcrl retrace can repeat them"
    )
    display: Literal["auto", "rich", "plain"] = Field("auto", description="panel, lines, or panel where a terminal is")


class Config(Section):
    """The whole configuration, resolved."""

    run: RunConfig = RunConfig()
    topology: TopologyConfig = TopologyConfig()
    env: EnvConfig = EnvConfig()
    network: NetworkConfig = NetworkConfig()
    replay: ReplayConfig = ReplayConfig()
    exploration: ExplorationConfig = ExplorationConfig()
    policy: PolicyConfig = PolicyConfig()
    learning: LearningConfig = LearningConfig()
    learner: LearnerConfig = LearnerConfig()
    secondary: SecondaryConfig = SecondaryConfig()
    actor: ActorConfig = ActorConfig()
    server: ServerConfig = ServerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    log: LogConfig = LogConfig()

    def rank_map(self) -> dict[str, Any]:
        """Keyword arguments of ``hpcrl.launch.topology.plan`` that the configuration decides."""
        servers = 0 if self.learning.update == "allreduce" else self.topology.servers
        return {
            **self.topology.model_dump(),
            "servers": servers,
            "global_replay": self.replay.place == "global",
            "replay": self.learning.uses_replay,
        }


class Key(NamedTuple):
    """One row of ``hpcrl plan --keys``."""

    name: str
    """dotted: ``section.key``"""
    type: str
    default: Any
    description: str


def load(path: str | os.PathLike, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration file, apply ``section.key=value`` overrides in order, and resolve it.

    An override's value is parsed as a TOML value where that succeeds and the key is not a text, else it is the text.

    Raises
    ------
    ConfigError
        The file cannot be read, or holds faults; all of them are listed.
    """
    try:
        raw = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable configuration file, got: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: expected TOML, got: {error}") from error
    faults = [fault for text in overrides if (fault := _override(raw, text))]
    return _resolve(raw, faults, f"{path}")


def from_dict(raw: Mapping[str, Any]) -> Config:
    """Resolve a configuration given as nested dictionaries; raises like :func:`load`."""
    return _resolve(raw, [], "configuration")


def to_toml(config: Config) -> str:
    """The resolved configuration as commented TOML that :func:`load` reads back to an equal one."""
    lines = []
    for name, section in config:
        lines += [f"[{name}]"]
        for key, field in type(section).model_fields.items():
            lines += [f"# {field.description}", f"{key} = {toml_value(getattr(section, key))}"]
        lines += [""]
    return "\n".join(lines)


def keys() -> list[Key]:
    """Every key in file order; a default that a protocol or optimizer decides is the one of ``Config()``."""
    rows = []
    for name, section in Config():
        for key, field in type(section).model_fields.items():
            default = getattr(section, key) if field.default is PydanticUndefined else field.default
            rows.append(Key(f"{name}.{key}", _type_name(field.annotation), default, field.description))
    return rows


def _override(raw: dict[str, Any], text: str) -> str | None:
    """Write one ``section.key=value`` into ``raw``; returns the fault if it has another form."""
    dotted, equals, value = text.partition("=")
    names = dotted.strip().split(".")
    if not equals or len(names) < 2 or not all(names):
        return f"--set {text}: expected section.key=value"
    table = raw
    for name in names[:-1]:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            return f"--set {text}: expected {name} to be a table, got {table!r}"
    table[names[-1]] = _parse(value.strip(), as_text=_is_text(*names))
    return None


def _is_text(section: str, key: str, *rest: str) -> bool:
    fields = _sections()[section].model_fields if section in _sections() else {}
    return not rest and key in fields and _type_name(fields[key].annotation) in ("str", "path")


def _parse(text: str, as_text: bool) -> Any:
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return text if as_text and not isinstance(value, str) else value


def _sections() -> dict[str, type[Section]]:
    return {name: field.annotation for name, field in Config.model_fields.items()}


def _resolve(raw: Mapping[str, Any], faults: list[str], source: str) -> Config:
    bad: set[str] = set()
    sections = {}
    for name, value in raw.items():
        if name not in _sections():
            faults.append(f"{name}: unknown section{near(name, _sections())}")
        elif not isinstance(value, Mapping):
            bad.add(name)
            faults.append(f"{name}: expected a table [{name}], got {value!r}")
    preset = _algorithm_defaults(raw.get("learning", {}))
    for name, model in _sections().items():
        given = {} if name in bad else raw.get(name, {})
        sections[name] = _resolve_section(name, model, {**preset.get(name, {}), **given}, faults, bad)
    config = Config(**sections)
    faults += [f"{names[0]}: {text}" for names, text in cross_faults(config) if not bad.intersection(names)]
    if faults:
        count = "1 fault" if len(faults) == 1 else f"{len(faults)} faults"
        raise ConfigError("\n  ".join([f"{source} has {count}:", *faults]))
    return config


def _algorithm_defaults(learning: Any) -> Mapping[str, Mapping[str, Any]]:
    """Defaults of the algorithm, by section; without those of its optimizer where that is another."""
    asked = learning if isinstance(learning, Mapping) else {}
    preset = ALGORITHM_DEFAULTS.get(str(asked.get("algorithm")), {})
    if not preset or asked.get("optimizer") in (None, preset["learning"]["optimizer"]):
        return preset
    return {**preset, "learning": {"max_gradient_norm": preset["learning"]["max_gradient_norm"]}}


def _resolve_section(name: str, model: type[Section], raw: Mapping, faults: list[str], bad: set[str]) -> Section:
    """Validate one section; where keys are faulty, note them and go on with the others, to find further faults."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        details = error.errors(include_url=False)
    names = [f"{other}.{key}" for other, sibling in _sections().items() for key in sibling.model_fields]
    for detail in details:
        dotted = f"{name}." + ".".join(map(str, detail["loc"]))
        bad.add(f"{name}.{detail['loc'][0]}")
        if detail["type"] == "extra_forbidden":
            faults.append(f"{dotted}: unknown key{near_key(dotted, names)}")
        else:
            faults.append(f"{dotted}: {expected(detail)}")
    return model.model_validate({key: value for key, value in raw.items() if f"{name}.{key}" not in bad})


def _type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " | ".join(f'"{value}"' for value in get_args(annotation))
    return {tuple: "list", dict: "table", Path: "path"}.get(origin or annotation, annotation.__name__)


def toml_value(value: Any) -> str:
    """A value as it is written in a configuration file."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str() | Path():
            return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
        case list() | tuple():
            return "[" + ", ".join(map(toml_value, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{toml_value(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
        case datetime.date() | datetime.time():
            return value.isoformat()
    raise TypeError(f"no TOML form for {value!r}")
