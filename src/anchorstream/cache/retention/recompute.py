"""recompute: a sliding window whose keys and values are computed afresh for every token. Slow; the yardstick."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from anchorstream.cache.plan import Plan
from anchorstream.cache.retention.base import banded


class Recompute:
    """Attends to the last `cache_size` tokens and itself, all computed anew from their ids; positions are slots.

    While the cache fills this is dense attention. Afterwards each new token costs a pass over `cache_size + 1` tokens.
    """

    def __init__(self, cache_size: int) -> None:
        self._size = cache_size

    def limit(self, start: int) -> int | None:
        return max(1, self._size + 1 - start)

    def plan(self, start: int, count: int, turns: Sequence[int] = ()) -> Plan:
        if start + count <= self._size + 1:
            return banded(start, count, anchors=0, window=None)
        assert count == 1, "past the cache, recompute feeds one token a pass"
        return replace(banded(0, self._size + 1, anchors=0, window=None), refeed=self._size)

    def cached(self, length: int, turns: Sequence[int] = ()) -> np.ndarray:
        return np.arange(max(0, length - self._size), length, dtype=np.int64)
