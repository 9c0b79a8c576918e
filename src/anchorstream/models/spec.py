"""What a model is: its architecture as one frozen dataclass, whatever file it came from.

Knows nothing of files, caches or arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from anchorstream.errors import UnsupportedModelError

RopeScaling = Literal["none", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeSpec:
    """Rotary positions (Su et al., arXiv 2104.09864) and the ways to stretch them.

    Attributes:
        base: theta of `theta ** (-2 i / dim)`.
        dim: how many dimensions of each head are rotated (even, at most the head size).
        interleaved: True where the file pairs dimensions (2i, 2i+1), as GGUF's `llama` does;
            False where it pairs (i, i + dim/2), as Hugging Face does.
        scaling: `none`, `linear`, `llama3` or `yarn`.
        factor: how many times longer the stretched context is.
        original_context: the context before stretching (llama3, yarn).
        low_freq_factor, high_freq_factor: llama3's bounds.
        beta_fast, beta_slow: yarn's bounds (arXiv 2309.00071).
        attention_factor: multiplies cos and sin (yarn); 0: yarn's own formula `0.1 ln(factor) + 1`.
        frequency_factors: one divisor per frequency, as the GGUF tensor `rope_freqs.weight` stores llama3's; or None.
    """

    base: float = 10000.0
    dim: int
    interleaved: bool = False
    scaling: RopeScaling = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 0.0
    frequency_factors: tuple[float, ...] | None = None

    def inverse_frequencies(self) -> np.ndarray:
        """Radians per token of each rotated pair, float64 (dim / 2,)."""
        exponents = np.arange(0, self.dim, 2, dtype=np.float64) / self.dim
        plain = self.base**-exponents
        if self.frequency_factors is not None:
            return plain / np.asarray(self.frequency_factors, np.float64)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "llama3":
            return self._llama3(plain)
        if self.scaling == "yarn":
            return self._yarn(plain)
        return plain

    def _llama3(self, plain: np.ndarray) -> np.ndarray:
        """Meta's Llama 3.1: long waves are slowed by `factor`, short ones kept, a ramp between."""
        waves = 2 * math.pi / plain
        low, high = self.low_freq_factor, self.high_freq_factor
        smooth = np.clip((self.original_context / waves - low) / (high - low), 0, 1)
        return (1 - smooth) * plain / self.factor + smooth * plain

    def _yarn(self, plain: np.ndarray) -> np.ndarray:
        """Peng et al., arXiv 2309.00071, section 3.2 (NTK by parts)."""

        def dimension(rotations: float) -> float:
            return self.dim * math.log(self.original_context / (rotations * 2 * math.pi)) / (2 * math.log(self.base))

        low = max(math.floor(dimension(self.beta_fast)), 0)
        high = min(math.ceil(dimension(self.beta_slow)), self.dim - 1)
        ramp = np.clip((np.arange(self.dim // 2) - low) / max(high - low, 0.001), 0, 1)
        return plain / self.factor * ramp + plain * (1 - ramp)

    @property
    def magnitude(self) -> float:
        """What cos and sin are multiplied by: yarn's attention factor, else 1."""
        if self.scaling != "yarn":
            return 1.0
        if self.attention_factor:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0 if self.factor > 1 else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """The architecture of one model. Sizes count elements.

    Attributes:
        architecture: the family, as GGUF names it (`llama`).
        name: for people.
        num_layers, hidden_size, num_heads, num_kv_heads, head_size, ffn_size, vocab_size: the usual.
        norm_epsilon: of RMSNorm.
        trained_context: the longest sequence seen in training, in tokens (dense attention beyond it fails).
        rope: the rotary positions.
        tied_head: True where the vocabulary product uses the embedding matrix.
        attention_bias: True where q, k and v have biases.
    """

    architecture: str
    name: str
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    ffn_size: int
    vocab_size: int
    norm_epsilon: float
    trained_context: int
    rope: RopeSpec
    tied_head: bool
    attention_bias: bool = False

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "ffn_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise UnsupportedModelError(f"{name} must be at least 1, the model says {getattr(self, name)}")
        if self.num_heads % self.num_kv_heads:
            raise UnsupportedModelError(
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.head_size % 16 or self.head_size > 256:
            raise UnsupportedModelError(
                f"head_size must be a multiple of 16 up to 256, the model says {self.head_size}"
            )
        if self.rope.dim % 2 or not 0 < self.rope.dim <= self.head_size:
            raise UnsupportedModelError(
                f"rotary dimensions must be even and at most head_size {self.head_size}, the model says {self.rope.dim}"
            )

    def kv_bytes_per_token(self, bytes_per_element: float) -> int:
        """Bytes that one cached token takes in all layers, keys and values."""
        return int(2 * self.num_layers * self.num_kv_heads * self.head_size * bytes_per_element)
