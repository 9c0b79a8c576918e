"""The plan of one forward pass: pure integers, shared by all layers.

The retention makes it, the attention kernel obeys it, and the picture of the live cache is drawn from it, so that
mask and eviction cannot disagree. A plan knows nothing of bytes, heads or models.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from anchorstream.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What each of the n tokens of one forward pass sees.

    The token of index t attends to anchors `0 .. anchors_seen - 1`, to the window tokens of index
    `first_seen .. t - 1`, and to itself. Its position is its slot: `anchors + (t - first_cached)`, so that
    evicted tokens leave no gap, and a band that hides cached tokens moves no position.

    Attributes:
        indices: int64 (n,), each token's index in the stream; consecutive.
        slots: int64 (n,), each token's slot.
        anchors_seen: int32 (n,), how many anchors each token sees, itself not counted.
        first_cached: int64 (n,), index of the oldest window token in the cache when this token is computed.
        first_seen: int64 (n,), index of the oldest window token that it sees (`first_cached` cut by its band).
        num_anchors: tokens of index below this are stored as anchors, all others in the window.
        evict_before: window tokens of index below this are seen by no later token.
        refeed: how many tokens at the beginning of this pass were fed before and are computed afresh; if not 0 the
            cache is emptied before the pass (`recompute`), and indices count from the refed beginning.
        bias: float32 (anchors + window tokens,), added to the scores of each cached token: anchors first, then the
            window from `first_cached[0]` to the last token of this pass; or None.
    """

    indices: np.ndarray
    slots: np.ndarray
    anchors_seen: np.ndarray
    first_cached: np.ndarray
    first_seen: np.ndarray
    num_anchors: int
    evict_before: int
    refeed: int = 0
    bias: np.ndarray | None = None

    @property
    def count(self) -> int:
        """n: how many tokens the pass computes."""
        return len(self.indices)

    @property
    def seen_by_last(self) -> int:
        """How many tokens the last one sees, itself included."""
        last = int(self.indices[-1])
        if last < self.num_anchors:
            return last + 1
        return int(self.anchors_seen[-1]) + last - int(self.first_seen[-1]) + 1

    @property
    def num_keys(self) -> int:
        """Length that a bias must have: the anchors stored after the pass and the window from `first_cached[0]`."""
        end = int(self.indices[-1]) + 1
        return min(end, self.num_anchors) + max(0, end - max(int(self.first_cached[0]), self.num_anchors))

    def with_bands(self, bands: np.ndarray | int) -> Plan:
        """The same plan with token i seeing at most `bands[i]` slots back within the window.

        Args:
            bands: int (n,) or one int for all, each at least 0; anchors and the token itself are always seen.
        """
        first = np.maximum(self.first_cached, self.indices - np.asarray(bands, np.int64))
        return replace(self, first_seen=np.minimum(first, np.maximum(self.indices, self.first_cached)))

    def with_bias(self, bias: np.ndarray) -> Plan:
        """The same plan with an additive bias per cached token, float32 (num_keys,)."""
        bias = np.ascontiguousarray(bias, np.float32)
        if bias.shape != (self.num_keys,):
            raise ConfigError(f"bias must have shape ({self.num_keys},): one per cached token, not {bias.shape}")
        return replace(self, bias=bias)
