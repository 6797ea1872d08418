"""A lock for a chunk of a window that several ranks read, change and overwrite in turn.

The lock is a word that is swapped: who gets ``FREE`` back has it. Nobody queues: an attempt ends at once, with the lock
or without, so that a rank can try another chunk, or back off. A holder that stops for ever keeps the others out of its
chunk; the second word tells who that is.

Words are touched by ``Replace`` and ``Fetch`` alone, which MPI lets concur without any further promise.
"""

from dataclasses import dataclass

from hpcrl.transport.protocol import WORD, Fetch, Program, Replace

FREE, HELD = 0, 1
NOBODY = 0


@dataclass(frozen=True)
class LockLayout:
    """Where the words of a lock lie; ``start`` is its first byte in the window of the chunk's owner."""

    start: int

    @property
    def word(self) -> int:
        """Word that is `FREE` or `HELD`; swapped by everyone."""
        return self.start

    @property
    def holder(self) -> int:
        """Word with the holder's number plus 1, or `NOBODY`; written by the holder alone, for reports."""
        return self.start + WORD


def try_acquire(layout: LockLayout, me: int) -> Program:
    """Try to get the lock; the result is whether ``me`` now holds it."""
    # A look first: swapping the word of a held lock changes nothing, but takes the cache line from its holder.
    if (yield Fetch(layout.word)) == HELD:
        return False
    if (yield Replace(layout.word, HELD)) == HELD:
        return False
    yield Replace(layout.holder, me + 1)
    return True


def release(layout: LockLayout) -> Program:
    """Give the lock back; what was written to the chunk must be complete before."""
    yield Replace(layout.holder, NOBODY)
    yield Replace(layout.word, FREE)
