"""``hpcrl train``: from the command line to the loop, and out again."""

import contextlib
import ctypes
import logging
import os
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from hpcrl import logs
from hpcrl.config import Config, to_toml
from hpcrl.config.sections import RunConfig, expand_path
from hpcrl.errors import EXIT_FAULT, ConfigError, HpcrlError, StorageError
from hpcrl.launch.deadline import seconds_left
from hpcrl.launch.launcher import check_world_size, end_lingering_launcher
from hpcrl.launch.leaving import ABORT_DELAY_SECONDS, leave
from hpcrl.launch.memory_limits import check_memory, held_bytes, memory_limits, shared_memory_limit
from hpcrl.launch.mpi import settings_made
from hpcrl.launch.nodes import places
from hpcrl.launch.signals import StopRequest, ignore_signals
from hpcrl.launch.stacks import identify
from hpcrl.launch.threads import Place, crowded, limit_threads, pin
from hpcrl.launch.topology import Plan, plan
from hpcrl.transport.waiting import Backoff, wait_for_all

log = logging.getLogger(__name__)

STAGGERED_RANKS = 5
"""So many ranks wait each a second longer than the one before: the lowest that sees a stall says so for all."""
CREW_SLEEP_SECONDS = 1e-4
"""Longest sleep of a learner and of its simulator ranks, which wait for each other at every step."""


def main(config: Config, command_line: Sequence[str], stop_request: StopRequest) -> int:
    """Train, or go on training, as ``config`` says; returns the exit code of this rank.

    A mistake that every rank finds by itself before anything is shared ends the job quietly with one message. Any
    other exception, also in a background thread, ends the whole job at once with its traceback.
    """
    comm = MPI.COMM_WORLD
    place, events = f"rank {comm.rank}", config.run.dir / "events.log"
    held = ExitStack()
    try:
        try:
            check_world_size(comm.size, identify(MPI.Get_library_version()), os.environ)
            seconds_left(os.environ, time.time())  # raises where they make no sense
            found = places(comm)
            rank_map = make_plan(found, config)
            pinned = pin(rank_map, found, comm.rank) if config.topology.pin_simulators else ""
            _on_all(comm, lambda: limit_threads(rank_map.ranks[comm.rank].threads, os.environ))
            _keep_freed_memory()
            _ask_for_large_pages()
            _on_all(comm, lambda: _check_needs(config, rank_map, found[comm.rank]))
            for text in crowded(found) if comm.rank == 0 else ():
                print(f"hpcrl: warning: {text}: give each rank cores of its own, or bind none", file=sys.stderr)
            checkpoint = _open_run_directory(comm, config, rank_map, held)
            scratch_dir = _share_scratch(comm, config.run, found[comm.rank], held)
        except HpcrlError as error:
            held.close()
            if comm.rank == 0:
                print(f"hpcrl: error: {error}", file=sys.stderr)
            return error.exit_code
        place = _place(rank_map, comm.rank)
        threading.excepthook = lambda args: _abort(comm, f"{place}, thread {args.thread.name}", args.exc_value, events)
        with held:
            told = " ".join(command_line), events, stop_request, pinned
            return _train(comm, config, rank_map, checkpoint, scratch_dir, *told)
    except BaseException as error:  # whatever it is, the other ranks must not wait for this one
        _abort(comm, place, error, events)
        raise


def _place(rank_map: Plan, rank: int) -> str:
    return f"rank {rank} ({', '.join(map(str, rank_map.roles_of(rank)))})"


def _on_all(comm: MPI.Intracomm, do: Callable[[], Any]) -> Any:
    """Run ``do()`` on every rank; an :class:`HpcrlError` on any of them is raised on all. Collective."""
    result = mine = None
    try:
        result = do()
    except HpcrlError as error:
        mine = error
    wait_for_all(comm)  # ranks that arrive first must not spin on the cores of those that still load or read
    for error in comm.allgather(mine):
        if error is not None:
            raise error
    return result


def _check_needs(config: Config, rank_map: Plan, place: Place) -> None:
    """Whether the environment can be made, and this node has room for what the job will allocate."""
    from hpcrl.envs import env_spec  # only now: numpy and torch size their thread pools when imported
    from hpcrl.launch.sizes import forecast_of

    env_spec(**config.env.arguments())
    node = forecast_of(config, rank_map).nodes[place.node]
    shared = shared_memory_limit() if config.server.window_flavour == "allocate" else None
    held = node.ranks * held_bytes()
    check_memory(node, place.host, held, memory_limits(os.environ, held), shared)


