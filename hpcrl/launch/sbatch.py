"""A batch script for a configuration and a cluster: how much of which partition, and why."""

import math
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcrl.config import Config, load
from hpcrl.errors import ConfigError, TopologyError
from hpcrl.launch.array import Member, checked_members
from hpcrl.launch.cluster import Cluster, Partition, read_cluster
from hpcrl.launch.sizes import forecast_of
from hpcrl.launch.topology import Plan, plan

MEMORY_MARGIN = 1.25
"""So much more memory is asked for than the forecast says."""
GPU_BYTES = 4e9
"""Memory of the host that CUDA's libraries take on a rank with a GPU, which the forecast does not count."""
WARNING_SECONDS = 300
"""How long before its end Slurm warns a job; no more than a tenth of its time."""
MOST_CORES = 16
"""of a rank: simulators and a learner on a CPU gain little from more."""
SCRIPT_LIBRARY = Path(__file__).parents[2] / "jobs" / "slurm.sh"

SCRIPT = """\
#!/usr/bin/env bash
# {title}
#
{why}
#
#SBATCH --job-name={name}
#SBATCH --partition={partition}
#SBATCH --nodes={nodes}
#SBATCH --ntasks={ranks}
#SBATCH --ntasks-per-node={ranks_per_node}
#SBATCH --cpus-per-task={cores_per_rank}
#SBATCH --mem={memory_gb}G
#SBATCH --time={time}
{options}
# Warn this script (B:) before the end, in case that the run does not know when that is:
#SBATCH --signal=B:USR1@{warning_seconds}
# Queue the job again when a node fails or another job takes its place, and go on in the same output file:
#SBATCH --requeue
#SBATCH --open-mode=append
set -euo pipefail
cd "${{SLURM_SUBMIT_DIR:-.}}"
{setup}export HPCRL_SRUN_MPI=${{HPCRL_SRUN_MPI:-{mpi}}} HPCRL_VENV=${{HPCRL_VENV:-{environment}}}
# shellcheck source=/dev/null
source {library}
enter_environment
{body}"""

RUN_BODY = """
train_and_requeue {run_dir} {arguments}
"""

ARRAY_BODY = """
members=(
{members}
)
read -r game seed <<<"${{members[SLURM_ARRAY_TASK_ID]}}"
echo "member $SLURM_ARRAY_TASK_ID: $game, seed $seed"
train_and_requeue {run_dir}/"${{game//\\//-}}/seed-$seed" {arguments} --set "env.id=$game" --set "run.seed=$seed"
"""


class Choice(NamedTuple):
    """What a job asks for."""

    partition: str
    nodes: int
    ranks: int
    ranks_per_node: int
    """on the fullest node"""
    cores_per_rank: int
    gpus_per_node: int
    memory_gb: int
    """of a node"""
    rank_map: Plan
    reasons: tuple[str, ...]


def seconds_of(text: str) -> int:
    """Seconds of a time limit as ``sbatch --time`` takes it: minutes, or [days-]hours:minutes:seconds.

    Raises
    ------
    ConfigError
        It is none.
    """
    found = re.fullmatch(r"(?:(?P<days>\d+)-)?(?P<rest>\d+(?::\d+){0,2})", text)
    if not found:
        raise ConfigError(f"--time: expected minutes, or [days-]hours:minutes:seconds, got {text!r}")
    parts = [int(part) for part in found["rest"].split(":")]
    if found["days"]:
        parts = [int(found["days"]) * 24 + parts[0], *parts[1:], 0, 0][:3]
    else:
        parts = {1: [0, *parts, 0], 2: [0, *parts], 3: parts}[len(parts)]
    hours, minutes, seconds = parts
    if not (total := 3600 * hours + 60 * minutes + seconds):
        raise ConfigError(f"--time: expected more than 0, got {text!r}")
    return total


