"""What quantised banks cost and bring: perplexity, bytes, decode speed, forks, restoring; and why the sinks stay in f16.

Run: python benchmarks/banks.py [--text FILE] [--tokens 20480] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anchorstream
import book
import setup_peers
from anchorstream.evaluation import machine
from anchorstream.kernels import reference

KINDS = ("f16", "q8", "q4")
CACHE, LARGE, STEPS, ROUNDS = 1024, 4096, 64, 5


def main() -> int:
    """Print a line per figure and JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, default=book.PATH)
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    llm = anchorstream.load(setup_peers.default_model())
    ids = book.token_ids(llm.tokenizer, arguments.text, arguments.tokens)
    figures: dict[str, Any] = {
        "bytes_per_token": {kind: llm.engine.kv_bytes_per_token(kind) for kind in KINDS},
        "perplexity": {kind: perplexity(llm, ids, kind) for kind in KINDS},
        "decode": {str(size): decode(llm, ids, size) for size in (CACHE, LARGE)},
    }
    figures["perplexity"]["q4, sinks too"] = perplexity(llm, ids, "q4", lambda stream: quantise_sinks(llm, stream, 4))
    figures["perplexity"]["f16, but sinks in q4"] = perplexity(
        llm, ids, "f16", lambda stream: quantise_sinks(llm, stream, 4)
    )
    figures["seconds"] = forks_and_files(llm, ids)
    for name, own in figures.items():
        print(f"{name}: {own}", flush=True)
    result = {
        "benchmark": "banks",
        **machine.describe(),
        "text": arguments.text.name,
        "tokens": len(ids),
        "threads": llm.engine.describe()["threads"],
        "engine": llm.engine.describe(),
        "figures": figures,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


def perplexity(
    llm: Any, ids: np.ndarray, kind: str, after_sinks: Callable[[Any], Any] = lambda stream: stream
) -> float:
    """Of a stream of 4+1020; `after_sinks` may change the stream once it holds its four sinks."""
    stream = llm.stream(cache_size=CACHE, kv_dtype=kind)
    first = stream.score(ids[:4])
    stream = after_sinks(stream)
    scores = np.concatenate([first, stream.score(ids[4:])])[1:]
    return float(np.exp(scores.astype(np.float64).mean()))


def quantise_sinks(llm: Any, stream: Any, bits: int) -> Any:
    """The stream with its sinks as a sealed bank would keep them: saved, changed, restored."""
    spec, size = llm.spec, 64
    state = llm.engine.cache_state(stream._cache)
    parts = state["bank.0"].view(np.float16).reshape(spec.num_layers, spec.num_kv_heads, 2, size * spec.head_size)
    sinks = stream.length
    for layer in range(spec.num_layers):
        for head in range(spec.num_kv_heads):
            keys = parts[layer, head, 0].reshape(spec.head_size, size)
            values = parts[layer, head, 1].reshape(size, spec.head_size)
            # a bank of nothing but the sinks: groups of as many as there are
            k, v = reference.sealed(keys[:, :sinks].T.astype(np.float32), values[:sinks].astype(np.float32), bits)
            keys[:, :sinks], values[:sinks] = k.T, v
    stream._cache = llm.engine.restore_cache(state, stream.config.kv_dtype)
    return stream


def decode(llm: Any, ids: np.ndarray, size: int) -> dict[str, float]:
    """Tokens per second at a full cache, the precisions taking turns."""
    streams = {kind: llm.stream(cache_size=size, kv_dtype=kind) for kind in KINDS}
    for stream in streams.values():
        stream.feed(np.resize(ids, size + 100))
    speeds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS + 1):
        for kind, stream in streams.items():
            begin = time.perf_counter()
            for _ in stream.generate(STEPS, temperature=0, ignore_end=True):
                pass
            speeds[kind].append(STEPS / (time.perf_counter() - begin))
    for stream in streams.values():
        stream.close()
    return {kind: statistics.median(values[1:]) for kind, values in speeds.items()}


def forks_and_files(llm: Any, ids: np.ndarray) -> dict[str, float]:
    """Seconds that a fork, a mark, a rewind, saving and restoring take, at a full cache of 1024; medians."""
    stream = llm.stream(cache_size=CACHE)
    stream.feed(np.resize(ids, 1500))
    mark = stream.mark()
    [fork.close() for fork in [stream.fork() for _ in range(20)]]  # banks that are there to be used again
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stream"
        tasks: dict[str, Callable[[], Any]] = {
            "fork": lambda: stream.fork().close(),
            "mark": lambda: stream.mark().drop(),
            "rewind": lambda: stream.rewind(mark),
            "save": lambda: stream.save(path),
            "restore": lambda: llm.restore(path).close(),
        }
        return {name: statistics.median(timed(task) for _ in range(11)) for name, task in tasks.items()}


def timed(task: Callable[[], Any]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    task()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
