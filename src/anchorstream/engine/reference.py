"""reference: the paper to the letter, in numpy. Slow; what the swift engine is tested against.

The cache keeps keys un-rotated, and each token rotates all the keys that it sees to their slots, as streaming-llm does
(Xiao et al., arXiv 2309.17453, section 3.2). Nothing here knows the no-shift scheme of the compiled core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from anchorstream.cache.banks import BankInfo
from anchorstream.cache.plan import Plan
from anchorstream.engine.base import Cache, CacheState, Output, Segment
from anchorstream.errors import ConfigError, InputError, UnsupportedModelError
from anchorstream.formats.weights import ModelFile
from anchorstream.kernels import reference as kernels
from anchorstream.models.rope_rows import half_split_order
from anchorstream.models.spec import ModelSpec

_CHUNK = 512


@dataclass
class ReferenceCache:
    """Keys (un-rotated) and values of the tokens that are kept, by index: float32 (kv_heads, head_size) a layer."""

    keys: list[dict[int, np.ndarray]]
    values: list[dict[int, np.ndarray]]
    length: int = field(default=0)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for layer in (*self.keys, *self.values) for array in layer.values())

    @property
    def unshared_bytes(self) -> int:
        return 0  # forks share every array, and nothing here counts them

    def clear(self) -> None:
        for layer in (*self.keys, *self.values):
            layer.clear()
        self.length = 0

    def fork(self) -> ReferenceCache:
        return ReferenceCache([dict(layer) for layer in self.keys], [dict(layer) for layer in self.values], self.length)

    def evict(self, plan: Plan) -> None:
        """Forget the window tokens that no later token sees."""
        for layer in (*self.keys, *self.values):
            for index in [i for i in layer if plan.num_anchors <= i < plan.evict_before]:
                del layer[index]


class ReferenceEngine:
    """A model in numpy, float32 throughout."""

    def __init__(self, model_file: ModelFile) -> None:
        self._spec = model_file.spec
        self._file = model_file
        self._weights = {name: self._load(name) for name in model_file.tensors if name != "rope_freqs.weight"}
        self._inverse_frequencies = self._spec.rope.inverse_frequencies()

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def chunk_size(self) -> int:
        return _CHUNK

    def new_cache(self, kv_dtype: str = "auto") -> Cache:
        if kv_dtype not in ("auto", "f32"):
            raise ConfigError(f"the reference engine keeps keys and values in f32, not {kv_dtype!r}")
        layers = range(self._spec.num_layers)
        return ReferenceCache([{} for _ in layers], [{} for _ in layers])

    def cache_state(self, cache: Cache) -> CacheState:
        assert isinstance(cache, ReferenceCache)
        indices = np.array(sorted(cache.keys[0]), np.int64)
        shape = (self._spec.num_layers, len(indices), self._spec.num_kv_heads, self._spec.head_size)

        def stacked(layers: list[dict[int, np.ndarray]]) -> np.ndarray:
            return np.array([[layer[i] for i in indices.tolist()] for layer in layers], np.float32).reshape(shape)

        bounds = np.array([cache.length], np.int64)
        return {"bounds": bounds, "indices": indices, "keys": stacked(cache.keys), "values": stacked(cache.values)}

    def describe_cache(self, cache: Cache) -> list[BankInfo]:
        assert isinstance(cache, ReferenceCache)
        indices = sorted(cache.keys[0])
        return [BankInfo(indices[0], len(indices), False, "f32", cache.nbytes, False)] if indices else []

    def restore_cache(self, state: CacheState, kv_dtype: str = "auto") -> Cache:
        cache = self.new_cache(kv_dtype)
        assert isinstance(cache, ReferenceCache)
        try:
            cache.length = int(state["bounds"][0])
            indices = state["indices"].tolist()
            shape = (self._spec.num_layers, len(indices), self._spec.num_kv_heads, self._spec.head_size)
            for name, layers in (("keys", cache.keys), ("values", cache.values)):
                for layer, rows in zip(layers, state[name].reshape(shape), strict=True):
                    layer.update(zip(indices, rows, strict=True))
        except (KeyError, ValueError) as error:
            raise InputError(f"this cache does not fit the model: {error}") from None
        return cache

    def kv_bytes_per_token(self, kv_dtype: str = "auto") -> int:
        return self._spec.kv_bytes_per_token(4)

    def describe(self) -> dict[str, object]:
        weight_bytes = sum(array.nbytes for array in self._weights.values())
        return {
            "engine": "reference",
            "instruction_set": "numpy",
            "threads": 1,
            "compute": "f32",
            "weight_bytes": weight_bytes,
        }

    def forward(self, segments: Sequence[Segment]) -> list[Output]:
        """See `Engine.forward`."""
        for segment in segments:
            bad = [int(t) for t in segment.tokens if not 0 <= t < self._spec.vocab_size]
            if bad:
                raise InputError(
                    f"token id {bad[0]} is not in the vocabulary: ids are 0 to {self._spec.vocab_size - 1}"
                )
        return [self._forward(segment) for segment in segments]

    def _load(self, name: str) -> np.ndarray:
        """One tensor as float32; rows of interleaved q and k are reordered to pair (i, i + dim/2)."""
        tensor, spec = self._file.tensors[name], self._spec
        rows, columns = tensor.shape if len(tensor.shape) == 2 else (1, tensor.shape[0])
        if len(tensor.shape) > 2:
            raise UnsupportedModelError(f"{name} has {len(tensor.shape)} dimensions")
        values = kernels.dequantise(tensor.dtype, tensor.data, rows, columns).reshape(tensor.shape)
        for part, heads in (("attn_q", spec.num_heads), ("attn_k", spec.num_kv_heads)):
            if spec.rope.interleaved and part in name:
                values = values[half_split_order(heads, spec.head_size, spec.rope.dim)]
        return values

    def _forward(self, segment: Segment) -> Output:
        plan, cache, spec = segment.plan, segment.cache, self._spec
        assert isinstance(cache, ReferenceCache)
        if plan.refeed:
            cache.clear()
        x = self._weights["token_embd.weight"][segment.tokens]
        for layer in range(spec.num_layers):
            x = x + self._attention(layer, x, segment, cache)
            x = x + self._feed_forward(layer, x)
        cache.length += plan.count
        cache.evict(plan)
        x = kernels.rms_norm(x, self._weights["output_norm.weight"], spec.norm_epsilon)
        head = self._weights["token_embd.weight" if spec.tied_head else "output.weight"]
        nll = None
        if segment.targets is not None:
            wanted = np.flatnonzero(segment.targets >= 0)
            nll = np.full(plan.count, np.nan, np.float32)
            nll[wanted] = -kernels.log_softmax(x[wanted] @ head.T)[np.arange(len(wanted)), segment.targets[wanted]]
        if segment.want == "nothing":
            return Output(None, nll)
        logits = x @ head.T if segment.want == "all" else x[-1] @ head.T
        if segment.into is not None and segment.want == "last":
            segment.into[:] = logits
            logits = segment.into
        return Output(logits, nll)

    def _feed_forward(self, layer: int, x: np.ndarray) -> np.ndarray:
        at = f"blk.{layer}."
        h = kernels.rms_norm(x, self._weights[at + "ffn_norm.weight"], self._spec.norm_epsilon)
        gate, up = h @ self._weights[at + "ffn_gate.weight"].T, h @ self._weights[at + "ffn_up.weight"].T
        return kernels.silu_mul(gate, up) @ self._weights[at + "ffn_down.weight"].T

    def _attention(self, layer: int, x: np.ndarray, segment: Segment, cache: ReferenceCache) -> np.ndarray:
        spec, at, plan = self._spec, f"blk.{layer}.", segment.plan
        h = kernels.rms_norm(x, self._weights[at + "attn_norm.weight"], spec.norm_epsilon)

        def project(part: str, heads: int) -> np.ndarray:
            y = h @ self._weights[f"{at}attn_{part}.weight"].T
            if spec.attention_bias:
                y = y + self._weights[f"{at}attn_{part}.bias"]
            return y.reshape(len(x), heads, spec.head_size)

        q, k, v = project("q", spec.num_heads), project("k", spec.num_kv_heads), project("v", spec.num_kv_heads)
        for i, index in enumerate(plan.indices.tolist()):
            cache.keys[layer][index], cache.values[layer][index] = k[i], v[i]
        looks = [segment.attention if i == plan.count - 1 else None for i in range(plan.count)]
        mixed = np.stack([self._attend_one(layer, q[i], i, plan, cache, looks[i]) for i in range(len(x))])
        return mixed.reshape(len(x), -1) @ self._weights[at + "attn_output.weight"].T

    def _attend_one(
        self, layer: int, q: np.ndarray, i: int, plan: Plan, cache: ReferenceCache, looks: np.ndarray | None
    ) -> np.ndarray:
        """One token's attention, (heads, head_size): all that it sees is rotated to its slot, there and then."""
        spec, index = self._spec, int(plan.indices[i])
        anchors = np.arange(plan.anchors_seen[i])
        window = np.arange(plan.first_seen[i], index)
        seen = np.concatenate([anchors, window, [index]]).astype(np.int64)
        slots = np.concatenate([anchors, plan.num_anchors + window - plan.first_cached[i], [plan.slots[i]]])
        cos, sin = kernels.angles(slots, self._inverse_frequencies, spec.rope.magnitude)
        keys = kernels.rotate(np.stack([cache.keys[layer][s] for s in seen.tolist()]), cos[:, None], sin[:, None])
        values = np.stack([cache.values[layer][s] for s in seen.tolist()])
        bias = None
        if plan.bias is not None:
            stored = min(int(plan.indices[-1]) + 1, plan.num_anchors)
            first = max(int(plan.first_cached[0]), plan.num_anchors)
            bias = plan.bias[np.where(seen < plan.num_anchors, seen, stored + seen - first)]
        q = kernels.rotate(q, cos[-1], sin[-1])
        group = spec.num_heads // spec.num_kv_heads
        if looks is not None:
            for head in range(spec.num_heads):
                weights = kernels.attention_weights(q[head], keys[:, head // group], bias)
                looks += weights / (spec.num_heads * spec.num_layers)
        return np.stack(
            [
                kernels.attend(q[head], keys[:, head // group], values[:, head // group], bias)
                for head in range(spec.num_heads)
            ]
        )
