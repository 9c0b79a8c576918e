"""How fast a model runs here: prefill, decode at a full cache, time to first token and between tokens, memory, and what
share of the memory's bandwidth a step uses."""

from __future__ import annotations

import statistics
import time
from typing import Any

import numpy as np

from anchorstream.evaluation import machine
from anchorstream.kernels import native


def measure(
    llm: Any, ids: np.ndarray, *, cache_size: int = 1024, prompt: int = 512, tokens: int = 128, rounds: int = 5
) -> dict[str, float]:
    """Medians over `rounds`, the measurements taking turns.

    Args:
        ids: a text of at least `cache_size + prompt` tokens.
        cache_size: of the stream that decodes, which is full.
        prompt: tokens of a prompt.
        tokens: tokens made in a round.

    Returns:
        Tokens per second, seconds, bytes, and the share of the bandwidth limit.
    """
    full = llm.stream(cache_size=cache_size)
    full.feed(ids[: cache_size + 64])
    prefills, prefills_full, firsts, decodes, gaps, bandwidths = [], [], [], [], [], []
    for number in range(rounds + 1):
        with llm.stream(cache_size=cache_size) as fresh:
            begin = time.perf_counter()
            fresh.feed(ids[:prompt])
            prefill = time.perf_counter()
            next(fresh.generate(8, temperature=0, ignore_end=True), None)
            first = time.perf_counter()
        with full.fork() as fork:
            long_begin = time.perf_counter()
            fork.feed(ids[:prompt])
            long_end = time.perf_counter()
        between = _decode(full, tokens)
        bandwidth = native.read_bandwidth(120 << 20, llm.engine.describe()["threads"], repeats=5)
        if number:  # the first round warms up
            prefills.append(prompt / (prefill - begin))
            prefills_full.append(prompt / (long_end - long_begin))
            firsts.append(first - begin)
            decodes.append(len(between) / sum(between))
            gaps.extend(between)
            bandwidths.append(bandwidth)
    traffic = llm.engine.bytes_per_token + min(full.length, cache_size) * llm.engine.kv_bytes_per_token()
    full.close()
    decode, bandwidth = statistics.median(decodes), statistics.median(bandwidths)
    return {
        "prefill_tokens_per_second": statistics.median(prefills),
        "prefill_at_full_cache_tokens_per_second": statistics.median(prefills_full),
        "decode_tokens_per_second": decode,
        "time_to_first_token": statistics.median(firsts),
        "between_tokens_p50": float(np.percentile(gaps, 50)),
        "between_tokens_p99": float(np.percentile(gaps, 99)),
        "peak_memory_bytes": machine.peak_memory(),
        "bytes_per_token": traffic,
        "read_bandwidth": bandwidth,
        "share_of_bandwidth": traffic * decode / bandwidth,
    }


def _decode(stream: Any, tokens: int) -> list[float]:
    """Seconds between tokens."""
    between, last = [], time.perf_counter()
    for _ in stream.steps(stream.generation(tokens, temperature=0, ignore_end=True)):
        now = time.perf_counter()
        between.append(now - last)
        last = now
    return between
