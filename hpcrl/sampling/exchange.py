"""Steps of simulators that run on other ranks of the node: actions go one way, what followed comes the other.

A learner's rank chooses the actions of all simulators of its crew: central inference in the manner of SEED RL (Espeholt
et al. 2020) and GA3C (Babaeizadeh et al. 2017), without a fork and without sockets. Simulator ranks write observations
into memory of the node, from which the network reads whole batches where they lie.

The simulators of one group on one rank are a *share*. A share has two counts that one side each moves:

======  ==============================================  =====================================================
step    learner's rank                                  simulator rank
======  ==============================================  =====================================================
1       store the actions of the share                  see ``asked`` ahead of ``done``
2       ``asked += 1``                                  load the actions, step, store what followed
3       see ``done`` equal to ``asked``                 ``done += 1``
4       load what followed
======  ==============================================  =====================================================

What followed step ``n`` is in half ``n % 2`` of the memory, so that it stays as it is while the next step is made.
"""

from typing import Protocol

import numpy as np

from hpcrl.sampling.carving import bytes_of, carve
from hpcrl.types import EnvSpec, EnvStep


class Memory(Protocol):
    """Memory that all ranks of a node see, as :class:`hpcrl.transport.shared.NodeMemory`."""

    array: np.ndarray
    """uint8"""

    def get(self, words: range) -> np.ndarray:
        """int64 values of atomic words, read after all earlier loads and before all later ones."""

    def add_to_each(self, words: np.ndarray, value: int) -> np.ndarray:
        """Add to words."""

    def show(self) -> None:
        """Let others see what this rank stored."""


class Exchange:
    """The memory between a learner's rank and its ``K`` simulator ranks, in ``G`` groups of ``E / G`` simulators.

    Simulators are numbered group by group, and in a group rank by rank.

    Parameters
    ----------
    memory : Memory
        With :meth:`nbytes` bytes and :meth:`words` words, zero at the start.
    spec : EnvSpec
    simulators : int
        ``E``, a multiple of ``K x G``.
    ranks, groups : int
        ``K`` and ``G``.
    action_shape, action_dtype
        Of one action.
    """

    def __init__(
        self,
        memory: Memory,
        spec: EnvSpec,
        *,
        simulators: int,
        ranks: int,
        groups: int,
        action_shape: tuple[int, ...],
        action_dtype: np.dtype | type,
    ):
        self.memory, self.spec, self.simulators, self.ranks, self.groups = memory, spec, simulators, ranks, groups
        self.share_size = simulators // (ranks * groups)
        self.done = np.zeros(ranks * groups, np.int64)
        """steps of each share, by rank and group, when they were last looked at"""
        arrays = carve(memory.array, _fields(spec, simulators, action_shape, action_dtype))
        self.action, self.observation, self.final_frame, self.reward = arrays[:4]
        self.terminated, self.truncated, self.episode_over, self.reset = arrays[4:]

    @staticmethod
    def nbytes(spec: EnvSpec, simulators: int, action_shape: tuple[int, ...], action_dtype: np.dtype | type) -> int:
        """Bytes that the arrays take."""
        return bytes_of(_fields(spec, simulators, action_shape, action_dtype))

    @staticmethod
    def words(ranks: int, groups: int) -> int:
        """Atomic words that the counts take: ``asked`` and ``done`` of each share, those of a rank side by side."""
        return 2 * ranks * groups

    def share(self, rank: int, group: int) -> slice:
        """The simulators of a share."""
        begin = (group * self.ranks + rank) * self.share_size
        return slice(begin, begin + self.share_size)

    def word(self, rank: int, group: int, *, done: bool) -> int:
        """The word with a share's count of steps asked for, or done."""
        return (done * self.ranks + rank) * self.groups + group

    def group(self, group: int) -> "RemoteSimulators":
        """The simulators of a group, on all ranks, as a vector environment for the learner's rank."""
        return RemoteSimulators(self, [(rank, group) for rank in range(self.ranks)])

    def shares(self) -> list["RemoteSimulators"]:
        """Each share by itself, likewise."""
        return [RemoteSimulators(self, [(rank, group)]) for group in range(self.groups) for rank in range(self.ranks)]

    def look(self) -> None:
        """See which shares have stepped."""
        self.done = self.memory.get(range(self.ranks * self.groups, 2 * self.ranks * self.groups))

    # simulator rank -----------------------------------------------------------------------------------------------

    def asked(self, rank: int) -> np.ndarray:
        """int64 ``[G]``: steps that were asked for of each share of a rank."""
        first = self.word(rank, 0, done=False)
        return self.memory.get(range(first, first + self.groups))

    def begin(self, rank: int, group: int, observation: np.ndarray) -> None:
        """Store what a share's simulators are first acted upon; seen by the others after a barrier."""
        self.observation[0, self.share(rank, group)] = observation
        self.memory.show()

    def answer(self, rank: int, group: int, number: int, step: EnvStep, observation: np.ndarray) -> None:
        """Store what followed step ``number`` of a share, counted from 1, and say that it is done."""
        half, of = number % 2, self.share(rank, group)
        self.observation[half, of] = observation
        self.reward[half, of], self.reset[half, of] = step.reward, step.reset
        self.terminated[half, of], self.truncated[half, of] = step.terminated, step.truncated
        self.episode_over[half, of] = step.episode_over
        if step.episode_over.any():
            self.final_frame[half, of] = step.final_frame
        self.memory.show()
        self.memory.add_to_each(np.array([self.word(rank, group, done=True)]), 1)


