"""What each architecture needs: which metadata make its spec, which tensors it may have.

Metadata are named as GGUF names them; other formats translate into these names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast

from anchorstream.errors import UnsupportedModelError
from anchorstream.models.spec import ModelSpec, RopeScaling, RopeSpec

ROPE_FACTORS = "rope_freqs.weight"  # a tensor whose values are handed over as a metadata key of the same name

_LLAMA_TENSORS = re.compile(
    r"(token_embd|output|output_norm|rope_freqs)\.weight"
    r"|blk\.\d+\.((attn_norm|ffn_norm|attn_output|ffn_gate|ffn_up|ffn_down)\.weight|attn_[qkv]\.(weight|bias))"
)
# Keys that change the arithmetic, with the value at which they change nothing.
_NEUTRAL = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.scale": 0.0,
    "attention.sliding_window": 0,
    "attention.clamp_kqv": 0.0,
    "attn_logit_softcapping": 0.0,
    "final_logit_softcapping": 0.0,
    "logit_scale": 0.0,
    "residual_scale": 0.0,
    "embedding_scale": 0.0,
    "tensor_data_layout": "Meta AI original pth",
}


def make_spec(
    metadata: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], *, vocab_size: int, name: str
) -> ModelSpec:
    """The spec of a model.

    Args:
        metadata: GGUF's keys and values.
        shapes: each tensor's shape, outermost first.
        vocab_size: tokens in the vocabulary.
        name: for a model that does not say its own.

    Raises:
        UnsupportedModelError: an architecture, feature or value that cannot be run, named.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"the architecture {architecture!r} is not supported; supported are: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[architecture](_Keys(metadata, architecture), shapes, vocab_size, name)


class _Keys:
    """One architecture's keys, with checks."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.all = metadata
        self.architecture = architecture

    def raw(self, key: str) -> Any:
        return self.all.get(f"{self.architecture}.{key}")

    def whole(self, key: str, default: int | None = None, *, most: int = 1 << 24) -> int:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise UnsupportedModelError(
                f"{self.architecture}.{key} is {value!r}; a whole number from 1 to {most} would be right"
            )
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
            raise UnsupportedModelError(f"{self.architecture}.{key} is {value!r}; a positive number would be right")
        return float(value)


def _llama(keys: _Keys, shapes: Mapping[str, tuple[int, ...]], vocab_size: int, name: str) -> ModelSpec:
    """Llama 1 to 3, SmolLM, Mistral and whatever else calls itself `llama`."""
    for key, neutral in _NEUTRAL.items():
        value = keys.raw(key)
        if value is not None and value != neutral:
            raise UnsupportedModelError(f"{keys.architecture}.{key} = {value!r} is not supported")
    layers = keys.whole("block_count", most=1024)
    for tensor in shapes:
        if not _LLAMA_TENSORS.fullmatch(tensor):
            raise UnsupportedModelError(f"the tensor {tensor!r} is not one that {keys.architecture!r} models may have")
        if tensor.startswith("blk.") and int(tensor.split(".")[1]) >= layers:
            raise UnsupportedModelError(f"the tensor {tensor!r} belongs to no layer: block_count is {layers}")
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count", most=4096)
    head_size = keys.whole("attention.key_length", hidden // heads or 1)
    if keys.whole("attention.value_length", head_size) != head_size:
        raise UnsupportedModelError(
            f"values of size {keys.raw('attention.value_length')} beside keys of size {head_size} are not supported"
        )
    biases = {f"blk.{layer}.attn_{part}.bias" in shapes for layer in range(layers) for part in "qkv"}
    if len(biases) > 1:
        raise UnsupportedModelError("some of q, k and v have biases and others do not")
    return ModelSpec(
        architecture=keys.architecture,
        name=str(keys.all.get("general.name") or name),
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=keys.whole("attention.head_count_kv", heads, most=4096),
        head_size=head_size,
        ffn_size=keys.whole("feed_forward_length"),
        vocab_size=vocab_size,
        norm_epsilon=keys.real("attention.layer_norm_rms_epsilon"),
        trained_context=keys.whole("context_length", most=1 << 40),
        rope=_rope(keys, head_size),
        tied_head="output.weight" not in shapes,
        attention_bias=True in biases,
    )


def _rope(keys: _Keys, head_size: int) -> RopeSpec:
    """Rotary positions; GGUF's converters permute the rows of `llama` so that dimensions (2i, 2i+1) are paired."""
    dim = keys.whole("rope.dimension_count", head_size)
    kind = keys.raw("rope.scaling.type") or "none"
    factor = keys.real("rope.scaling.factor", 1.0)
    if keys.raw("rope.scaling.type") is None and keys.raw("rope.scale_linear") is not None:
        kind, factor = "linear", keys.real("rope.scale_linear")
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedModelError(f"rope scaling {kind!r} is not supported; none, linear and yarn are")
    factors = keys.all.get(ROPE_FACTORS)
    if factors is not None and (len(factors) != dim // 2 or not all(f > 0 and math.isfinite(f) for f in factors)):
        raise UnsupportedModelError(f"{ROPE_FACTORS} must hold {dim // 2} positive numbers")
    base = keys.real("rope.freq_base", 10000.0)
    if kind == "yarn" and base <= 1:
        raise UnsupportedModelError(f"yarn scaling needs a rope.freq_base above 1, not {base}")
    magnitude = keys.real("rope.scaling.attn_factor", 1.0) * (0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0)
    return RopeSpec(
        base=base,
        dim=dim,
        interleaved=True,
        scaling=cast(RopeScaling, kind),
        factor=factor,
        original_context=keys.whole(
            "rope.scaling.original_context_length", keys.whole("context_length", most=1 << 40), most=1 << 40
        ),
        beta_fast=keys.real("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.real("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=magnitude if kind == "yarn" else 0.0,
        frequency_factors=factors,
    )


Needs = Callable[[_Keys, Mapping[str, tuple[int, ...]], int, str], ModelSpec]
ARCHITECTURES: dict[str, Needs] = {"llama": _llama}