def make_plan(found: Sequence[Place], config: Config) -> Plan:
    """The rank map of ranks at these places."""
    cores: dict[int, set[int]] = {place.node: set() for place in found}
    gpus = {place.node: place.gpus for place in found}
    for place in found:
        cores[place.node] |= place.affinity
        gpus[place.node] = min(gpus[place.node], place.gpus)
    arguments = config.rank_map()
    # Small matrices gain nothing from a second thread, and lose much where ranks share cores.
    arguments["learner_threads"] = arguments["learner_threads"] or (1 if config.network.kind == "mlp" else 0)
    return plan(
        len(found),
        [place.node for place in found],
        cores_per_node=[len(cores[node]) for node in sorted(cores)],
        cores_per_rank=[place.cores_given for place in found],
        gpus_per_node=[gpus[node] for node in sorted(gpus)],
        **arguments,
    )


def _keep_freed_memory() -> None:
    """Let glibc reuse the memory of freed tensors instead of giving it back to the kernel.

    A learner frees and allocates the same few megabytes in every update; zeroed anew by the kernel each time, they
    cost tens of thousands of page faults per second (measured: 8 % of a bundle's rate).
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        m_trim_threshold, m_mmap_threshold = -1, -3
        libc.mallopt(m_mmap_threshold, 2**30)
        libc.mallopt(m_trim_threshold, 2**31 - 1)


def _ask_for_large_pages() -> None:
    """Let torch, which is not loaded yet, have tensors of 2 MB and more in large pages, where the kernel gives them to
    those who ask.

    A product with the weights of a wide layer, 3 MB, looks all over them: finding the small pages that they lie in is a
    sixth of the time of a gradient (measured).
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")


def _open_run_directory(comm: MPI.Intracomm, config: Config, rank_map: Plan, held: ExitStack):
    """The checkpoint to go on from, or None; the monitor's rank prepares the directory for all. Collective.

    That rank holds the lock of the directory until ``held`` is closed.
    """
    root = rank_map.ranks_of("monitor")[0]
    checkpoint = _on_all(comm, lambda: _prepare(config, rank_map, held) if comm.rank == root else None)
    return comm.bcast(checkpoint, root)


def _share_scratch(comm: MPI.Intracomm, run: RunConfig, place: Place, held: ExitStack) -> Path | None:
    """The scratch directory of this rank's node, made by one rank there. Collective."""
    if not run.scratch_dir:
        return None
    node = comm.Split(place.node)
    made = _on_all(comm, lambda: make_scratch(run, held) if node.rank == 0 else None)
    shared = node.bcast(made)
    node.Free()
    return shared


def make_scratch(run: RunConfig, held: ExitStack) -> Path:
    """A new directory in ``run.scratch_dir``, which is removed when ``held`` is closed.

    Raises
    ------
    HpcrlError
        A variable in its name is not set here, or it cannot be written.
    """
    try:
        place = Path(expand_path(run.scratch_dir, run.name))
        place.mkdir(parents=True, exist_ok=True)
        own = tempfile.TemporaryDirectory(prefix="hpcrl-", dir=place, ignore_cleanup_errors=True)
    except ValueError as error:
        raise ConfigError(f"run.scratch_dir: expected {error}, got {run.scratch_dir!r}") from error
    except OSError as error:
        raise StorageError(f"run.scratch_dir: cannot write {place}: {error.strerror}; leave it empty?") from error
    return Path(held.enter_context(own))


def _prepare(config: Config, rank_map: Plan, held: ExitStack):
    from hpcrl.launch.resume import find_checkpoint
    from hpcrl.storage import runlock, schema

    run_dir = config.run.dir
    unwritable = f"cannot write the run directory {run_dir}: %s; set run.dir or --run-dir to a place you may write"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(unwritable % error.strerror) from error
    held.callback(runlock.acquire(run_dir).release)
    newest, skipped = find_checkpoint(config, rank_map)
    for path, why in skipped:
        print(f"hpcrl: warning: skipped checkpoint {path}: {why}", file=sys.stderr)
    try:
        (run_dir / schema.STOP_FILE).unlink(missing_ok=True)
        (run_dir / schema.CONFIG_FILE).write_text(to_toml(config))
    except OSError as error:
        raise StorageError(unwritable % error.strerror) from error
    return newest


