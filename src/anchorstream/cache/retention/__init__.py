"""Retention: which tokens stay. `make_retention` is the one place that knows all methods."""

from __future__ import annotations

from anchorstream.cache.retention.base import Retention
from anchorstream.cache.retention.dense import Dense
from anchorstream.cache.retention.recompute import Recompute
from anchorstream.cache.retention.streaming import Streaming
from anchorstream.cache.retention.window import Window
from anchorstream.config import StreamConfig

__all__ = ["Retention", "make_retention"]


def make_retention(config: StreamConfig) -> Retention:
    """The retention that `config` asks for."""
    if config.method == "dense":
        return Dense()
    if config.method == "window":
        return Window(config.cache_size)
    if config.method == "recompute":
        return Recompute(config.cache_size)
    return Streaming(config.num_anchors, config.window, whole_turns=config.whole_turns)
