"""The retention protocol: which tokens stay. Pure integers; no bytes, no models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from anchorstream.cache.plan import Plan


class Retention(Protocol):
    """Decides for each token which earlier tokens it sees. One small file a method."""

    def limit(self, start: int) -> int | None:
        """How many tokens one pass may feed to a stream that has consumed `start`; None: any number."""
        ...

    def plan(self, start: int, count: int, turns: Sequence[int] = ()) -> Plan:
        """The plan for feeding `count` tokens to a stream that has consumed `start`.

        Args:
            start: tokens consumed so far, at least 0.
            count: tokens to feed, at least 1 and at most `limit(start)`.
            turns: indices at which turns begin, ascending; those before the window may be missing.
        """
        ...

    def cached(self, length: int, turns: Sequence[int] = ()) -> np.ndarray:
        """Indices held for the next token of a stream that has consumed `length`, anchors first, int64."""
        ...


def banded(start: int, count: int, *, anchors: int, window: int | None, firsts: np.ndarray | None = None) -> Plan:
    """The plan of every method whose cache is `anchors` first tokens and the last `window` tokens (None: all).

    Args:
        firsts: int64 (count + 1,), where the window begins for each token and for the one after the pass, if a
            method moves it further than the last `window` tokens.
    """
    indices = np.arange(start, start + count, dtype=np.int64)
    if firsts is None:
        firsts = window_beginnings(start, count, anchors, window)
    first_cached = firsts[:-1]
    slots = np.where(indices < anchors, indices, anchors + indices - first_cached)
    return Plan(
        indices=indices,
        slots=slots,
        anchors_seen=np.minimum(indices, anchors).astype(np.int32),
        first_cached=first_cached,
        first_seen=first_cached,
        num_anchors=anchors,
        evict_before=int(firsts[-1]),
    )


def window_beginnings(start: int, count: int, anchors: int, window: int | None) -> np.ndarray:
    """Index of the oldest window token for tokens start .. start + count (one more than fed), int64 (count + 1,)."""
    if window is None:
        return np.full(count + 1, anchors, np.int64)
    return np.maximum(np.arange(start - window, start - window + count + 1, dtype=np.int64), anchors)