def main(
    config_file: Path,
    overrides: Sequence[str],
    *,
    nodes: int,
    time_limit: str,
    cluster_file: Path,
    partition: str | None,
    games: Path | None,
    seeds: str | None,
    output: Path,
) -> list[str]:
    """Write the batch script ``output`` and return what is to be told of it.

    Raises
    ------
    ConfigError
        The script exists, or one of the arguments is wrong.
    """
    if output.exists():
        raise ConfigError(f"{output} exists: give another --output, or remove it")
    if not SCRIPT_LIBRARY.exists():
        raise ConfigError(f"expected hpcrl installed in place (pip install -e), as scripts need {SCRIPT_LIBRARY}")
    config, cluster = load(config_file, overrides), read_cluster(cluster_file)
    choice = choose(
        config,
        cluster,
        nodes=nodes,
        seconds=seconds_of(time_limit),
        partition=partition,
        memory_of=lambda rank_map: _fullest_node(config, rank_map),
    )
    array = []
    if games:
        array = checked_members(config_file, overrides, games, seeds, lambda each: forecast_of(each, choice.rank_map))
    text = write_script(
        choice,
        config,
        cluster,
        time=time_limit,
        arguments=[str(config_file.resolve()), *(word for text in overrides for word in ("--set", text))],
        run_dir=config.run.dir.absolute(),
        environment=sys.prefix,
        array=array,
    )
    output.write_text(text)
    listed = [f"{index}: {member}" for index, member in enumerate(array)]
    return [*choice.reasons, *listed, f"wrote {output}; submit it with: sbatch {output}"]


def _fullest_node(config: Config, rank_map: Plan) -> float:
    """Bytes that the node of a plan which needs most needs."""
    nodes = forecast_of(config, rank_map).nodes
    on_gpus = [sum(rank.node == node.node and rank.device != "cpu" for rank in rank_map.ranks) for node in nodes]
    return max(node.memory_bytes + GPU_BYTES * ranks for node, ranks in zip(nodes, on_gpus, strict=True))


