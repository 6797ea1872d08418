"""``hpcrl evaluate``: play whole episodes with the parameters of a checkpoint, in one process and without MPI."""

from pathlib import Path

import numpy as np
import torch

from hpcrl.algorithms.dqn import EpsilonGreedy
from hpcrl.config import Config, load
from hpcrl.envs import env_spec, make_env
from hpcrl.errors import EXIT_FINISHED, StorageError
from hpcrl.launch.resume import load_shard
from hpcrl.launch.rollouts import make_evaluation_policy
from hpcrl.launch.sizes import learning_rule, new_network, num_parameters
from hpcrl.networks import FlatParameters
from hpcrl.roles.evaluator import Episodes
from hpcrl.seeding import generator, seed_sequence
from hpcrl.storage import schema
from hpcrl.storage.checkpoint import Checkpoint, latest


class FixedReplica:
    """A network with parameters that no longer change; what a policy needs of a replica."""

    device = "cpu"

    def __init__(self, module: torch.nn.Module, values: np.ndarray):
        self.network = module
        FlatParameters(module).values.numpy()[:] = values


def newest_checkpoint(run_dir: Path) -> tuple[Config, Checkpoint]:
    """The configuration and the newest good checkpoint of a run.

    Raises
    ------
    StorageError
        There is none.
    """
    if not (run_dir / schema.CONFIG_FILE).is_file():
        raise StorageError(f"{run_dir}: expected a run directory (with {schema.CONFIG_FILE}), got none")
    checkpoint, skipped = latest(run_dir)
    if checkpoint is None:
        why = "".join(f"\n  {path.name}: {reason}" for path, reason in skipped)
        raise StorageError(f"{run_dir} holds no checkpoint that can be used{why}")
    return load(run_dir / schema.CONFIG_FILE), checkpoint


def evaluate(config: Config, checkpoint: Checkpoint, *, episodes: int, epsilon: float, seed: int) -> np.ndarray:
    """Raw returns, float64 ``[episodes]``, of whole episodes; life losses never end one."""
    arguments = {**config.env.arguments(), "life_loss": "ignore", "random_start_steps": 0}
    size = num_parameters(config)
    params = load_shard(checkpoint, 0, size, size)["params"]
    replica = FixedReplica(new_network(config), params)
    spec, rng = env_spec(**arguments), generator(seed, "evaluation", 0)
    if config.learning.uses_replay:
        policy = EpsilonGreedy(replica, learning_rule(config).q, spec.num_actions, rng, torch.float32)
    else:
        policy = make_evaluation_policy(config, spec, replica, rng, torch.float32)
    env = make_env(min(config.env.simulators, episodes), seed_sequence(seed, "evaluation env", 0), **arguments)
    try:
        played = Episodes(env, policy, episodes=episodes, epsilon=epsilon)
        while not played.step():
            pass
        return played.result()
    finally:
        env.close()


def main(run_dir: Path, *, episodes: int, epsilon: float | None, seed: int) -> int:
    """Evaluate the newest checkpoint of a run and print the result."""
    config, checkpoint = newest_checkpoint(run_dir)
    epsilon = config.exploration.evaluation_epsilon if epsilon is None else epsilon
    returns = evaluate(config, checkpoint, episodes=episodes, epsilon=epsilon, seed=seed)
    print(
        f"{config.env.id} ({config.env.protocol} protocol), update {checkpoint.global_update:,}, epsilon {epsilon:g}, "
        f"seed {seed}: mean return {returns.mean():.2f} +- {returns.std():.2f} (standard deviation) over "
        f"{len(returns)} episodes, from {returns.min():g} to {returns.max():g}"
    )
    return EXIT_FINISHED
