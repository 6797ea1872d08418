"""Which rank is on which node, and what each was given there."""

import os
import socket

from mpi4py import MPI

from hpcrl.launch.threads import Place, cores_given, visible_gpus


def places(comm: MPI.Intracomm) -> list[Place]:
    """The place of every rank; collective."""
    node_comm = comm.Split_type(MPI.COMM_TYPE_SHARED)
    leader = node_comm.bcast(comm.rank)
    node_comm.Free()
    affinity = frozenset(os.sched_getaffinity(0))
    mine = (
        leader,
        socket.gethostname(),
        affinity,
        cores_given(affinity, os.environ),
        os.cpu_count() or len(affinity),
        visible_gpus(),
    )
    found = comm.allgather(mine)
    numbers = {leader: number for number, leader in enumerate(sorted({leader for leader, *_ in found}))}
    return [Place(numbers[leader], *rest) for leader, *rest in found]
