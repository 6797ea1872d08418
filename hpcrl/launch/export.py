"""``hpcrl export``: a run's tables, network or replay memories in the formats of other programs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from hpcrl.envs import env_spec
from hpcrl.errors import ConfigError, StorageError
from hpcrl.launch.agents import Agent, load_agent, newest_checkpoint, save_weights
from hpcrl.storage.offline import write_minari


def to_state_dict(agent: Agent, path: Path) -> None:
    """PyTorch's own format, of tensors alone: ``torch.load(path, weights_only=True)``."""
    with _writing(path) as stream:
        torch.save({name: torch.from_numpy(value) for name, value in agent.weights().items()}, stream)


def to_onnx(agent: Agent, path: Path) -> None:
    """The network as a graph from ``observation [batch, stack, ...]`` to its outputs; needs onnx and onnxscript.

    Raises
    ------
    ConfigError
        They are not installed.
    """
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError("export to onnx needs onnx and onnxscript: pip install onnx onnxscript") from error
    spec = env_spec(**agent.config.env.arguments())
    observation = torch.from_numpy(np.zeros((2, spec.stack, *spec.obs_shape), spec.obs_dtype))
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        agent.network().eval(),
        (observation,),
        dynamo=True,
        verbose=False,
        input_names=["observation"],
        dynamic_shapes=({0: batch},),
    )
    with _writing(path) as stream:
        stream.write(program.model_proto.SerializeToString())


def to_minari(run_dir: Path, directory: Path) -> int:
    """The whole episodes in the replay memories of the newest checkpoint; returns how many there are.

    Raises
    ------
    StorageError
        The checkpoint has no replay memories.
    """
    config, checkpoint = newest_checkpoint(run_dir)
    replays = [checkpoint.file(owner) for owner in checkpoint.owners if owner.startswith("replay-")]
    if not replays:
        raise StorageError(f"{checkpoint.path} holds no replay memory (checkpoint.replay = none, or no replay is used)")
    return write_minari(
        directory,
        replays,
        dataset_id=f"hpcrl/{run_dir.resolve().name}-v0",
        num_actions=env_spec(**config.env.arguments()).num_actions,
        about={
            "algorithm_name": config.learning.algorithm,
            "description": f"{config.env.id}: single frames, of which the agent saw {config.env.stack}; raw rewards",
        },
    )


def to_file(run: Path, checkpoint: str, kind: str, output: Path) -> str:
    """Export the network of a run, a checkpoint or a file of weights; what was written."""
    write: Callable[[Agent, Path], None] = {"weights": save_weights, "state_dict": to_state_dict, "onnx": to_onnx}[kind]
    agent = load_agent(run, checkpoint)
    write(agent, output)
    return f"wrote {output}: {len(agent.params):,} parameters of {agent.origin}"


def _writing(path: Path):
    try:
        return open(path, "xb")
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror}; nothing is overwritten, choose another --output"
        ) from error