class RemoteSimulators:
    """Simulators of several shares that are stepped together, as the learner's rank has them.

    The members are those of `hpcrl.envs.VectorEnv`, with ``send`` and ``receive`` and, as they run on other ranks,
    :meth:`look` and :attr:`ready`. What was handed out of one step is overwritten in the one after the next.
    """

    def __init__(self, exchange: Exchange, shares: list[tuple[int, int]]):
        self.exchange, self.spec = exchange, exchange.spec
        slices = [exchange.share(*share) for share in shares]
        self.of = slice(slices[0].start, slices[-1].stop)
        self.num_envs = self.of.stop - self.of.start
        self._asked = np.array([exchange.word(*share, done=False) for share in shares])
        self._shares = np.array([rank * exchange.groups + group for rank, group in shares])
        self._number = 0

    @property
    def observation(self) -> np.ndarray:
        """obs_dtype ``[E, stack, *obs_shape]``: what to act upon; valid until the step after the next."""
        return self.exchange.observation[self._number % 2, self.of]

    def send(self, actions: np.ndarray) -> None:
        """Ask for a step."""
        self.exchange.action[self.of] = actions
        self.exchange.memory.show()
        self.exchange.memory.add_to_each(self._asked, 1)

    def look(self) -> None:
        """See what is ready, of all simulators of the exchange."""
        self.exchange.look()

    @property
    def ready(self) -> bool:
        """Whether the step that was asked for was done at the last look, so that it can be received."""
        return bool((self.exchange.done[self._shares] > self._number).all())

    def receive(self) -> EnvStep:
        """What came of the step, which must be `ready`; valid until the step after the next."""
        self._number += 1
        exchange, half = self.exchange, self._number % 2
        over, observation = exchange.episode_over[half, self.of], self.observation
        frame = final_frame = observation[:, -1]
        if over.any():
            final_frame = np.where(_like(over, frame), exchange.final_frame[half, self.of], frame)
        return EnvStep(
            frame,
            exchange.reward[half, self.of],
            exchange.terminated[half, self.of],
            exchange.truncated[half, self.of],
            over,
            exchange.reset[half, self.of],
            final_frame,
        )


def _fields(spec: EnvSpec, simulators: int, action_shape: tuple[int, ...], action_dtype) -> list[tuple]:
    """Shape and dtype of each array: actions, then in two halves observation, final frame, reward and four marks."""
    each = 2, simulators
    return [
        ((simulators, *action_shape), action_dtype),
        ((*each, spec.stack, *spec.obs_shape), spec.obs_dtype),
        ((*each, *spec.obs_shape), spec.obs_dtype),
        (each, np.float32),
        *[(each, bool)] * 4,
    ]


def _like(mask: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """A mask of rows that can be laid over frames."""
    return mask.reshape(-1, *[1] * (frame.ndim - 1))
