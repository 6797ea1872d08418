"""Trained agents, from whatever holds them: a run, one of its checkpoints, or a file of weights."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from hpcrl.algorithms.dqn import EpsilonGreedy
from hpcrl.algorithms.policy_gradient import EvaluationPolicy
from hpcrl.config import Config, from_dict, load
from hpcrl.envs import env_spec
from hpcrl.errors import StorageError
from hpcrl.launch.policies import make_evaluation_policy
from hpcrl.launch.resume import load_shard
from hpcrl.launch.sizes import learning_rule, new_network, num_parameters
from hpcrl.networks import FlatParameters
from hpcrl.storage import schema
from hpcrl.storage.best import read_best
from hpcrl.storage.checkpoint import Checkpoint, find_fault, latest, read_manifest
from hpcrl.storage.statefile import read_state, write_state


class Agent(NamedTuple):
    """A network with its parameters, and the configuration that it was trained with."""

    config: Config
    params: np.ndarray
    """float32 ``[P]``, in the order of the network's parameters"""
    global_update: int
    origin: str
    """the file or directory that it is from"""

    def network(self) -> torch.nn.Module:
        """A new network with these parameters."""
        network = new_network(self.config)
        FlatParameters(network).values.numpy()[:] = self.params
        return network

    def weights(self) -> dict[str, np.ndarray]:
        """Parameters by the names of the network's ``state_dict``."""
        return {name: value.detach().numpy().copy() for name, value in self.network().named_parameters()}


class FixedReplica:
    """A network whose parameters no longer change; what a policy needs of a replica."""

    device = "cpu"

    def __init__(self, network: torch.nn.Module):
        self.network = network


def make_policy(agent: Agent, rng: np.random.Generator) -> EpsilonGreedy | EvaluationPolicy:
    """The agent's policy for evaluation, with ``act(observation, epsilon)``."""
    config, replica = agent.config, FixedReplica(agent.network())
    spec = env_spec(**config.env.arguments())
    if config.learning.has_action_values:
        return EpsilonGreedy(replica, learning_rule(config).q, spec.num_actions, rng, torch.float32)
    return make_evaluation_policy(config, spec, replica, rng, torch.float32)


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


def load_agent(path: Path, checkpoint: str = "newest") -> Agent:
    """Load an agent.

    Parameters
    ----------
    path
        A run directory, the directory of a checkpoint, a ``parameter_server-K.h5`` in it, or a file of
        :func:`save_weights`.
    checkpoint
        Which one of a run: ``"newest"``, ``"best"`` (by evaluation), or its global update.

    Raises
    ------
    StorageError
        There is no such thing, or it is damaged.
    """
    if path.is_file():
        owner = path.name.removesuffix(".h5").rpartition("-")[0]
        return _of_checkpoint(path.parent) if owner == "parameter_server" else _of_weights(path)
    if (path / schema.MANIFEST_FILE).is_file():
        return _of_checkpoint(path)
    if checkpoint == "newest":
        config, found = newest_checkpoint(path)
        return _agent(config, found)
    return _of_checkpoint(_named_checkpoint(path, checkpoint))


def _named_checkpoint(run_dir: Path, name: str) -> Path:
    if name == "best":
        best = read_best(run_dir)
        if best is None:
            raise StorageError(f"{run_dir}: no checkpoint is labelled as the best: no evaluation has ended yet")
        return best.path(run_dir)
    if not name.isdigit():
        raise StorageError(f"expected --checkpoint newest, best or a global update, got {name!r}")
    directory = run_dir / schema.CHECKPOINTS_DIRECTORY / schema.CHECKPOINT_DIRECTORY.format(int(name))
    if not directory.is_dir():
        raise StorageError(f"{run_dir} holds no checkpoint of update {int(name):,}; hpcrl inspect lists those it has")
    return directory


def _of_checkpoint(directory: Path) -> Agent:
    found = read_manifest(directory)
    if fault := find_fault(found):
        raise StorageError(f"{directory} is damaged: {fault}")
    return _agent(from_dict(found.attributes["config"]), found)


def _agent(config: Config, checkpoint: Checkpoint) -> Agent:
    size = num_parameters(config)
    params = load_shard(checkpoint, 0, size, size)["params"]
    return Agent(config, params, checkpoint.global_update, str(checkpoint.path))


def save_weights(agent: Agent, path: Path) -> None:
    """Write an agent into one HDF5 file of its own, see docs/hdf5.md.

    Raises
    ------
    StorageError
        The file exists, or cannot be written.
    """
    attributes = {
        "config": agent.config.model_dump(mode="json"),
        "global_update": agent.global_update,
        "origin": agent.origin,
    }
    write_state(path, "weights", agent.weights(), attributes)


def _of_weights(path: Path) -> Agent:
    weights, attributes = read_state(path, "weights")
    try:
        config, update = from_dict(attributes["config"]), int(attributes["global_update"])
    except (KeyError, TypeError, ValueError) as error:
        raise StorageError(f"{path}: expected weights with their configuration, got none: {error}") from error
    network = new_network(config)
    expected = {name: tuple(value.shape) for name, value in network.named_parameters()}
    found = {name: value.shape for name, value in weights.items()}
    if found != expected:
        raise StorageError(f"{path}: expected the weights {expected}, found {found}")
    params = np.concatenate([weights[name].astype(np.float32, copy=False).reshape(-1) for name in expected])
    return Agent(config, params, update, str(path))
