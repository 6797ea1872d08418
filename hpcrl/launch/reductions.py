"""How gradients of synchronous learners are summed: what each rank needs for it, made together."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from mpi4py import MPI

from hpcrl.errors import MachineError
from hpcrl.roles.reduction import MpiReduction, NodeReduction
from hpcrl.transport.collectives import Collectives, NodeCollectives, SumsUnderWay
from hpcrl.transport.waiting import wait_for_all

RENDEZVOUS_DIRECTORY = "/dev/shm"
SHARE_OF_STALL = 0.8
"""Of ``run.stall_seconds``, after which a rank says whom it waits for: before its watchdog, which cannot know."""


def make_reduction(
    everyone: Collectives,
    nodes: Sequence[int],
    *,
    backend: str,
    compressed: bool,
    overlapped: bool,
    device: str,
    size: int,
    labels: Sequence[str],
    stall_seconds: float,
    keep: Callable,
) -> MpiReduction:
    """How gradients are summed; collective over all learners.

    Parameters
    ----------
    everyone
        Of all learners.
    nodes
        Node of each learner.
    backend
        As ``learner.reduce``.
    compressed
        Whether gradients are rounded to bfloat16.
    overlapped
        Whether sums are begun while a gradient is computed; ``mpi`` then sums over all learners alike.
    device
        Of this learner.
    size
        Length of the gradient.
    labels
        What each learner is called.
    stall_seconds
        A learner that stops for so long ends the job.
    keep
        ``keep(resource)`` frees it at the end, and returns it.

    Raises
    ------
    MachineError
        NCCL cannot be used, or MPI's sums not begun.
    """
    on_gpu, comm = device != "cpu", everyone.comm
    if backend == "auto":
        backend = "nccl" if on_gpu else "mpi"
    if backend == "mpi":
        if overlapped:
            if on_gpu:
                raise MachineError(
                    "learner.reduce_overlap: expected false with learner.reduce 'mpi' on a GPU, whose gradients are "
                    "summed in host memory, got true"
                )
            return keep(MpiReduction(everyone, sums=keep(SumsUnderWay(comm))))
        if not compressed and len(set(nodes)) < len(nodes):
            patience = SHARE_OF_STALL * stall_seconds
            shared = {"node": nodes[comm.rank], "size": size, "patience_seconds": patience, "labels": labels}
            everyone = keep(NodeCollectives(comm, **shared))
        return keep(MpiReduction(everyone, compressed))
    node_comm = comm.Split(nodes[comm.rank], comm.rank)
    if backend == "nccl":
        _check_nccl(comm, node_comm, device)
    leaders_comm = comm.Split(0 if node_comm.rank == 0 else MPI.UNDEFINED, comm.rank)
    leaders = keep(Collectives(leaders_comm)) if leaders_comm != MPI.COMM_NULL else None
    # Between ranks of one node: not over whatever address the host's name resolves to, if it does.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with _rendezvous(node_comm) as store:
        reduction = NodeReduction(
            leaders,
            compressed,
            store=store,
            rank=node_comm.rank,
            size=node_comm.size,
            nodes=len(set(nodes)),
            backend=backend,
            device=device,
        )
    node_comm.Free()
    return keep(reduction)


def _check_nccl(comm: MPI.Intracomm, node_comm: MPI.Intracomm, device: str) -> None:
    """Whether every learner has a GPU that it can use with NCCL, and that no other has; collective."""
    usable = device != "cpu" and torch.distributed.is_nccl_available()
    without = [rank for rank, ok in enumerate(comm.allgather(usable)) if not ok]
    if without:
        raise MachineError(
            "learner.reduce: expected 'auto', 'mpi' or 'gloo', because NCCL needs a GPU for each learner and a torch "
            f"with CUDA, and rank {without[0]} has not both, got 'nccl'"
        )
    # Ranks that see one GPU each all call it cuda:0: only its own identity tells.
    gpus = node_comm.allgather(str(torch.cuda.get_device_properties(device).uuid))
    shared = comm.allreduce(len(gpus) - len(set(gpus)), MPI.MAX)
    if shared:
        raise MachineError(
            "learner.reduce: expected a GPU of its own for each learner, which NCCL needs, got two learners on one: "
            "start no more ranks per node than it has GPUs, or set learner.reduce to 'mpi'"
        )


@contextmanager
def _rendezvous(node_comm: MPI.Intracomm) -> Iterator[str]:
    """A file in the node's memory in which its ranks meet: no port is fixed, and other jobs do not see it."""
    path = None
    if node_comm.rank == 0:
        handle, path = tempfile.mkstemp(prefix="hpcrl-rendezvous-", dir=RENDEZVOUS_DIRECTORY)  # mode 0600
        os.close(handle)
    try:
        yield node_comm.bcast(path)
        wait_for_all(node_comm)
    finally:
        if path:
            os.unlink(path)
