"""transformers on PyTorch with its ordinary cache: dense attention, float32, the same weights."""

from __future__ import annotations

import time

import transformers
from protocol import Adapter, serve

import torch


class Transformers(Adapter):
    """See `protocol`. All times are seconds."""

    def load(self, model: str, checkpoint: str, threads: int, cache_size: int, num_sinks: int) -> str:
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
        return transformers.__version__

    @torch.inference_mode()
    def prefill(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        self.model(input_ids=torch.tensor([ids]), use_cache=True, logits_to_keep=1)
        return time.perf_counter() - begin

    @torch.inference_mode()
    def fill(self, ids: list[int]) -> None:
        self.past = transformers.DynamicCache()
        self.logits = self._step(torch.tensor([ids]))

    @torch.inference_mode()
    def decode(self, count: int) -> float:
        length = self.past.get_seq_length()
        token = self.logits.argmax().view(1, 1)
        begin = time.perf_counter()
        for _ in range(count):
            token = self._step(token).argmax().view(1, 1)
        seconds = time.perf_counter() - begin
        self.past.crop(length)
        return seconds

    @torch.inference_mode()
    def converse(self, prompts: list[list[int]], output: int) -> float:
        self.past = transformers.DynamicCache()
        begin = time.perf_counter()
        for ids in prompts:
            token = self._step(torch.tensor([ids])).argmax().view(1, 1)
            for _ in range(output):
                token = self._step(token).argmax().view(1, 1)
        return time.perf_counter() - begin

    def _step(self, ids: torch.Tensor) -> torch.Tensor:
        output = self.model(input_ids=ids, past_key_values=self.past, use_cache=True, logits_to_keep=1)
        return output.logits[0, -1]

    def best_next(self) -> int:
        return int(self.logits.argmax())


if __name__ == "__main__":
    serve(Transformers())
