"""Time per token and memory of recompute, dense and streaming at several cache sizes (StreamingLLM, figure 10)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

_DENSE_FACTOR = 4  # dense holds a stream so many times as long as the cache: it has no cache size of its own


@dataclass(frozen=True, slots=True)
class Row:
    """One cache size. Seconds per token, bytes of keys and values."""

    cache_size: int
    streaming: float
    dense: float
    recompute: float
    streaming_bytes: int
    dense_bytes: int

    def facts(self) -> dict[str, float]:
        """For JSON, with the ratios."""
        return {
            **asdict(self),
            "dense_over_streaming": self.dense / self.streaming,
            "recompute_over_streaming": self.recompute / self.streaming,
        }


def measure(
    llm: Any, ids: np.ndarray, cache_sizes: Sequence[int], *, rounds: int = 3, done: Callable[[Row], None] | None = None
) -> list[Row]:
    """One row a cache size; the methods take turns, and each figure is the median of `rounds`.

    Args:
        ids: a text of at least 4 times the largest cache size.
        done: called with each row as it is finished.
    """
    rows = []
    for size in cache_sizes:
        told = ids[: _DENSE_FACTOR * size]
        streaming, dense = llm.stream(cache_size=size), llm.stream(method="dense")
        recompute = llm.stream(method="recompute", cache_size=size)
        for stream in (streaming, dense):
            stream.feed(told)
        recompute.feed(told[: size + 1])
        times: dict[str, list[float]] = {"streaming": [], "dense": [], "recompute": []}
        for _ in range(rounds + 1):
            for name, stream, steps in (
                ("streaming", streaming, 32),
                ("dense", dense, 32),
                ("recompute", recompute, 1),
            ):
                begin = time.perf_counter()
                for _ in stream.generate(steps, temperature=0, ignore_end=True):
                    pass
                times[name].append((time.perf_counter() - begin) / steps)
        median = {name: statistics.median(values[1:]) for name, values in times.items()}
        rows.append(
            Row(size, median["streaming"], median["dense"], median["recompute"], streaming.nbytes, dense.nbytes)
        )
        for stream in (streaming, dense, recompute):
            stream.close()
        if done:
            done(rows[-1])
    return rows
