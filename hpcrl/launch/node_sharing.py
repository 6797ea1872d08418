"""What the ranks of a node share with each other, so that less crosses the network."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mpi4py import MPI

from hpcrl.transport.node_sum import NodeSum
from hpcrl.transport.node_vector import PATIENCE_SECONDS, NodeVector
from hpcrl.transport.parameters import ShardedVector

if TYPE_CHECKING:
    from hpcrl.launch.job import Job


def shared_on_node(job: "Job", vector: ShardedVector, readers: Sequence[int]) -> ShardedVector | NodeVector:
    """A vector as this rank reads it: with the other readers of its node, if it comes from elsewhere. Collective."""
    nodes = [rank.node for rank in job.plan.ranks]
    if len(set(nodes)) == 1:
        return vector
    here = nodes[job.comm.rank]
    together = sum(nodes[rank] == here for rank in readers) > 1 and job.comm.rank in readers
    local = {shard for shard, owner in enumerate(vector.owners) if nodes[owner] == here}
    together &= len(local) < len(vector.owners)
    node_comm = job.comm.Split(here if together else MPI.UNDEFINED, job.comm.rank)
    if not together:
        return vector
    return job.keep(NodeVector(vector, node_comm, local=local, max_requests=job.config.server.max_requests_in_flight))


def make_node_sum(job: "Job") -> NodeSum | None:
    """The sum of the gradients of this rank's node; None where it has no other learner. Collective."""
    here = job.rank_plan.node
    mates = [rank for rank in job.learners if job.plan.ranks[rank].node == here]
    together = job.comm.rank in mates and len(mates) > 1
    node_comm = job.comm.Split(here if together else MPI.UNDEFINED, job.comm.rank)
    if not together:
        return None
    size, shards = job.bounds[-1], len(job.servers)
    return job.keep(NodeSum(node_comm, size=size, shards=shards, patience_seconds=PATIENCE_SECONDS))
