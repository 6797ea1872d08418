"""The command line. Each command imports what it needs, so that ``--help`` and ``plan --keys`` start at once."""

import contextlib
import os
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules
from typing import Annotated

import typer

from hpcrl.errors import EXIT_FAULT, EXIT_FINISHED, ConfigError, HpcrlError, StorageError

# Tracebacks stay Python's own: on a rank of an MPI job they are printed, with the rank, by the launch code.
app = typer.Typer(
    help="Distributed deep reinforcement learning over MPI.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

LET_RANK_0_SPEAK_SECONDS = 5.0

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="Configuration file (TOML).")]
RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory.")]
RunPaths = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")]
PlayerPath = Annotated[
    str, typer.Argument(metavar="RUN", help="Run, checkpoint, or file of weights; with --random, an environment.")
]
Games = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="An array: such a job for each environment, a line of FILE, and each seed."),
]
Seeds = Annotated[
    str | None, typer.Option(metavar="N,N,...", help="With --array: seeds; default: the configuration's.")
]
Overrides = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key; repeatable.")]


@app.command()
def train(
    config: ConfigPath,
    overrides: Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(help="Run directory, instead of run.dir.")] = None,
) -> None:
    """Train; under mpiexec or srun on all ranks. The same command resumes a stopped run."""
    from hpcrl.launch.signals import stop_on_signals

    stop_request = stop_on_signals()  # first of all, so that a signal at any time ends the run cleanly
    from hpcrl.config import load

    loaded = load(config, [*(overrides or []), *([f"run.dir={run_dir}"] if run_dir else [])])
    from hpcrl.launch import mpi

    mpi.start()
    from hpcrl.launch.train import main as train_main

    sys.exit(train_main(loaded, sys.argv, stop_request))


@app.command()
def plan(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="Configuration file (TOML).")] = None,
    overrides: Overrides = None,
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the job.")] = 1,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the job, filled one after the other.")] = 1,
    ranks_per_node: Annotated[
        str, typer.Option(metavar="N,N,...", help="Ranks of each node, instead of --ranks and --nodes.")
    ] = "",
    cores_per_node: Annotated[int, typer.Option(min=0, help="Cores of a node; 0: as many as here.")] = 0,
    gpus_per_node: Annotated[str, typer.Option(metavar="N[,N...]", help="GPUs of every node, or of each.")] = "0",
    updates_per_second: Annotated[float, typer.Option(min=0, help="Global updates per second to assume.")] = 100.0,
    array: Games = None,
    seeds: Seeds = None,
    like: Annotated[
        Path | None, typer.Option(metavar="RUN", help="With --array: what it will cost at the rates of this run.")
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Costs of your machine: figures of hpcrl bench scale --json FILE."),
    ] = None,
    compute_ms: Annotated[
        float, typer.Option(min=0, help="What a bundle computes for an update [ms]; 0: Nature's network on a core.")
    ] = 0.0,
    latency_us: Annotated[float, typer.Option(min=0, help="Round trip between two nodes [us].")] = 2.0,
    gigabytes_per_second: Annotated[float, typer.Option(min=0.001, help="Of a node's network, each way.")] = 12.5,
    keys: Annotated[bool, typer.Option("--keys", help="List every configuration key instead.")] = False,
) -> None:
    """Print the rank map and what it will need, without MPI and before anything is allocated."""
    if keys:
        _print_keys()
        return
    if config is None:
        raise ConfigError("expected plan CONFIG --ranks N, or plan --keys")
    from hpcrl.config import load

    loaded = load(config, overrides or [])
    from hpcrl.launch import topology
    from hpcrl.launch.planning import numbers, places_of, render

    places = places_of(ranks, nodes, ranks_per_node)
    gpus = numbers("--gpus-per-node", gpus_per_node, of=places[-1] + 1)
    rank_map = topology.plan(
        len(places),
        places,
        **loaded.rank_map(),
        cores_per_node=cores_per_node or os.cpu_count() or 1,
        gpus_per_node=gpus,
    )
    # Shown before the sizes, which need torch for the network and the environment's package.
    typer.echo(topology.describe(rank_map))
    sys.stdout.flush()
    from hpcrl.launch.sizes import forecast_of

    forecast = forecast_of(loaded, rank_map, updates_per_second)
    typer.echo("\n" + render(rank_map, forecast))
    from hpcrl.analysis.scaling import MEASURED, Cluster, read_costs
    from hpcrl.launch.expectation import expectation

    num_nodes, cores = places[-1] + 1, cores_per_node or os.cpu_count() or 1
    cluster = Cluster(num_nodes * cores, num_nodes, 1e-6 * latency_us, 1e9 * gigabytes_per_second)
    measured = read_costs(costs) if costs else MEASURED
    for line in expectation(loaded, rank_map, forecast.num_parameters, cluster, measured, 1e-3 * compute_ms):
        typer.echo(line)
    if not array:
        return
    from hpcrl.launch.array import checked_members, cost_text

    members = checked_members(config, overrides or [], array, seeds, lambda member: forecast_of(member, rank_map))
    typer.echo("\n" + "\n".join(f"{index}: {member}" for index, member in enumerate(members)))
    typer.echo(f"all {len(members)} members are valid")
    if like:
        cores = (places[-1] + 1) * cores_per_node or len(places)
        typer.echo(cost_text(loaded, rank_map, forecast, like, jobs=len(members), cores=cores))