def choose(
    config: Config,
    cluster: Cluster,
    *,
    nodes: int,
    seconds: int,
    partition: str | None,
    memory_of: Callable[[Plan], float],
) -> Choice:
    """Divide a configuration over the nodes of a partition.

    Parameters
    ----------
    config, cluster
    nodes
        Nodes of the job.
    seconds
        Its time limit.
    partition
        Name of the one to use; None: the first that has so many nodes for so long, with GPUs if they would be used.
    memory_of
        Bytes that the fullest node of a plan needs.

    Raises
    ------
    ConfigError
        No partition will do, or its nodes have too little memory.
    TopologyError
        The configuration cannot be divided over so many ranks.
    """
    name, reason = _partition(config, cluster, nodes, seconds, partition)
    chosen = cluster.partitions[name]
    ranks, most, ranks_reason = _ranks(config, chosen, nodes)
    reasons = [reason, ranks_reason]
    per_node, crew = most, 1 + config.topology.simulator_ranks
    while True:
        rank_map = _plan(config, chosen, ranks or per_node * nodes, nodes)
        needed_gb = MEMORY_MARGIN * memory_of(rank_map) / 1e9
        if needed_gb <= chosen.memory_gb:
            break
        if ranks or per_node <= crew:
            raise ConfigError(
                f"partition {name}: expected nodes of {needed_gb:,.0f} GB, for {_count(per_node, 'rank')} on each, got "
                f"{chosen.memory_gb:g} GB: take more --nodes, or lower replay.capacity_steps"
            )
        fitting = math.floor(per_node * chosen.memory_gb / needed_gb)
        per_node = max(crew, min(per_node - crew, fitting // crew * crew))
    if per_node < most:
        reasons.append(f"{per_node} ranks on a node instead of {most}: no more fit into its {chosen.memory_gb:g} GB")
    memory_gb = min(math.ceil(needed_gb), math.floor(chosen.memory_gb))
    reasons.append(f"{memory_gb} GB of memory on each node: {MEMORY_MARGIN:g} times the forecast of the fullest")
    cores = 1 if config.network.kind == "mlp" else min(chosen.cores // per_node, MOST_CORES)
    gpus = chosen.gpus if any(rank.device != "cpu" for rank in rank_map.ranks) else 0
    return Choice(name, nodes, len(rank_map.ranks), per_node, cores, gpus, memory_gb, rank_map, tuple(reasons))


def _partition(config: Config, cluster: Cluster, nodes: int, seconds: int, wanted: str | None) -> tuple[str, str]:
    """Name of the partition, and why it."""
    if wanted and wanted not in cluster.partitions:
        raise ConfigError(f"--partition: expected {' or '.join(cluster.partitions)}, got {wanted!r}")
    refused, fitting, fixed = [], [], _fixed_ranks(config)
    for name, each in cluster.partitions.items() if not wanted else [(wanted, cluster.partitions[wanted])]:
        if nodes > each.nodes:
            refused.append(f"{name}: at most {_count(each.nodes, 'node')} for a job, got --nodes {nodes}")
        elif seconds > 3600 * each.hours:
            refused.append(f"{name}: at most {each.hours:g} h, got --time {seconds / 3600:g} h")
        elif fixed > nodes * each.cores:
            refused.append(f"{name}: {nodes} x {each.cores} cores, got a configuration of {fixed} ranks")
        else:
            fitting.append(name)
    if not fitting:
        raise ConfigError("no partition will do: " + "; ".join(refused))
    if wanted:
        return wanted, f"partition {wanted}, as asked"
    gains = _gains_from_gpus(config)
    alike = [name for name in fitting if bool(cluster.partitions[name].gpus) == gains]
    what = "learners would use GPUs" if gains else "nothing would gain from GPUs"
    return (alike or fitting)[0], "; not ".join([f"partition {(alike or fitting)[0]}: {what}", *refused])


def _gains_from_gpus(config: Config) -> bool:
    """Whether GPUs are worth asking for: for few learners with networks of pictures, not for a bundle on each core."""
    return config.network.kind != "mlp" and config.topology.layout != "bundled"


def _ranks(config: Config, chosen: Partition, nodes: int) -> tuple[int, int, str]:
    """Ranks of the job (0: as many as fit on each node), most of them on a node, and why."""
    if fixed := _fixed_ranks(config):
        if fixed < nodes:
            raise TopologyError(
                f"expected at most a node for each of the {_count(fixed, 'rank')} that the configuration names, got "
                f"--nodes {nodes}"
            )
        return fixed, -(-fixed // nodes), f"{_count(fixed, 'rank')}, as the configuration names every count"
    crew, what = 1 + config.topology.simulator_ranks, "a rank"
    if crew > 1:
        what = f"a learner and its {_count(crew - 1, 'simulator rank')}"
    if chosen.gpus and config.topology.layout == "sampler_learner":
        return 0, crew * chosen.gpus, f"{what} for each of the {_count(chosen.gpus, 'GPU')} of a node"
    if crew > 1:
        return 0, crew * (chosen.cores // crew), f"{what}, as often as the {chosen.cores} cores of a node allow"
    return 0, chosen.cores, f"a rank for each of the {chosen.cores} cores of a node"


def _fixed_ranks(config: Config) -> int:
    """Ranks that the configuration needs exactly; 0 where one kind of role takes all that are left."""
    topology = config.topology
    if topology.layout == "serial":
        return 1
    filling = topology.actors if topology.layout == "split" else topology.bundles * (1 + topology.simulator_ranks)
    if not filling or config.learning.update == "allreduce":
        return filling
    learners = topology.learners if topology.layout == "split" else 0
    return topology.servers + learners + filling + topology.evaluators + (topology.monitor == "own")


def _plan(config: Config, chosen: Partition, ranks: int, nodes: int) -> Plan:
    return plan(
        ranks,
        [rank * nodes // ranks for rank in range(ranks)],
        **config.rank_map(),
        cores_per_node=chosen.cores,
        gpus_per_node=chosen.gpus,
    )


def write_script(
    choice: Choice,
    config: Config,
    cluster: Cluster,
    *,
    time: str,
    arguments: Sequence[str],
    run_dir: Path,
    environment: str,
    array: Sequence[Member] = (),
) -> str:
    """The text of a batch script.

    Parameters
    ----------
    choice, config, cluster
    time
        Its time limit.
    arguments
        Of ``hpcrl train``: the configuration, and what is to be set.
    run_dir
        Of the run; of an array, of all runs.
    environment
        The Python environment that hpcrl is installed in.
    array
        Members of an array job.
    """
    options = [f"--gpus-per-node={choice.gpus_per_node}"] if choice.gpus_per_node else []
    options += [f"--array=0-{len(array) - 1}", "--output=%x-%A_%a.out"] if array else ["--output=%x-%j.out"]
    options += cluster.partitions[choice.partition].options
    words = {"run_dir": shlex.quote(str(run_dir)), "arguments": shlex.join(arguments)}
    listed = "\n".join(f'    "{member.game} {member.seed}" # {index}' for index, member in enumerate(array))
    return SCRIPT.format(
        **choice._asdict(),
        title=f"{arguments[0]} on {_count(choice.nodes, 'node')}, written by hpcrl sbatch.",
        why="\n".join(f"# - {reason}" for reason in choice.reasons),
        name=config.run.name,
        time=time,
        warning_seconds=max(1, min(WARNING_SECONDS, seconds_of(time) // 10)),
        options="\n".join(f"#SBATCH {option}" for option in options),
        setup="".join(f"{command}\n" for command in cluster.setup),
        mpi=cluster.mpi,
        environment=shlex.quote(environment),
        library=shlex.quote(str(SCRIPT_LIBRARY)),
        body=ARRAY_BODY.format(members=listed, **words) if array else RUN_BODY.format(**words),
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
