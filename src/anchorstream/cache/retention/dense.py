"""dense: every token stays. Memory and time grow with the stream; beyond the trained context quality fails."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstream.cache.plan import Plan
from anchorstream.cache.retention.base import banded


class Dense:
    """Attends to tokens 0 .. t; positions are indices."""

    def limit(self, start: int) -> int | None:
        return None

    def plan(self, start: int, count: int, turns: Sequence[int] = ()) -> Plan:
        return banded(start, count, anchors=0, window=None)

    def cached(self, length: int, turns: Sequence[int] = ()) -> np.ndarray:
        return np.arange(length, dtype=np.int64)