@app.command()
def sbatch(
    config: ConfigPath,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the job.")],
    time_limit: Annotated[str, typer.Option("--time", help="Its time limit, as sbatch takes it: [days-]h:m:s.")],
    overrides: Overrides = None,
    cluster: Annotated[
        Path, typer.Option(metavar="FILE", help="What your cluster has; jobs/cluster.toml is an example.")
    ] = Path("jobs/cluster.toml"),
    partition: Annotated[
        str | None, typer.Option(help="One of the cluster's; default: the first that will do.")
    ] = None,
    array: Games = None,
    seeds: Seeds = None,
    run_dir: Annotated[Path | None, typer.Option(help="Run directory, instead of run.dir.")] = None,
    output: Annotated[Path, typer.Option(help="Script to write; none is overwritten.")] = Path("job.sh"),
) -> None:
    """Write a batch script for Slurm that trains until the end of the run, and say what it asks for, and why."""
    from hpcrl.launch.sbatch import main as sbatch_main

    overrides = [*(overrides or []), *([f"run.dir={run_dir.absolute()}"] if run_dir else [])]
    for line in sbatch_main(
        config,
        overrides,
        nodes=nodes,
        time_limit=time_limit,
        cluster_file=cluster,
        partition=partition,
        games=array,
        seeds=seeds,
        output=output,
    ):
        typer.echo(line)


@app.command()
def doctor(
    step_seconds: Annotated[float, typer.Option(min=1, help="Longest time that one step may take.")] = 60.0,
) -> None:
    """Is this MPI fit for hpcrl, as it is launched here? Alone, or under mpiexec or srun like a training job."""
    from hpcrl.launch.doctor import main as doctor_main

    sys.exit(doctor_main(step_seconds))


@app.command()
def stop(run: RunPath) -> None:
    """Ask a run to stop cleanly: it writes a checkpoint and ends."""
    if not (run / "config.toml").is_file():
        raise StorageError(f"{run}: expected a run directory (with config.toml), got none")
    try:
        (run / "stop").touch()
    except OSError as error:
        raise StorageError(f"{run / 'stop'}: cannot be written: {error.strerror}") from error
    typer.echo(f"asked {run} to stop")


@app.command()
def watch(
    run: RunPath,
    display: Annotated[str, typer.Option(help="auto, rich or plain.")] = "auto",
) -> None:
    """Follow a run by its files, on any machine that sees them: live, ended or killed."""
    if display not in ("auto", "rich", "plain"):
        raise ConfigError(f"expected --display auto, rich or plain, got {display!r}")
    from hpcrl.launch.watch import main as watch_main

    with contextlib.suppress(KeyboardInterrupt):
        watch_main(run, display)


