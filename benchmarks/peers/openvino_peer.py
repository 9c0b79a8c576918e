"""OpenVINO GenAI: the same .gguf through its LLMPipeline. Times are those that its own metrics give."""

from __future__ import annotations

import importlib.metadata
import time

import numpy as np
import openvino as ov
import openvino_genai
from protocol import Adapter, serve


class OpenVino(Adapter):
    """See `protocol`. All times are seconds."""

    def load(self, model: str, checkpoint: str, threads: int, cache_size: int, num_sinks: int) -> str:
        self.model, self.threads, self.cache_size = model, threads, cache_size
        self.pipe = openvino_genai.LLMPipeline(model, "CPU", INFERENCE_NUM_THREADS=threads)
        return importlib.metadata.version("openvino-genai")

    def _run(
        self, ids: list[int], count: int, pipe: openvino_genai.LLMPipeline | None = None
    ) -> tuple[openvino_genai.PerfMetrics, list[int]]:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.do_sample, config.ignore_eos = count, False, True
        ids_tensor = ov.Tensor(np.array([ids], np.int64))
        inputs = openvino_genai.TokenizedInputs(ids_tensor, ov.Tensor(np.ones((1, len(ids)), np.int64)))
        result = (pipe or self.pipe).generate(inputs, config)
        return result.perf_metrics, list(result.tokens[0])

    def prefill(self, ids: list[int]) -> float:
        return self._run(ids, 1)[0].get_ttft().mean / 1000

    def fill(self, ids: list[int]) -> None:
        self.ids = ids

    def decode(self, count: int) -> float:
        """At a cache of the same fill: the prompt is read again each time, and not counted."""
        return self._run(self.ids, count + 1)[0].get_tpot().mean / 1000 * count

    def converse(self, prompts: list[list[int]], output: int) -> float:
        """Every round hands the whole conversation in, of which the pipeline remembers the beginning; its cache is cut to size."""
        history: list[int] = []
        begin = time.perf_counter()
        for ids in prompts:
            history += ids
            history += self._run(history, output, self._evicting())[1]
        return time.perf_counter() - begin

    def _evicting(self) -> openvino_genai.LLMPipeline:
        """A pipeline whose cache keeps as many tokens as ours: made when first asked for."""
        if not hasattr(self, "evicting"):
            scheduler = openvino_genai.SchedulerConfig()
            scheduler.enable_prefix_caching = True
            scheduler.use_cache_eviction = True
            kept = self.cache_size // 32 * 32
            scheduler.cache_eviction_config = openvino_genai.CacheEvictionConfig(
                32, kept - 64, kept, openvino_genai.AggregationMode.NORM_SUM
            )
            self.evicting = openvino_genai.LLMPipeline(
                self.model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=self.threads
            )
        return self.evicting

    def best_next(self) -> int:
        return self._run(self.ids, 1)[1][0]


if __name__ == "__main__":
    serve(OpenVino())
