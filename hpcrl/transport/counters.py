"""Named int64 counters on one rank, and taking turns by ticket."""

from collections.abc import Sequence

from mpi4py import MPI

from hpcrl.transport.protocol import WORD, Add, Fetch, Replace, round_up
from hpcrl.transport.window import Window


class Counters:
    """int64 words on rank ``owner`` that every rank adds to, sets and reads atomically. Collective.

    Parameters
    ----------
    comm : MPI.Intracomm
        All ranks.
    owner : int
        Rank that holds the words; it should do nothing but serve.
    names : sequence of str
        The words. All start at zero.
    window : str
        Name of the window, for messages.
    """

    def __init__(
        self,
        comm: MPI.Intracomm,
        *,
        owner: int,
        names: Sequence[str],
        window: str = "counters",
        flavour: str = "allocate",
    ):
        self.owner = owner
        self.offsets = {name: i * WORD for i, name in enumerate(names)}
        nbytes = round_up(len(names) * WORD) if comm.rank == owner else 0
        self.window = Window(comm, nbytes, name=window, flavour=flavour)

    def get(self, name: str) -> int:
        """Value of a counter."""
        return self.window.word(Fetch(self.offsets[name]), self.owner)

    def set(self, name: str, value: int) -> None:
        """Set a counter."""
        self.window.word(Replace(self.offsets[name], value), self.owner)

    def add(self, name: str, value: int) -> int:
        """Add to a counter and return its value after the addition."""
        return self.window.word(Add(self.offsets[name], value), self.owner) + value

    def free(self) -> None:
        """Free the window; collective."""
        self.window.free()


class Turn:
    """Taking turns by ticket: the holder acts, then passes on. Deterministic and slow; for debugging and tests."""

    def __init__(self, counters: Counters, *, position: int, parties: int):
        self.counters, self.position, self.parties = counters, position, parties

    def mine(self) -> bool:
        """Whether it is this party's turn."""
        return self.counters.get("ticket") % self.parties == self.position

    def pass_on(self) -> None:
        """Let the next party act."""
        self.counters.add("ticket", 1)