@app.command()
def inspect(
    run: RunPath,
    verify: Annotated[bool, typer.Option(help="Read every checkpoint in full and compare its checksums.")] = True,
) -> None:
    """List the checkpoints and the run log of a run, and say whether they are sound."""
    from rich.console import Console

    from hpcrl.launch.inspect import inspect_run, render

    found = inspect_run(run, verify)
    render(run, found, verify, Console())
    sys.exit(EXIT_FINISHED if found.sound else EXIT_FAULT)


@app.command()
def evaluate(
    agent: PlayerPath,
    checkpoint: Annotated[str, typer.Option(help="Of a run: newest, best, or its global update.")] = "newest",
    protocol: Annotated[
        str, typer.Option(help="own (as in training), noop, human, sticky or saber; see docs/evaluation.md.")
    ] = "own",
    episodes: Annotated[int, typer.Option(min=1, help="Episodes to play.")] = 30,
    epsilon: Annotated[
        float | None, typer.Option(min=0, max=1, help="Probability of a random action; default: the run's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the evaluation.")] = 1,
    starts: Annotated[Path | None, typer.Option(help="Games to begin in, of hpcrl starts; protocol human.")] = None,
    max_frames: Annotated[
        int | None, typer.Option(min=1, help="Emulator frames of an episode, instead of the protocol's.")
    ] = None,
    random: Annotated[bool, typer.Option("--random", help="Play at random instead of with an agent.")] = False,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write every return to this file.")] = None,
) -> None:
    """Play whole episodes with an agent and report the raw return; under mpiexec, spread over the ranks."""
    from hpcrl.launch import evaluate as evaluation

    player = evaluation.random_player(agent) if random else evaluation.trained_player(Path(agent), checkpoint)
    code = evaluation.main(
        player,
        protocol=protocol,
        episodes=episodes,
        epsilon=epsilon,
        seed=seed,
        starts_file=starts,
        max_episode_frames=max_frames,
        output=json,
    )
    sys.exit(code)


starts_app = typer.Typer(help="Games under way, for evaluations to begin in.", no_args_is_help=True)
app.add_typer(starts_app, name="starts")


@starts_app.callback()
def _starts() -> None:
    """Games under way, for evaluations to begin in."""


@starts_app.command("record")
def starts_record(
    agent: PlayerPath,
    output: Annotated[Path, typer.Option(help="File to write (HDF5).")] = Path("starts.h5"),
    count: Annotated[int, typer.Option(min=1, help="Starts to record, each of an episode of its own.")] = 100,
    checkpoint: Annotated[str, typer.Option(help="Of a run: newest, best, or its global update.")] = "newest",
    random: Annotated[bool, typer.Option("--random", help="Play at random instead of with an agent.")] = False,
    epsilon: Annotated[
        float | None, typer.Option(min=0, max=1, help="Probability of a random action; default: the run's own.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the games.")] = 1,
    keyboard: Annotated[
        bool, typer.Option("--keyboard", help="Play yourself, in a window; RUN is an environment.")
    ] = False,
) -> None:
    """Play games and keep moments of them, for hpcrl evaluate --protocol human --starts FILE."""
    from hpcrl.launch import evaluate as evaluation
    from hpcrl.launch.starts import main as record

    alone = random or keyboard
    player = evaluation.random_player(agent) if alone else evaluation.trained_player(Path(agent), checkpoint)
    sys.exit(record(player, output, count=count, epsilon=epsilon, seed=seed, keyboard=keyboard))


@app.command()
def retrace(run: RunPath) -> None:
    """Execute a run that recorded its order (log.apply_order) again, in one process, and compare the parameters."""
    from hpcrl.launch.retrace import main as retrace_main

    sys.exit(retrace_main(run))


@app.command()
def trace(
    run: RunPath,
    output: Annotated[Path, typer.Option(help="File to write (JSON).")] = Path("trace.json"),
) -> None:
    """What every rank of a run that was traced (log.trace) did when, for ui.perfetto.dev; and shares of the time."""
    from hpcrl.analysis.trace import transport_share, write_trace

    for rank, shares in write_trace(run, output).items():
        transport = transport_share(shares)
        typer.echo(
            f"{rank}: "
            + ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
            + ("" if transport is None else f"; all but simulate, infer and gradient {100 * transport:.1f} %")
        )
    typer.echo(f"wrote {output}")