def _train(
    comm, config: Config, rank_map: Plan, checkpoint, scratch_dir, command_line: str, events, stop_request, pinned: str
) -> int:
    import torch

    from hpcrl.launch import compiling
    from hpcrl.launch.build import make_roles
    from hpcrl.launch.job import Job
    from hpcrl.roles import loop
    from hpcrl.transport.watchdog import Watchdog

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"].split(",")[0]))
    wait_for_all(comm)  # loading torch takes seconds, and longer where ranks share cores
    labels = [f"{_place(rank_map, rank)} on {host}" for rank, host in enumerate(comm.allgather(socket.gethostname()))]
    needed = rank_map.needed(config.run.lock_step)
    end, stall_seconds = partial(_end_job, comm, events), config.run.stall_seconds + min(comm.rank, STAGGERED_RANKS)
    patience = {"start_seconds": compiling.START_SECONDS} if config.learner.compile else {}
    watchdog = Watchdog(comm.rank, stall_seconds, needed=(comm.rank,) in needed, labels=labels, end=end, **patience)
    # Freed at the end and nowhere else: freeing is collective, and after an exception the others would not come.
    resources = ExitStack()
    given = command_line, checkpoint, resources, stop_request, labels, end, scratch_dir
    job = Job(comm, config, rank_map, config.run.dir, *given)
    _log_here(comm, config, rank_map, checkpoint)
    for text in filter(None, (pinned, job.shares and job.shares.text)):
        log.info("%s", text)
    roles = make_roles(job)
    wait_for_all(comm)  # from here on every shard is published
    heartbeat = job.heartbeat(watchdog.beat, stall_seconds)
    is_server = any(role.kind == "parameter_server" for role in roles)
    several_nodes = len({rank.node for rank in rank_map.ranks}) > 1
    longest = CREW_SLEEP_SECONDS if job.exchange else config.server.idle_sleep_seconds if is_server else 1e-3
    idle = Backoff(comm, longest, wakeful=is_server and several_nodes)
    if job.timeline:
        idle.wait = job.timeline.timed("wait", idle.wait)
    loop.run(roles, over=job.stop, beat=heartbeat, backoff=idle, turn=job.turn)
    job.pass_on()
    code = leave(
        comm,
        roles,
        counters=job.counters,
        reporter=job.reporter,
        heartbeat=heartbeat,
        # Simulators of synchronous learners do not come to where these say that they have left.
        uncounted=rank_map.num("simulator") if job.synchronous else 0,
        pass_on=job.pass_on,
    )
    resources.close()
    watchdog.stop()
    ignore_signals()
    return code


def _log_here(comm, config: Config, rank_map: Plan, checkpoint) -> None:
    from hpcrl.launch.resume import what_changed
    from hpcrl.storage import schema

    monitors = comm.rank == rank_map.ranks_of("monitor")[0]
    label = ", ".join(map(str, rank_map.roles_of(comm.rank)))
    logs.configure(comm.rank, label, logging.INFO if monitors else logging.WARNING)
    if monitors:
        run_dir = config.run.dir
        logs.log_to_file(run_dir / schema.EVENTS_FILE)
        what = f"resuming {run_dir} at update {checkpoint.global_update}" if checkpoint else f"new run {run_dir}"
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        if settings_made:
            made = ", ".join(f"{name}={value}" for name, value in settings_made.items())
            log.info("set for this MPI, as you had not: %s", made)
        log.info("%s: %d ranks, %s layout, %s", what, comm.size, rank_map.layout, " ".join(library.split()))
        for line in what_changed(checkpoint, config, rank_map) if checkpoint else ():
            log.info("%s", line)


def _abort(comm, place: str, error: BaseException, events: Path) -> None:
    """Say what happened, where, and end every rank."""
    if isinstance(error, HpcrlError):
        _end_job(comm, events, f"hpcrl: error on {place}: {error}\n", error.exit_code)
    else:
        _end_job(comm, events, f"hpcrl: {place} failed:\n{''.join(traceback.format_exception(error))}", EXIT_FAULT)


def _end_job(comm, events: Path, message: str, code: int) -> None:
    os.write(2, message.encode())
    with contextlib.suppress(OSError), open(events, "a") as file:
        file.write(message)
    end_lingering_launcher(os.environ)
    time.sleep(ABORT_DELAY_SECONDS)
    comm.Abort(code)
