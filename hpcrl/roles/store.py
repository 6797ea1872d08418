"""Central parameters that learners overwrite in turn (Accelerated Methods, section 4.3 and appendix B).

The server ranks hold parameters and moments in chunks, each with a lock. A learner computes a gradient with its own
copy, then goes from chunk to chunk as they are free: reads parameters and moments, applies the rule on its own device,
overwrites. What it has written are its new parameters, so that each push is also a pull.

A holder that stops for ever keeps the others from its chunk; they wait for ``run.stall_seconds`` and then end the job.
"""

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from hpcrl.algorithms.multi_step_adam import MultiStepAdam
from hpcrl.algorithms.optimizers import Rule
from hpcrl.errors import StalledError
from hpcrl.networks import Replica
from hpcrl.roles.metrics import Reporter
from hpcrl.roles.replicated import OwnReplica
from hpcrl.roles.updates import APPLIED, DROPPED, NO_DELAY, Fate, follow_target
from hpcrl.transport.parameters import ShardedVector
from hpcrl.transport.store import Block, ChunkStore


def moments_of(rule: Rule) -> tuple[str, ...]:
    """Names of the vectors that a rule keeps beside the parameters, in the order in which they are stored."""
    return tuple(name for name, value in rule.start(torch.zeros(1)).items() if value.ndim)