@app.command()
def plot(
    runs: RunPaths,
    output: Annotated[Path, typer.Option(help="File to write: .png or .svg.")] = Path("curves.png"),
    along: Annotated[str, typer.Option(help="frames, hours or updates.")] = "frames",
    quantity: Annotated[str, typer.Option(help="return, or a column of the table progress.")] = "return",
    stretch: Annotated[
        float | None, typer.Option(help="Frames, seconds or updates that a point is a mean over; default: 100 points.")
    ] = None,
    seeds: Annotated[bool, typer.Option(help="Runs that differ in their seed alone become one curve.")] = True,
) -> None:
    """Draw the learning curves of runs, beside published ones where game and protocol are the same."""
    _need("matplotlib", "hpcrl plot", "analysis")
    from hpcrl.analysis import curves, load

    if stretch is not None and stretch <= 0:
        raise ConfigError(f"expected --stretch to be more than 0, got {stretch:g}")
    if output.suffix not in (".png", ".svg"):
        raise ConfigError(f"expected --output FILE.png or FILE.svg, got {output}")
    loaded = [load(run) for run in runs]
    for line in curves.plot(loaded, output, stretch=stretch, along=along, quantity=quantity, seeds=seeds):
        typer.echo(line)
    typer.echo(f"wrote {output}")


@app.command()
def report(
    runs: RunPaths,
    output: Annotated[Path, typer.Option(help="File to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None, typer.Option(metavar="DIRECTORY", help="Also write every figure here, as PNG and SVG.")
    ] = None,
) -> None:
    """Make one self-contained HTML page of runs: curves, scores, speed, delays, differences of their configurations."""
    from hpcrl.analysis import load
    from hpcrl.analysis.report import write_report

    if figures:
        _need("matplotlib", "hpcrl report --figures", "analysis")
    write_report([load(run) for run in runs], output, figures)
    typer.echo(f"wrote {output}" + (f" and the figures in {figures}" if figures else ""))


EXPORTS = {
    **{"csv": "_csv", "parquet": "_parquet", "tensorboard": "_tensorboard", "minari": "_minari"},
    **{"weights": ".h5", "state_dict": ".pt", "onnx": ".onnx"},
}
"""Formats, and how the name of what is written ends; names without a dot are of directories."""


@app.command()
def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run; of its network, also a checkpoint or weights.")],
    to: Annotated[str, typer.Option(help=", ".join(EXPORTS) + ".")],
    output: Annotated[Path | None, typer.Option(help="What to write; default: named after the run, here.")] = None,
    checkpoint: Annotated[str, typer.Option(help="Of its network: newest, best, or a global update.")] = "newest",
) -> None:
    """Write a run's tables, network or replay memory in the format of another program; nothing is overwritten."""
    if to not in EXPORTS:
        raise ConfigError(f"expected --to {', '.join(EXPORTS)}, got {to!r}")
    output = output or Path(f"{run.resolve().stem}{EXPORTS[to]}")
    if to in ("csv", "parquet", "tensorboard"):
        from hpcrl.analysis import export as exports
        from hpcrl.analysis import load

        written = getattr(exports, f"to_{to}")(load(run), output)
        typer.echo("\n".join(f"wrote {path}" for path in written) or f"{run} has logged nothing yet: nothing written")
    elif to == "minari":
        from hpcrl.launch.export import to_minari

        typer.echo(f"wrote {output}: {to_minari(run, output)} whole episodes")
    else:
        from hpcrl.launch.export import to_file

        typer.echo(to_file(run, checkpoint, to, output))


