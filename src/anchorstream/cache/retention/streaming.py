"""streaming: anchors and a rolling window (StreamingLLM, Xiao et al., arXiv 2309.17453)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from anchorstream.cache.plan import Plan
from anchorstream.cache.retention.base import banded, window_beginnings


class Streaming:
    """Attends to the first `anchors` tokens, the last `window` tokens and itself; positions are slots.

    With `whole_turns` the window of a token begins at the oldest turn that fits whole, unless that would leave less
    than half of the window: a template cut in the middle of a turn confuses a chat model. Where the window begins is
    a function of the token's index and of the turns before it, never of how the input was cut into passes.
    """

    def __init__(self, anchors: int, window: int, *, whole_turns: bool = False) -> None:
        self._anchors = anchors
        self._window = window
        self._whole_turns = whole_turns

    def limit(self, start: int) -> int | None:
        return None

    def plan(self, start: int, count: int, turns: Sequence[int] = ()) -> Plan:
        firsts = window_beginnings(start, count, self._anchors, self._window)
        if self._whole_turns and len(turns):
            firsts = self._at_turns(firsts, np.arange(start, start + count + 1), np.asarray(turns, np.int64))
        return banded(start, count, anchors=self._anchors, window=self._window, firsts=firsts)

    def _at_turns(self, firsts: np.ndarray, indices: np.ndarray, turns: np.ndarray) -> np.ndarray:
        """Move each window's beginning to the next turn's beginning, where half of the window remains."""
        if firsts[-1] == self._anchors:
            return firsts  # nothing has left yet
        places = np.searchsorted(turns, firsts)
        nearest = np.append(turns, np.iinfo(np.int64).max)[places]
        fits = (nearest <= indices - (self._window + 1) // 2) & (firsts > self._anchors)
        return np.where(fits, nearest, firsts)

    def cached(self, length: int, turns: Sequence[int] = ()) -> np.ndarray:
        first = self.plan(length, 1, turns).first_cached[0]
        anchors = np.arange(min(length, self._anchors), dtype=np.int64)
        return np.concatenate([anchors, np.arange(first, length, dtype=np.int64)])
