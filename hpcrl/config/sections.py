"""The sections of a configuration but for those of learning: every key with its type, default, unit and bounds."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from hpcrl.config.base import MODULE_ATTRIBUTE, Bool, Float, Int, Section
from hpcrl.config.presets import ATARI_DEFAULTS, PLAIN_DEFAULTS, PROTOCOLS


def expand_path(path: str | Path, name: str) -> str:
    """Fill in ``{name}``, ``~`` and ``$VARIABLES``.

    Raises
    ------
    ValueError
        A variable is not set, or there are other braces; worded as what was expected.
    """
    expanded = os.path.expanduser(os.path.expandvars(path))
    if unset := re.findall(r"\$\w+|\$\{[^}]*\}", expanded):
        raise ValueError(f"a path whose variables are all set ({', '.join(unset)} is not)")
    expanded = expanded.replace("{name}", name)
    if "{" in expanded:
        raise ValueError("a path in which only {name} is filled in")
    return expanded


class RunConfig(Section):
    """``[run]``: identity, length and supervision of the run."""

    name: str = Field("run", pattern=r"^[\w.+-]+$", description="name of the run: letters, digits, . _ + -")
    dir: Path = Field(Path("runs/{name}"), description="run directory; {name}, ~ and $VARIABLES are filled in")
    scratch_dir: str = Field(
        "",
        description="directory on each node's own disk where files of checkpoints are made, to be packed into one file "
        "of dir; filled in like dir, on each node; empty: a file for each role in dir",
    )
    seed: Int = Field(1, ge=0, lt=2**63, description="root of every random stream of the run")
    total_frames: Int = Field(0, ge=0, description="stop after this many emulator frames of all actors; 0 = no limit")
    total_updates: Int = Field(0, ge=0, description="stop after this many global updates; 0 = no limit")
    time_limit_seconds: Float = Field(0.0, ge=0, description="stop cleanly after this many seconds; 0 = no limit")
    heartbeat_seconds: Float = Field(30.0, gt=0, description="seconds between two signs of life of a rank")
    stall_seconds: Float = Field(300.0, gt=0, description="seconds without progress after which a rank is stalled")
    lock_step: Bool = Field(False, description="ranks take turns by ticket: deterministic, slow, for debugging")
    evaluation_period_updates: Int = Field(5000, ge=1, description="global updates between two evaluations")
    evaluation_episodes: Int = Field(10, ge=1, description="episodes of one evaluation")
    evaluation_protocol: Literal["own", "noop", "human", "sticky", "saber"] = Field(
        "own", description="how its episodes begin and end: as in training, or by a protocol of hpcrl evaluate"
    )
    evaluation_starts: str = Field("", description="human: file of the games to begin in, of hpcrl starts record")

    @field_validator("dir", mode="before")
    @classmethod
    def _expand(cls, value: Any, info) -> Any:
        return expand_path(value, info.data.get("name", "run")) if isinstance(value, str | Path) else value


class TopologyConfig(Section):
    """``[topology]``: how many ranks hold which role."""

    layout: Literal["serial", "bundled", "split", "sampler_learner"] = Field("bundled", description="which rank map")
    servers: Int = Field(1, ge=1, description="parameter server ranks (shards of the parameters)")
    bundles: Int = Field(
        0, ge=0, description="bundled, sampler_learner: ranks with actor, replay and learner; 0 = all remaining"
    )
    learners: Int = Field(1, ge=1, description="split: learner ranks")
    actors: Int = Field(0, ge=0, description="split: actor ranks; 0 = all remaining")
    simulator_ranks: Int = Field(
        0,
        ge=0,
        description="sampler_learner: ranks per learner, on its node, that step its simulators; 0 = it does itself",
    )
    pin_simulators: Bool = Field(
        True, description="simulator ranks keep to a core each, where nothing else is bound and there are enough cores"
    )
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
        "auto", description="arithmetic of networks; auto: bfloat16 for frames, where the hardware multiplies it"
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


class ActorConfig(Section):
    """``[actor]``: when an actor pulls and reports."""

    sync_period_steps: Int = Field(
        1,
        ge=1,
        description="steps of each simulator between two pulls, where no learner beside it has pulled meanwhile",
    )
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
    trace: Bool = Field(
        False, description="log what every rank does when, for hpcrl trace; costs about a hundredth of the speed"
    )
    display: Literal["auto", "rich", "plain"] = Field("auto", description="panel, lines, or panel where a terminal is")
