"""Marks: places of a stream to come back to, kept by reference to its banks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from anchorstream.engine.base import Cache
from anchorstream.errors import InputError
from anchorstream.stream.history import TokenHistory


@dataclass(frozen=True, slots=True)
class State:
    """All that changes as a stream goes on."""

    cache: Cache
    length: int
    turns: tuple[int, ...]
    history: TokenHistory
    logits: np.ndarray | None

    def copy(self) -> State:
        """A copy that may change."""
        return State(self.cache.fork(), self.length, self.turns, self.history.copy(), self.logits)


class Mark:
    """A place in a stream. Costs what its unsealed bank takes, and the evicted banks that it keeps alive.

    A pool that needs the bytes evicts marks, oldest first; such a mark is not `alive`, and rewinding to it is refused.
    """

    def __init__(self, stream: object, state: State, on_drop: Callable[[Mark], None]) -> None:
        self._stream = stream
        self._state: State | None = state
        self._on_drop = on_drop
        self.length = state.length

    @property
    def alive(self) -> bool:
        """Whether one can still come back to it."""
        return self._state is not None

    @property
    def nbytes(self) -> int:
        """Bytes that would be free without it."""
        return self._state.cache.unshared_bytes if self._state else 0

    def evict(self) -> None:
        """Called by the pool when it needs the bytes."""
        self._state = None

    def drop(self) -> None:
        """Give it up."""
        if self._state is not None:
            self._state = None
            self._on_drop(self)

    def state_for(self, stream: object) -> State:
        """The state to go back to.

        Raises:
            InputError: a mark of another stream, or one that was dropped or evicted.
        """
        if self._stream is not stream:
            raise InputError("the mark belongs to another stream")
        if self._state is None:
            raise InputError(f"the mark at {self.length} is gone: it was dropped, or the pool needed its memory")
        return self._state
