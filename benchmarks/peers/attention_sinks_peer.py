"""The StreamingLLM algorithm on PyTorch: PyPI's attention-sinks on transformers, float32, the same weights."""

from __future__ import annotations

import importlib.metadata
import time

from attention_sinks import AutoModelForCausalLM
from protocol import Adapter, serve

import torch


class AttentionSinks(Adapter):
    """See `protocol`. All times are seconds."""

    def load(self, model: str, checkpoint: str, threads: int, cache_size: int, num_sinks: int) -> str:
        torch.set_num_threads(threads)
        self.model = AutoModelForCausalLM.from_pretrained(
            checkpoint, attention_sink_size=num_sinks, attention_sink_window_size=cache_size - num_sinks
        ).eval()
        return importlib.metadata.version("attention-sinks")

    @torch.inference_mode()
    def prefill(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        self.model(input_ids=torch.tensor([ids]), use_cache=True)
        return time.perf_counter() - begin

    @torch.inference_mode()
    def fill(self, ids: list[int]) -> None:
        output = self.model(input_ids=torch.tensor([ids]), use_cache=True)
        self.past, self.logits = output.past_key_values, output.logits[0, -1]

    @torch.inference_mode()
    def decode(self, count: int) -> float:
        past, token = self.past, self.logits.argmax().view(1, 1)
        begin = time.perf_counter()
        for _ in range(count):
            output = self.model(input_ids=token, past_key_values=past, use_cache=True)
            past, token = output.past_key_values, output.logits[0, -1].argmax().view(1, 1)
        return time.perf_counter() - begin

    @torch.inference_mode()
    def converse(self, prompts: list[list[int]], output: int) -> float:
        past = None
        begin = time.perf_counter()
        for ids in prompts:
            result = self.model(input_ids=torch.tensor([ids]), past_key_values=past, use_cache=True)
            for _ in range(output):
                token = result.logits[0, -1].argmax().view(1, 1)
                result = self.model(input_ids=token, past_key_values=result.past_key_values, use_cache=True)
            past = result.past_key_values
        return time.perf_counter() - begin

    def best_next(self) -> int:
        return int(self.logits.argmax())


if __name__ == "__main__":
    serve(AttentionSinks())
