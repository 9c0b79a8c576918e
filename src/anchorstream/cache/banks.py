"""The pool's accounts: what all streams' caches may take together. Counts bytes; the banks themselves are the engine's.

A stream reserves all that it can ever need before it begins, so that a stream that runs never fails for want of memory.
What is not reserved may hold marks, which give way, oldest first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol
from weakref import ref

from anchorstream.errors import OutOfMemoryError

_MARGIN = 64 << 20  # bytes left to the rest of the machine


class Evictable(Protocol):
    """Something that holds bytes which can be given up."""

    @property
    def nbytes(self) -> int:
        """Bytes that would be free without it."""
        ...

    def evict(self) -> None:
        """Give them up."""
        ...


@dataclass(frozen=True, slots=True)
class BankInfo:
    """One bank, for pictures.

    Attributes:
        first: index of its first token.
        tokens: how many it holds.
        anchors: whether they are anchors.
        precision: f16, f32, q8 or q4.
        nbytes: bytes that it takes.
        shared: whether another stream, prefix or mark holds it too.
    """

    first: int
    tokens: int
    anchors: bool
    precision: str
    nbytes: int
    shared: bool


class Pool:
    """Reservations against a limit.

    Args:
        limit: bytes that all caches may take together; None: what the machine has free.
        available: says how many bytes the machine has free now, or None where it cannot tell.
    """

    def __init__(self, limit: int | None, available: Callable[[], int | None]) -> None:
        self._limit = limit
        self._available = available
        self._reserved: dict[int, int] = {}
        self._evictable: list[ref[Evictable]] = []  # oldest first; whoever made them keeps them alive

    @property
    def limit(self) -> int | None:
        """Bytes that all caches may take together, or None."""
        return self._limit

    @property
    def reserved(self) -> int:
        """Bytes that open streams may come to need."""
        return sum(self._reserved.values())

    @property
    def held_by_marks(self) -> int:
        """Bytes that marks alone keep."""
        return sum(each.nbytes for each in self._alive())

    def reserve(self, owner: int, nbytes: int) -> None:
        """Set aside `nbytes` in all for an owner, instead of what was set aside for it before.

        Raises:
            OutOfMemoryError: that does not fit; nothing has changed.
        """
        more = nbytes - self._reserved.get(owner, 0)
        if more > 0:
            self._check(more)
        self._reserved[owner] = nbytes
        if self._limit is not None:
            self._evict_to(self._limit - self.reserved)

    def release(self, owner: int) -> None:
        """Forget an owner."""
        self._reserved.pop(owner, None)

    def keep(self, mark: Evictable) -> None:
        """Let something hold bytes as long as no one needs them."""
        self._evictable = [each for each in self._evictable if each() is not None] + [ref(mark)]
        if self._limit is not None:
            self._evict_to(self._limit - self.reserved)

    def drop(self, mark: Evictable) -> None:
        """Forget something that was kept."""
        self._evictable = [each for each in self._evictable if each() not in (None, mark)]

    def _alive(self) -> list[Evictable]:
        return [mark for each in self._evictable if (mark := each()) is not None]

    def _evict_to(self, allowed: int) -> None:
        """Evict marks, oldest first, until the rest takes no more than `allowed`."""
        while self._evictable and self.held_by_marks > max(0, allowed):
            if (mark := self._evictable.pop(0)()) is not None:
                mark.evict()

    def _check(self, more: int) -> None:
        advice = "a smaller cache_size or a kv_dtype of fewer bits would fit, or close a stream; method 'dense' grows without bound"
        if self._limit is not None and self.reserved + more > self._limit:
            raise OutOfMemoryError(
                f"the pool of {self._limit / 2**20:,.0f} MB cannot hold {more / 2**20:,.1f} MB more beside the "
                f"{self.reserved / 2**20:,.1f} MB that {len(self._reserved)} streams have reserved; {advice}"
            )
        free = self._available()
        if free is not None and more > max(0, free - _MARGIN):
            raise OutOfMemoryError(
                f"a cache of {more / 2**20:,.0f} MB does not fit: {free / 2**20:,.0f} MB are free; {advice}"
            )
