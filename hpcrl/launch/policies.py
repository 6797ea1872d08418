"""What the outputs of policy networks mean, and who plays evaluations by them; needs no MPI."""

import numpy as np
import torch

from hpcrl.algorithms.policy_gradient import Categorical, DiagonalGaussian, Distribution, EvaluationPolicy
from hpcrl.config import Config
from hpcrl.types import EnvSpec


def make_distribution(spec: EnvSpec) -> Distribution:
    """What the network's outputs mean for this environment's actions."""
    return DiagonalGaussian(spec.num_actions) if spec.continuous else Categorical(spec.num_actions)


def make_evaluation_policy(
    config: Config, spec: EnvSpec, replica, rng: np.random.Generator, dtype: torch.dtype
) -> EvaluationPolicy:
    """What plays the episodes of an evaluation."""
    return EvaluationPolicy(replica, make_distribution(spec), rng, dtype, draws=config.policy.evaluation == "draw")
