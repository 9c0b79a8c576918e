"""llama.cpp through llama-cpp-python: the same file, a context of the cache's size, no Python between its steps but one call."""

from __future__ import annotations

import time

import llama_cpp
import numpy as np
from protocol import Adapter, serve


class LlamaCpp(Adapter):
    """See `protocol`. All times are seconds."""

    def load(self, model: str, checkpoint: str, threads: int, cache_size: int, num_sinks: int) -> str:
        self.size, self.sinks = cache_size + 4, num_sinks
        self.llm = llama_cpp.Llama(
            model, n_ctx=self.size, n_batch=512, n_threads=threads, n_threads_batch=threads, verbose=False
        )
        return llama_cpp.__version__

    def prefill(self, ids: list[int]) -> float:
        self.llm.reset()
        self.filled = None
        begin = time.perf_counter()
        self.llm.eval(ids)
        self._best()
        return time.perf_counter() - begin

    def fill(self, ids: list[int]) -> None:
        """The last tokens of `ids` that leave room for decoding."""
        self.ids = ids

    def decode(self, count: int) -> float:
        fill = self.size - count
        if getattr(self, "filled", None) != fill:
            self.llm.reset()
            self.llm.eval(self.ids[-fill:])
            self.filled = fill
        self.llm.n_tokens = fill  # what was decoded last time is taken back
        token = self._best()
        begin = time.perf_counter()
        for _ in range(count):
            self.llm.eval([token])
            token = self._best()
        return time.perf_counter() - begin

    def converse(self, prompts: list[list[int]], output: int) -> float:
        """With context shift, as llama.cpp's own programs do it: half of what is not kept goes when the context is full."""
        self.llm.reset()
        self.filled = None
        begin = time.perf_counter()
        for ids in prompts:
            self._eval(ids)
            for _ in range(output):
                self._eval([self._best()])
        return time.perf_counter() - begin

    def _eval(self, ids: list[int]) -> None:
        while self.llm.n_tokens + len(ids) > self.size:
            keep, past = self.sinks, self.llm.n_tokens
            gone = (past - keep) // 2
            memory_of = llama_cpp.llama_get_memory(self.llm.ctx)
            llama_cpp.llama_memory_seq_rm(memory_of, 0, keep, keep + gone)
            llama_cpp.llama_memory_seq_add(memory_of, 0, keep + gone, past, -gone)
            self.llm.n_tokens = past - gone
        self.llm.eval(ids)

    def best_next(self) -> int:
        return self._best()

    def _best(self) -> int:
        logits = llama_cpp.llama_get_logits_ith(self.llm.ctx, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, shape=(self.llm.n_vocab(),))))


if __name__ == "__main__":
    serve(LlamaCpp())
