"""The token ids that a stream still needs: all of them for a dense stream, the last ones for an endless stream."""

from __future__ import annotations

import numpy as np


class TokenHistory:
    """A tail of token ids at constant memory.

    Args:
        keep: how many of the last ids are kept at least; None: all.
    """

    def __init__(self, keep: int | None) -> None:
        self._keep = keep
        self._ids = np.empty(1024 if keep is None else 2 * keep + 1, np.int32)
        self._held = 0

    def append(self, ids: np.ndarray) -> None:
        """Add ids, int32 (n,)."""
        if self._keep is not None:
            ids = ids[-self._keep :]
            if self._held + len(ids) > len(self._ids):
                tail = self._ids[self._held - self._keep : self._held].copy()
                self._ids[: self._keep] = tail
                self._held = self._keep
        elif self._held + len(ids) > len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty(self._held + len(ids), np.int32)])
        self._ids[self._held : self._held + len(ids)] = ids
        self._held += len(ids)

    def last(self, count: int) -> np.ndarray:
        """The last `count` ids, or as many as are held; int32, a view."""
        return self._ids[max(0, self._held - count) : self._held]

    def copy(self) -> TokenHistory:
        """A copy that grows on its own."""
        other = TokenHistory(self._keep)
        other._ids = self._ids.copy()
        other._held = self._held
        return other
