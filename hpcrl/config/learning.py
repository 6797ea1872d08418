"""The sections of a configuration that say what is learned and how."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hpcrl.config.base import MODULE_ATTRIBUTE, Bool, Float, Int, Section
from hpcrl.config.presets import ALGORITHM_DEFAULTS, OPTIMIZER_DEFAULTS


class PolicyConfig(Section):
    """``[policy]``: rollouts of the algorithms without replay, and the losses of those with a policy."""

    horizon_steps: Int = Field(
        128, ge=1, description="steps of each simulator in a rollout (a2c, ga3c: 5, impala: 20, pqn: 32)"
    )
    groups: Int = Field(
        1, ge=1, description="groups of simulators that take turns: one is simulated while another's actions are chosen"
    )
    rollouts: Int = Field(
        1, ge=1, description="impala, ga3c: rollouts of one gradient, each of an actor's, or a share's, simulators"
    )
    lag_updates: Int = Field(
        0, ge=0, description="actors act by parameters at least so many updates old, to see what that does"
    )
    trace_decay: Float = Field(
        0.95, ge=0, le=1, description="lambda of the returns; 1 = n-step returns (a2c, impala, ga3c: 1, pqn: 0.65)"
    )
    epochs: Int = Field(4, ge=1, description="passes over each rollout (a2c, impala, ga3c: 1, pqn: 2)")
    minibatches: Int = Field(4, ge=1, description="gradients of each pass (a2c, impala, ga3c: 1, pqn: 32)")
    clip: Float = Field(0.2, gt=0, description="ppo: epsilon, how far the probability of an action may move")
    clip_decay: Bool = Field(False, description="ppo: the clip falls in proportion to the learning rate")
    normalize_advantages: Bool = Field(True, description="to mean 0 and deviation 1 in each minibatch (ppo alone)")
    value_weight: Float = Field(0.5, ge=0, description="of the value loss, half the squared error (a2c: 0.25, ga3c: 1)")
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
        pattern=rf"^(dqn|a2c|ppo|pqn|impala|ga3c|{MODULE_ATTRIBUTE})$",
        description='"dqn", "module:attribute", made as it is, or with [policy] "a2c", "ppo", "pqn", "impala", "ga3c"',
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
    node_combine: Bool = Field(
        False,
        description="server: gradients that learners of a node have ready at once leave it as one, their sum",
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
        return self.uses_replay or self.algorithm == "pqn"

    @property
    def takes_trajectories(self) -> bool:
        """Whether whole rollouts are learned from as they come, from whatever policies made them."""
        return self.algorithm in ("impala", "ga3c")

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
        description="allreduce: what sums gradients inside a node (mpi: shared memory); auto: nccl on GPUs, else mpi",
    )
    compression: Literal["none", "bfloat16"] = Field(
        "none", description="allreduce: gradients are rounded to it before they are summed, for half the traffic"
    )
    reduce_overlap: Bool = Field(
        False, description="allreduce: parts of a gradient are summed while the rest is computed, for slow networks"
    )
    verify_period_updates: Int = Field(
        1000, ge=0, description="allreduce: updates between two comparisons of all learners' parameters; 0 = never"
    )
    cuda_graph: Bool = Field(
        False, description="dqn on a GPU: a learner's step is recorded once as a CUDA graph, and repeated"
    )
    compile: Bool = Field(
        False, description="dqn: a learner's step is compiled at the start (torch.compile), for which nodes need g++"
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
