"""window: the last C tokens, no sinks. What breaks when the first token leaves (StreamingLLM, figure 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstream.cache.plan import Plan
from anchorstream.cache.retention.base import banded


class Window:
    """Attends to the last `cache_size` tokens and itself; positions are slots."""

    def __init__(self, cache_size: int) -> None:
        self._size = cache_size

    def limit(self, start: int) -> int | None:
        return None

    def plan(self, start: int, count: int, turns: Sequence[int] = ()) -> Plan:
        return banded(start, count, anchors=0, window=self._size)

    def cached(self, length: int, turns: Sequence[int] = ()) -> np.ndarray:
        return np.arange(max(0, length - self._size), length, dtype=np.int64)