class StoreUpdate:
    """Applies a learner's gradient to the central parameters, chunk by chunk, and takes the result over.

    Parameters
    ----------
    online : OwnReplica
        The learner's own copy, whose clock this is.
    target : Replica or None
        Follows the targets that the servers make.
    store : ChunkStore
        Parameters, then the moments of ``rule``.
    rule : Rule
        Applied on the device of ``online``; its step count is this learner's own.
    multi_step : MultiStepAdam or None
        With it, gradients are applied to the own copy, and what came of ``sync_period`` of them to the central one.
    sync_period : int
        Own updates between two visits to the central parameters. [updates]
    first : int
        Chunk to begin with, so that learners do not all begin with the same.
    learning_rate : callable
        ``learning_rate(version)``.
    count : callable
        ``count(updates)`` adds to the global updates of the job and returns their sum; called before they are made.
    last_update : int
        The run ends at it; 0 for no end. [updates]
    at_end : callable
        Called then.
    target_period : int
        The servers make a new target whenever a multiple of this is passed. [updates]
    stall_seconds : float
        A chunk that stays locked for so long ends the job.
    labels : sequence of str
        What each rank is called.
    """

    def __init__(
        self,
        online: OwnReplica,
        target: Replica | None,
        *,
        store: ChunkStore,
        rule: Rule,
        multi_step: MultiStepAdam | None,
        sync_period: int,
        first: int,
        learning_rate: Callable[[int], float],
        count: Callable[[int], int],
        last_update: int,
        at_end: Callable[[], None],
        target_period: int,
        stall_seconds: float,
        labels: Sequence[str],
        steps: int = 0,
    ):
        self.online, self.target, self.store, self.rule = online, target, store, rule
        self.multi_step, self.sync_period, self.first = multi_step, sync_period, first
        self.learning_rate, self.count, self.last_update, self.at_end = learning_rate, count, last_update, at_end
        self.target_period, self.stall_seconds, self.labels = target_period, stall_seconds, labels
        self.version = count(0)
        self._moments = moments_of(rule)
        self._step = torch.full((), float(steps))
        self._pending: list[int] = []
        self._known: list[Fate] = []
        online.clock = self
        self._visit(self._take)

    def pull(self, number: int) -> None:
        """Take note of the clock, and take the target if there is a newer one; parameters came with the last push."""
        self.online.pull()
        follow_target(self.online, self.target, self.target_period)

    def give(self, number: int, *, accepted: bool) -> None:
        """Apply the gradient, here or at once to the central parameters; the rest when chunks are free."""
        if not accepted:
            return
        rate = self.learning_rate(self.version)
        if self.multi_step is None:
            self._step += 1
            self._rate = rate
            self._go(self._apply, 1)
            return
        self.multi_step.step(self.online.flat.gradients, rate)
        if self.multi_step.since >= self.sync_period:
            self._go(self._merge, self.multi_step.since)
        else:
            self._known.append((APPLIED, 0))

    def fates(self) -> list[Fate] | None:
        """Known when every chunk is overwritten; the delay is what other learners did meanwhile."""
        if self._pending and not self._cycle():
            return None
        known, self._known = self._known, []
        return known

    # chunks -------------------------------------------------------------------------------------------------------

    def _go(self, change: Callable, updates: int) -> None:
        self._change, self._updates, self._version = change, updates, self.count(updates)
        if self.last_update and self._version - updates >= self.last_update:
            self.count(-updates)  # others have ended the run meanwhile
            self._known.append((DROPPED, NO_DELAY))
            self.at_end()
            return
        chunks = len(self.store.chunks)
        self._pending = [(self.first + i) % chunks for i in range(chunks)]
        self._moved = time.monotonic()
        self._cycle()

    def _cycle(self) -> bool:
        """Try each pending chunk once; whether all are done."""
        pending = [chunk for chunk in self._pending if not self._try(chunk, self._change)]
        if len(pending) < len(self._pending):
            self._moved = time.monotonic()
        elif time.monotonic() - self._moved > self.stall_seconds:
            self._give_up(pending[0])
        self._pending = pending
        if not pending:
            self._done()
        return not pending

    def _done(self) -> None:
        if self.multi_step:
            self.multi_step.begin()
        self._known.append((APPLIED, self._version - self._updates - self.version))
        self.version = self._version
        if self.last_update and self.version >= self.last_update:
            self.at_end()

    def _try(self, chunk: int, change: Callable) -> bool:
        block = self.store.try_acquire(chunk)
        if block is None:
            return False
        self.store.release(chunk, block if change(chunk, block) else None)
        return True

    def _visit(self, change: Callable) -> None:
        """Read every chunk, waiting for those that are locked."""
        began, left = time.monotonic(), list(range(len(self.store.chunks)))
        while left := [chunk for chunk in left if not self._try(chunk, change)]:
            if time.monotonic() - began > self.stall_seconds:
                self._give_up(left[0])
            time.sleep(1e-4)

    def _give_up(self, chunk: int) -> None:
        holder, owner = self.store.holder(chunk), self.store.chunks[chunk].owner
        who = "another rank" if holder is None else self.labels[holder]
        raise StalledError(
            f"chunk {chunk} of the parameters, on {self.labels[owner]}, has been locked by {who} for "
            f"{self.stall_seconds:.0f} s (run.stall_seconds); learning cannot go on without it"
        )

    def _vectors(self, block: Block) -> tuple[torch.Tensor, ...]:
        """The block's vectors on the learner's device."""
        return tuple(torch.from_numpy(row).to(self.online.flat.values.device) for row in block.vectors)

    def _put(self, block: Block, vectors: Sequence[torch.Tensor]) -> bool:
        """Write vectors back into the block that they came from."""
        for row, vector in zip(block.vectors, vectors, strict=True):
            if vector.device.type != "cpu":
                row[:] = vector.cpu().numpy()
        block.count[:] += self._updates
        return True

    def _take(self, chunk: int, block: Block) -> bool:
        _, begin, end = self.store.chunks[chunk]
        values, *moments = self._vectors(block)
        self.online.flat.values[begin:end] = values
        if self.multi_step:
            self.multi_step.take(begin, end, values, *moments)
        return False

    @torch.no_grad()
    def _apply(self, chunk: int, block: Block) -> bool:
        _, begin, end = self.store.chunks[chunk]
        vectors = values, *moments = self._vectors(block)
        # A step count of its own for each chunk: the rule adds 1 to it.
        state = {"step": self._step - 1, **dict(zip(self._moments, moments, strict=True))}
        self.rule.apply(values, self.online.flat.gradients[begin:end], state, self._rate)
        self.online.flat.values[begin:end] = values
        return self._put(block, vectors)

    def _merge(self, chunk: int, block: Block) -> bool:
        _, begin, end = self.store.chunks[chunk]
        vectors = self._vectors(block)
        self.multi_step.merge(begin, end, *vectors)
        return self._put(block, vectors)


