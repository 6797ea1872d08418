"""The sum of a flat gradient over all learners: by shared memory, NCCL or gloo inside a node, by MPI between nodes.

MPI moves host memory and NCCL device memory: of a gradient on a GPU only what MPI sums crosses the host, through a
pinned mirror. gloo is there because its code path is NCCL's.
"""

from datetime import timedelta

import numpy as np
import torch
import torch.distributed as dist

from hpcrl.transport.collectives import Collectives, SumsUnderWay

LIMIT = timedelta(hours=1)
"""torch's own limit, far beyond that of the watchdog, which can say more"""


class MpiReduction:
    """The sum of host memory over all learners that :class:`~hpcrl.transport.collectives.Collectives` make.

    Parameters
    ----------
    everyone : Collectives
        Of all learners.
    compressed : bool
        Gradients are rounded to bfloat16 before they are summed: half the traffic.
    sums : SumsUnderWay, optional
        Of all learners; for :meth:`begin`.
    """

    def __init__(self, everyone: Collectives | None, compressed: bool = False, sums: SumsUnderWay | None = None):
        self.everyone, self.compressed, self.sums = everyone, compressed, sums
        self._mirror: torch.Tensor | None = None

    def sum(self, vector: torch.Tensor) -> None:
        """Replace a contiguous float32 ``[n]`` by its sum over all learners. Collective."""
        if self.compressed:
            small = vector.to(torch.bfloat16)
            self._sum(small)
            vector.copy_(small)
        else:
            self._sum(vector)

    def begin(self, own: torch.Tensor, total: torch.Tensor) -> None:
        """Begin to sum ``own`` into ``total``, both contiguous float32 ``[n]``; all ranks, in the same order."""
        self.sums.begin(own.numpy(), total.numpy())

    def done(self) -> bool:
        """Whether nothing that was begun is under way any more."""
        return self.sums.done()

    def finish(self, total: torch.Tensor) -> None:
        """Wait for what was begun; ``total`` is all that it was summed into. Collective."""
        self.sums.wait()

    def _sum(self, vector: torch.Tensor) -> None:
        self._on_host(vector)

    def _on_host(self, vector: torch.Tensor) -> None:
        """Sum by MPI, through a pinned mirror where the vector is on a GPU."""
        if vector.device.type == "cpu":
            self._by_mpi(vector)
            return
        if self._mirror is None:
            self._mirror = torch.empty_like(vector, device="cpu", pin_memory=True)
        self._mirror.copy_(vector)
        self._by_mpi(self._mirror)
        vector.copy_(self._mirror)

    def _by_mpi(self, vector: torch.Tensor) -> None:
        if self.compressed:
            self.everyone.sum_bfloat16(vector.view(torch.int16).numpy().view(np.uint16))
        else:
            self.everyone.sum(vector.numpy())

    def free(self) -> None:
        """Nothing is held."""


class NodeReduction(MpiReduction):
    """Hierarchical: torch.distributed inside each node, MPI between the lowest learners of the nodes, and back.

    Making it is collective over the node.

    Parameters
    ----------
    leaders : Collectives or None
        Of the lowest learner of each node; None on the others.
    store : str
        A file in the node's memory, the same for its learners and nobody else, in which torch lets them meet.
    rank, size : int
        Of this learner, and how many there are, on this node.
    nodes : int
        That have learners.
    backend : {"gloo", "nccl"}
    device : str
        Of the vectors.
    """

    def __init__(
        self,
        leaders: Collectives | None,
        compressed: bool = False,
        *,
        store: str,
        rank: int,
        size: int,
        nodes: int,
        backend: str,
        device: str,
    ):
        super().__init__(leaders, compressed)
        self.nodes = nodes
        self._under_way: list[dist.Work] = []
        dist.init_process_group(
            backend,
            store=dist.FileStore(store, size),
            rank=rank,
            world_size=size,
            timeout=LIMIT,
            device_id=torch.device(device) if backend == "nccl" else None,
        )

    def begin(self, own: torch.Tensor, total: torch.Tensor) -> None:
        """As of any reduction; what is under way is the sum inside the node."""
        self._under_way.append(dist.all_reduce(total.copy_(own), async_op=True))

    def done(self) -> bool:
        """As of any reduction."""
        return all(work.is_completed() for work in self._under_way)

    def finish(self, total: torch.Tensor) -> None:
        """As of any reduction; the nodes sum now."""
        for work in self._under_way:
            work.wait()
        self._under_way.clear()
        self._between_nodes(total)

    def _sum(self, vector: torch.Tensor) -> None:
        dist.all_reduce(vector)
        self._between_nodes(vector)

    def _between_nodes(self, vector: torch.Tensor) -> None:
        if self.nodes == 1:
            return
        if self.everyone is not None:
            self._on_host(vector)
        dist.broadcast(vector, src=0)

    def free(self) -> None:
        """Leave the group; collective over the node."""
        dist.destroy_process_group()
