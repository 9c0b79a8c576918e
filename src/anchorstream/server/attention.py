"""Where streams look, sampled: how far back, and how evenly over their anchors. docs/metrics.md defines the figures."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from anchorstream.server.metrics import Metrics
from anchorstream.stream.stream import Stream

_EVERY = 512  # tokens of all streams together between two samples: each costs about four tokens' time
_BANDS = (16, 64, 256, 1024)
_WEIGHT = 0.1  # of the newest sample
_ENOUGH = 0.95  # of the window's attention, for its utilisation


class AttentionSampler:
    """Says which token is to be sampled, and keeps running averages."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._left = _EVERY
        self._average: dict[str, float] = {}
        self._entropies: WeakKeyDictionary[Stream, tuple[int, float]] = WeakKeyDictionary()

    def due(self) -> bool:
        """Count a token; whether it is the one to look at."""
        self._left -= 1
        if self._left > 0:
            return False
        self._left = _EVERY
        return True

    def saw(self, stream: Stream, attention: np.ndarray) -> None:
        """Take note of a sample.

        Args:
            stream: whose token it was.
            attention: float32 (seen,), over its anchors, its window and itself.
        """
        anchors = min(stream.config.num_anchors, len(attention) - 1)
        mass = shares(attention, anchors)
        for band, share in mass.items():
            self._metrics.band.labels(band).set(self._mean(f"band {band}", share))
        self._metrics.band_use.set(self._mean("use", utilisation(attention, anchors)))
        if anchors < 2:
            return
        bits = entropy(attention[:anchors])
        self._metrics.entropy.set(self._mean("entropy", bits))
        length = stream.length
        before, was = self._entropies.get(stream, (length, bits))
        if length > before:
            self._metrics.entropy_change.set(self._mean("change", abs(bits - was) / (length - before) * 1000))
        self._entropies[stream] = (length, bits)

    def _mean(self, name: str, value: float) -> float:
        old = self._average.get(name, value)
        self._average[name] = new = old + _WEIGHT * (value - old)
        return new


def shares(attention: np.ndarray, anchors: int) -> dict[str, float]:
    """Attention by distance in tokens: of the anchors, of the token itself, of bands of the window."""
    window = attention[anchors:-1][::-1].astype(np.float64)  # nearest first
    found = {"anchors": float(attention[:anchors].sum()), "self": float(attention[-1])}
    low = 0
    for high in _BANDS:
        found[f"{low + 1}-{high}"] = float(window[low:high].sum())
        low = high
    found[f">{low}"] = float(window[low:].sum())
    return found


def utilisation(attention: np.ndarray, anchors: int) -> float:
    """Share of the window, from the nearest token back, that holds 95 % of its attention."""
    window = attention[anchors:-1][::-1].astype(np.float64)
    total = window.sum()
    if not total > 0:
        return 0.0
    return float(np.searchsorted(np.cumsum(window), _ENOUGH * total) + 1) / len(window)


def entropy(weights: np.ndarray) -> float:
    """Shannon entropy of weights, normalised to 1, in bits."""
    p = weights.astype(np.float64)
    p = p[p > 0] / p.sum()
    return float(-(p * np.log2(p)).sum())