class StoreServer:
    """Holds a shard of the central parameters in chunks: makes targets, publishes for those who only read, saves.

    Parameters
    ----------
    store : ChunkStore
    begin, end : int
        The shard.
    rule : Rule
        Whose moments are stored.
    params : ShardedVector or None
        Where the shard is published for ranks that act or evaluate without learning; None where there are none.
    targets : ShardedVector
    target_period : int
        A target is made as soon as a multiple of this is passed. [updates]
    publish_seconds : float
        Least time between two publications of the parameters.
    global_update : callable
        Global updates of the job.
    learning_rate : callable
        ``learning_rate(version)``, for reports.
    """

    kind = "parameter_server"

    def __init__(
        self,
        index: int,
        *,
        store: ChunkStore,
        begin: int,
        end: int,
        initial: np.ndarray,
        rule: Rule,
        params: ShardedVector | None,
        targets: ShardedVector,
        target_period: int,
        publish_seconds: float,
        global_update: Callable[[], int],
        learning_rate: Callable[[int], float],
        reporter: Reporter,
    ):
        self.index, self.store, self.begin, self.end, self.rule = index, store, begin, end, rule
        self.params, self.targets, self.target_period = params, targets, target_period
        self.publish_seconds, self.global_update = publish_seconds, global_update
        self._learning_rate, self.reporter = learning_rate, reporter
        self._names = moments_of(rule)
        self.version = self.target_version = 0
        self.target = initial.copy()
        self.dropped = self.staleness_sum = 0
        self._published = self._target_published = -1
        self._next = 0.0
        start = rule.start(torch.zeros(end - begin))
        self._overwrite(initial, {name: start[name].numpy() for name in self._names})

    @property
    def accepted(self) -> int:
        """Updates so far."""
        return self.version

    @property
    def optimizer(self) -> "StoreServer":
        """What reports ask for rates."""
        return self

    @property
    def learning_rate(self) -> float:
        """Rate of the next update."""
        return self._learning_rate(self.version)

    def effective_rate(self) -> float:
        """The same: no rule here has another."""
        return self.learning_rate

    def step(self) -> bool:
        """See whether a target is due, or a publication."""
        self.reporter.server(self)
        self.version = version = self.global_update()
        if version // self.target_period > self.target_version // self.target_period:
            self.target, self.target_version = self._read()[0], version
        self.publish()
        return self.targets.attend()

    def publish(self) -> None:
        """Publish what is newer than the published: the target, and parameters if there are ranks that only read."""
        if self._target_published != self.target_version and self.targets.publish(self.target, self.target_version):
            self._target_published = self.target_version
        now = time.monotonic()
        if self.params and self._published != self.version and now >= self._next:
            self._next = now + self.publish_seconds
            if self.params.publish(self._read()[0], self.version):
                self._published = self.version

    def _own(self) -> list[int]:
        return [i for i in self.store.own() if self.begin <= self.store.chunks[i].begin < self.end]

    def _held(self, chunk: int) -> Block:
        while (block := self.store.try_acquire(chunk)) is None:
            time.sleep(1e-5)
        return block

    def _read(self) -> np.ndarray:
        """float32 ``[vectors, n]``: copies of the shard and its moments."""
        whole = np.empty((self.store.vectors, self.end - self.begin), np.float32)
        for chunk in self._own():
            _, begin, end = self.store.chunks[chunk]
            block = self._held(chunk)
            whole[:, begin - self.begin : end - self.begin] = block.vectors
            self.store.release(chunk, None)
        return whole

    def _overwrite(self, values: np.ndarray, moments: Mapping[str, np.ndarray]) -> None:
        rows = [values, *(moments[name] for name in self._names)]
        for chunk in self._own():
            _, begin, end = self.store.chunks[chunk]
            block = self._held(chunk)
            for mine, row in zip(block.vectors, rows, strict=True):
                mine[:] = row[begin - self.begin : end - self.begin]
            self.store.release(chunk, block)

    def state(self) -> dict[str, np.ndarray]:
        """Everything that a checkpoint must hold of this shard; copies, each chunk at its own moment."""
        self.version = self.global_update()
        values, *moments = self._read()
        steps = {"step": np.float32(self.version)} if "step" in self.rule.start(torch.zeros(1)) else {}
        return {
            "params": values,
            "target": self.target.copy(),
            "version": np.int64(self.version),
            "target_version": np.int64(self.target_version),
            "accepted": np.int64(self.version),
            "dropped": np.int64(self.dropped),
            "staleness_sum": np.int64(self.staleness_sum),
            **{
                f"optimizer/{name}": value
                for name, value in {**steps, **dict(zip(self._names, moments, strict=True))}.items()
            },
        }

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Put back what :meth:`state` gave, flattened; without moments in it, they begin anew."""
        start = self.rule.start(torch.zeros(self.end - self.begin))
        moments = {name: state.get(f"optimizer/{name}", start[name].numpy()) for name in self._names}
        self._overwrite(np.asarray(state["params"]), moments)
        self.target = np.array(state["target"], np.float32)
        self.version, self.target_version = int(state["version"]), int(state["target_version"])