@app.command()
def record(
    agent: Annotated[Path, typer.Argument(metavar="RUN", help="Run, checkpoint, or file of weights.")],
    output: Annotated[Path, typer.Option(help="File to write: .mp4 or .gif.")] = Path("episode.mp4"),
    checkpoint: Annotated[str, typer.Option(help="Of a run: newest, best, or its global update.")] = "newest",
    protocol: Annotated[str, typer.Option(help="own (as in training), noop, sticky or saber.")] = "own",
    epsilon: Annotated[float, typer.Option(min=0, max=1, help="Probability of a random action.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the episode.")] = 1,
    max_steps: Annotated[int, typer.Option(min=1, help="Longest film.")] = 5000,
    fps: Annotated[float, typer.Option(min=1, help="Steps per second of the film.")] = 15.0,
) -> None:
    """Film one episode, with the values of the actions, or their probabilities, beside each frame."""
    from hpcrl.launch.agents import load_agent
    from hpcrl.launch.record import record as film

    how = {"protocol": protocol, "epsilon": epsilon, "seed": seed, "max_steps": max_steps, "frames_per_second": fps}
    steps, points = film(load_agent(agent, checkpoint), output, **how)
    typer.echo(f"wrote {output}: {steps:,} steps, {points:g} points")


@app.command()
def bench(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Benchmark, or all; a wrong name lists those present.")],
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the figures to this file.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="As short as it can be, to see that it works.")] = False,
    baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Figures of an earlier run; fails where ratios have fallen.")
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0, max=1, help="Part by which a ratio may fall.")] = 0.1,
) -> None:
    """Run one of the benchmarks, or all of them."""
    package = find_spec("hpcrl.bench")
    modules = iter_modules(package.submodule_search_locations) if package else ()
    present = sorted(module.name for module in modules if not module.name.startswith("_"))
    if name not in present:
        raise ConfigError(f"expected a benchmark ({', '.join(present) or 'none is installed'}), got {name!r}")
    from importlib import import_module

    from hpcrl.bench import fallen, read_json

    before = read_json(baseline) if baseline else []
    with tempfile.TemporaryDirectory(prefix="hpcrl-bench-") as tmp:
        figures = json or Path(tmp) / "rows.json"
        import_module(f"hpcrl.bench.{name}").run(figures, quick=quick)
        lower = fallen(read_json(figures), before, tolerance)
    for line in lower:
        typer.echo(f"fallen: {line}")
    if baseline:
        typer.echo(f"{len(lower)} ratios have fallen by more than {100 * tolerance:g} % since {baseline}")
    sys.exit(EXIT_FAULT if lower else EXIT_FINISHED)


def main() -> None:
    """Entry point of the console script; a deliberate error ends in one message and its own exit code."""
    _let_threads_sleep()
    try:
        app(prog_name="hpcrl")
    except HpcrlError as error:
        from hpcrl.launch.launcher import launcher_rank

        message, rank = str(error), launcher_rank(os.environ)
        # Every rank finds the same fault of a configuration: one rank tells all of it, the others one line.
        if rank not in (None, "0"):
            message = f"rank {rank}: {message.splitlines()[0]}"
            # A launcher may end the other ranks as soon as one has failed: let rank 0 have its say first.
            time.sleep(LET_RANK_0_SPEAK_SECONDS)
        print(f"hpcrl: error: {message}", file=sys.stderr)
        sys.exit(error.exit_code)


def _let_threads_sleep() -> None:
    """Let torch's threads, which are not made yet, look for further work 5,000 times only before they sleep.

    By themselves (GNU's OpenMP) they look 300,000 times, milliseconds after each pass of a network, on cores that
    simulators need by then. With fewer looks they sleep between the layers of a pass, too (docs/speed.md).
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def _need(package: str, command: str, extra: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(f"{command} needs {package}: pip install {package} (hpcrl's extra `{extra}`)")


def _print_keys() -> None:
    from hpcrl.config import keys, toml_value

    section = ""
    for key in keys():
        if (name := key.name.partition(".")[0]) != section:
            section = name
            typer.echo(f"\n[{section}]" if section != "run" else f"[{section}]")
        typer.echo(f"{key.name} = {toml_value(key.default)}  ({key.type})\n    {key.description}")
