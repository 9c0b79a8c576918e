"""anchorstream, driven like the peers."""

from __future__ import annotations

import time

import numpy as np
from protocol import Adapter, serve

import anchorstream


class Anchorstream(Adapter):
    """See `protocol`. All times are seconds."""

    def load(self, model: str, checkpoint: str, threads: int, cache_size: int, num_sinks: int) -> str:
        self.llm = anchorstream.load(model, threads=threads)
        self.options = {"cache_size": cache_size, "num_sinks": num_sinks}
        return anchorstream.__version__

    def prefill(self, ids: list[int]) -> float:
        with self.llm.stream(**self.options) as stream:
            begin = time.perf_counter()
            stream.feed(ids)
            return time.perf_counter() - begin

    def fill(self, ids: list[int]) -> None:
        self.stream = self.llm.stream(**self.options)
        self.stream.feed(ids)

    def decode(self, count: int) -> float:
        with self.stream.fork() as stream:
            begin = time.perf_counter()
            for _ in stream.generate(count, temperature=0, ignore_end=True):
                pass
            return time.perf_counter() - begin

    def converse(self, prompts: list[list[int]], output: int) -> float:
        begin = time.perf_counter()
        with self.llm.stream(**self.options) as stream:
            for ids in prompts:
                stream.feed(ids)
                for _ in stream.generate(output, temperature=0, ignore_end=True):
                    pass
        return time.perf_counter() - begin

    def best_next(self) -> int:
        return int(np.argmax(self.stream.logits))

    def length(self) -> int:
        return self.stream.length

    def feed(self, ids: list[int]) -> None:
        self.stream.feed(ids)

    def traffic(self) -> int:
        """Bytes that one step touches: the weights once, and the keys and values that it sees."""
        engine = self.llm.engine
        held = min(self.stream.length, self.options["cache_size"])
        return engine.bytes_per_token + held * engine.kv_bytes_per_token()

    def describe(self) -> dict[str, object]:
        return dict(self.llm.engine.describe())


if __name__ == "__main__":
    serve(Anchorstream())
