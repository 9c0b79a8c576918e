"""Tiny random models as GGUF files, written by the `gguf` package, so that our reader is tested against another's writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "i n", "Ġ a", "Ġ the"]


def byte_alphabet() -> list[str]:
    """GPT-2's printable characters, one a byte, in the order of the bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    extra = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(extra)) for b in range(256)]


@dataclass
class TinyModel:
    """What a tiny model is made of; `write` makes the file."""

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 32
    ffn: int = 96
    hidden: int = 64
    dtype: str = "F32"
    tied: bool = True
    bias: bool = False
    rope_base: float = 10000.0
    rope_dim: int | None = None
    seed: int = 0
    context: int = 512
    template: str | None = CHATML
    extra: dict[str, Any] = field(default_factory=dict)
    rope_factors: list[float] | None = None
    pre: str = "smollm"

    @property
    def tokens(self) -> list[str]:
        """The vocabulary: control tokens, bytes, a few merges."""
        return [*SPECIALS, *byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES)]

    def tensors(self) -> dict[str, np.ndarray]:
        """Random weights as floats, float32."""
        random = np.random.default_rng(self.seed)

        def matrix(rows: int, columns: int) -> np.ndarray:
            return (random.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

        def norm() -> np.ndarray:
            return random.uniform(0.5, 1.5, self.hidden).astype(np.float32)

        vocab, attention, kv = len(self.tokens), self.heads * self.head_size, self.kv_heads * self.head_size
        weights = {"token_embd.weight": matrix(vocab, self.hidden) * 4, "output_norm.weight": norm()}
        if not self.tied:
            weights["output.weight"] = matrix(vocab, self.hidden) * 4
        for layer in range(self.layers):
            at = f"blk.{layer}."
            weights |= {at + "attn_norm.weight": norm(), at + "ffn_norm.weight": norm()}
            for part, rows in (("q", attention), ("k", kv), ("v", kv)):
                # larger queries and keys make attention choosy, so that a wrong mask shows
                weights[f"{at}attn_{part}.weight"] = matrix(rows, self.hidden) * (1 if part == "v" else 2)
                if self.bias:
                    weights[f"{at}attn_{part}.bias"] = random.standard_normal(rows).astype(np.float32)
            weights[at + "attn_output.weight"] = matrix(self.hidden, attention)
            weights[at + "ffn_gate.weight"] = matrix(self.ffn, self.hidden)
            weights[at + "ffn_up.weight"] = matrix(self.ffn, self.hidden)
            weights[at + "ffn_down.weight"] = matrix(self.hidden, self.ffn)
        return weights

    def write(self, path: Path) -> Path:
        """The model as a GGUF file."""
        writer = gguf.GGUFWriter(path, "llama")
        writer.add_name("tiny")
        writer.add_block_count(self.layers)
        writer.add_context_length(self.context)
        writer.add_embedding_length(self.hidden)
        writer.add_feed_forward_length(self.ffn)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_key_length(self.head_size)
        writer.add_value_length(self.head_size)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(self.rope_base)
        writer.add_rope_dimension_count(self.rope_dim or self.head_size)
        for key, value in self.extra.items():
            _add(writer, key, value)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(self.pre)
        tokens = self.tokens
        writer.add_token_list(tokens)
        writer.add_token_types([3] * len(SPECIALS) + [1] * (len(tokens) - len(SPECIALS)))
        writer.add_token_merges(MERGES)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        if self.template:
            writer.add_chat_template(self.template)
        for name, weights in self.tensors().items():
            kind = gguf.GGMLQuantizationType[self.dtype if weights.ndim == 2 else "F32"]
            data = weights if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(weights, kind)
            writer.add_tensor(name, data, raw_dtype=kind)
        if self.rope_factors:
            writer.add_tensor("rope_freqs.weight", np.array(self.rope_factors, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
