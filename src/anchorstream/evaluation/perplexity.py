"""Perplexity of a stream over a text (StreamingLLM, figure 3): exp of the mean surprise per token."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from anchorstream.config import StreamConfig
from anchorstream.stream.stream import Stream

Progress = Callable[[int, float], None]  # tokens scored, perplexity so far

_BLOCK = 2048  # tokens between two looks at the progress


@dataclass
class Scores:
    """What one run has measured so far; complete or not.

    Attributes:
        name: for tables and pictures.
        config: how the stream was kept.
        nll: float32 (tokens,), -log p of each token in nats; nan where it was not scored (the first, and those between
            the samples of a subsampled run).
        done: how many tokens have been gone through.
        seconds: how long it took.
        stride: every how many tokens one was scored.
    """

    name: str
    config: StreamConfig
    nll: np.ndarray
    done: int = 0
    seconds: float = 0.0
    stride: int = 1

    @property
    def perplexity(self) -> float:
        """Over all that was scored."""
        scored = self.nll[: self.done]
        return float(np.exp(np.nanmean(scored.astype(np.float64)))) if np.isfinite(scored).any() else float("nan")

    def running(self) -> tuple[np.ndarray, np.ndarray]:
        """Lengths and the perplexity of all tokens up to each, float64; for pictures."""
        places = np.flatnonzero(np.isfinite(self.nll[: self.done]))
        sums = np.cumsum(self.nll[places].astype(np.float64))
        return places + 1, np.exp(sums / np.arange(1, len(places) + 1))

    def per_block(self, size: int) -> list[float]:
        """Perplexity of each block of `size` tokens."""
        blocks = [self.nll[at : min(at + size, self.done)] for at in range(0, self.done, size)]
        return [float(np.exp(np.nanmean(b.astype(np.float64)))) for b in blocks if np.isfinite(b).any()]

    def facts(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "method": self.config.method,
            "cache_size": self.config.cache_size,
            "num_sinks": self.config.num_sinks,
            "tokens": self.done,
            "stride": self.stride,
            "perplexity": self.perplexity,
            "per_2048": self.per_block(2048),
            "seconds": self.seconds,
            "tokens_per_second": self.done / self.seconds if self.seconds else None,
        }


def on_common_tokens(runs: Sequence[Scores]) -> dict[str, float]:
    """Perplexity of each run over just the tokens that all have scored, for runs of which some are sampled."""
    done = min((run.done for run in runs), default=0)
    common = np.logical_and.reduce([np.isfinite(run.nll[:done]) for run in runs]) if runs else np.zeros(0, bool)
    return {run.name: float(np.exp(run.nll[:done][common].astype(np.float64).mean())) for run in runs if common.any()}


def measure(
    open_stream: Callable[[StreamConfig], Stream], ids: np.ndarray, scores: Scores, *, progress: Progress | None = None
) -> Scores:
    """Score `ids` into `scores`, block by block, so that a break keeps what has been measured.

    `recompute` with a stride computes each sampled token's window afresh, as the method says, and skips the others.
    """
    begin = time.perf_counter()
    score = _score_samples if scores.config.method == "recompute" and scores.stride > 1 else _score_all
    for done in score(open_stream, ids, scores):
        scores.done, scores.seconds = done, time.perf_counter() - begin
        if progress:
            progress(done, scores.perplexity)
    return scores


def _score_all(open_stream: Callable[[StreamConfig], Stream], ids: np.ndarray, scores: Scores) -> Any:
    block = 32 if scores.config.method == "recompute" else _BLOCK
    with open_stream(scores.config) as stream:
        for at in range(0, len(ids), block):
            piece = stream.score(ids[at : at + block])
            scores.nll[at : at + len(piece)] = piece
            yield at + len(piece)


def _score_samples(open_stream: Callable[[StreamConfig], Stream], ids: np.ndarray, scores: Scores) -> Any:
    size = scores.config.cache_size
    dense = StreamConfig(method="dense", kv_dtype=scores.config.kv_dtype)
    for at in range(scores.stride, len(ids), scores.stride):
        with open_stream(dense) as stream:
            # a token attends to the last `size` tokens and itself: its predecessor is the one whose logits are asked
            stream.feed(ids[max(0, at - 1 - size) : at])
            scores.nll[at] = stream.score(ids[at : at + 1])[0]
        yield min(at + scores.stride, len(ids))


def plan(
    methods: Sequence[str], *, cache_size: int, num_sinks: int, tokens: int, stride: int = 1, kv_dtype: str = "auto"
) -> list[Scores]:
    """Empty scores, one a method.

    Raises:
        ConfigError: an unknown method, or sizes that cannot work.
    """
    runs = []
    for method in methods:
        config = StreamConfig(method=method, cache_size=cache_size, num_sinks=num_sinks, kv_dtype=kv_dtype)  # type: ignore[arg-type]
        name = {"streaming": f"streaming {num_sinks}+{cache_size - num_sinks}", "dense": "dense"}.get(
            method, f"{method} {cache_size}"
        )
        runs.append(
            Scores(name, config, np.full(tokens, np.nan, np.float32), stride=stride if method == "recompute" else 1)
        )
    return runs


def plan_sinks(counts: Sequence[int], *, cache_size: int, tokens: int) -> list[Scores]:
    """The paper's Table 2: how many sinks, at one cache size."""
    configs = [StreamConfig(num_sinks=count, cache_size=cache_size) for count in counts]
    return [Scores(f"{c.num_sinks}+{c.window}", c, np.full(tokens, np.nan, np.float32)) for c in configs]


def plan_cache_sizes(sizes: Sequence[int], *, num_sinks: int, tokens: int) -> list[Scores]:
    """The paper's Table 6: cache sizes, at one number of sinks."""
    configs = [StreamConfig(num_sinks=num_sinks, cache_size=size) for size in sizes]
    return [Scores(f"{c.num_sinks}+{c.window}", c, np.full(tokens, np.nan, np.float32)) for c in configs]
