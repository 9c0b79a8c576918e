"""swift: drives the compiled core. One call a forward pass; everything here is shapes and names."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np

from anchorstream.cache.banks import BankInfo
from anchorstream.config import COMPUTES, KV_DTYPES, choice
from anchorstream.engine.base import Cache, CacheState, Output, Segment
from anchorstream.errors import ConfigError, InputError, UnsupportedModelError
from anchorstream.formats.weights import ModelFile, RawTensor
from anchorstream.kernels import native
from anchorstream.models.rope_rows import half_split_order
from anchorstream.models.spec import ModelSpec

_CHUNK = 256  # tokens a pass: long enough for full speed, short enough for small buffers


class SwiftEngine:
    """A model on the compiled core.

    Args:
        model_file: the opened file; its weights are repacked, so that it may be closed afterwards.
        threads: how many threads compute; None: the physical cores that this process may use.
        compute: `int8` quantises activations for the integer kernels, as the best CPU engines do; `f32` keeps
            everything in float32, for checking.

    Raises:
        ConfigError: threads, compute or ANCHORSTREAM_ISA make no sense.
        UnsupportedModelError: the file lacks a tensor, or has one of a type that no kernel reads.
    """

    def __init__(self, model_file: ModelFile, *, threads: int | None = None, compute: str = "int8") -> None:
        if compute not in COMPUTES:
            raise ConfigError(f"compute must be one of {', '.join(COMPUTES)}, not {compute!r}")
        if threads is not None and (
            isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 1024
        ):
            raise ConfigError(f"threads must be a whole number from 1 to 1024, not {threads!r}")
        self._spec = spec = model_file.spec
        self._compute = compute
        self._model = native.core.Model(
            layers=spec.num_layers,
            hidden=spec.hidden_size,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            ffn=spec.ffn_size,
            vocab=spec.vocab_size,
            norm_epsilon=spec.norm_epsilon,
            inverse_frequencies=np.ascontiguousarray(spec.rope.inverse_frequencies(), np.float64),
            rope_magnitude=spec.rope.magnitude,
            isa=native.instruction_set(),
            threads=threads or native.usable_cores(),
        )
        _Loader(self._model, model_file, as_f32=compute == "f32").load()

    @property
    def spec(self) -> ModelSpec:
        return self._spec

    @property
    def chunk_size(self) -> int:
        return _CHUNK

    def new_cache(self, kv_dtype: str = "auto") -> Cache:
        cache: Cache = self._model.new_cache(self._precision(kv_dtype))
        return cache

    def cache_state(self, cache: Cache) -> CacheState:
        core: Any = cache
        bounds = np.array([core.length, core.num_anchors, core.window_first], np.int64)
        return {"bounds": bounds, **{f"bank.{i}": bank for i, bank in enumerate(core.banks())}}

    def describe_cache(self, cache: Cache) -> list[BankInfo]:
        core: Any = cache
        infos, end = [], core.length
        for i, (first, precision, nbytes, holders) in enumerate(core.describe()):
            anchors = i < core.anchor_banks
            last = min(end, core.num_anchors) if anchors else end
            infos.append(
                BankInfo(first, min(native.BANK_TOKENS, last - first), anchors, precision, nbytes, holders > 1)
            )
        return infos

    def restore_cache(self, state: CacheState, kv_dtype: str = "auto") -> Cache:
        cache: Any = self.new_cache(kv_dtype)
        try:
            length, num_anchors, window_first = (int(n) for n in state["bounds"])
            cache.restore(length, num_anchors, window_first, [state[f"bank.{i}"] for i in range(len(state) - 1)])
        except (KeyError, ValueError, TypeError) as error:
            raise InputError(f"this cache does not fit the model: {error}") from None
        return cache

    def kv_bytes_per_token(self, kv_dtype: str = "auto") -> int:
        spec = self._spec
        return native.kv_bytes_per_token(self._precision(kv_dtype), spec.num_layers, spec.num_kv_heads, spec.head_size)

    def _precision(self, kv_dtype: str) -> str:
        """The precision that `kv_dtype` means here."""
        choice("stream", "kv_dtype", kv_dtype, KV_DTYPES)
        if kv_dtype == "auto":
            return "f32" if self._compute == "f32" else "f16"
        return kv_dtype

    def forward(self, segments: Sequence[Segment]) -> list[Output]:
        """See `Engine.forward`.

        Raises:
            InputError: a token id that is not in the vocabulary, or a plan that does not fit its cache.
            MemoryError: no room for a bank or a buffer; nothing has changed.
        """
        requests, outputs = [], []
        vocab = self._spec.vocab_size
        for segment in segments:
            plan, count = segment.plan, len(segment.tokens)
            every = segment.want == "all"
            logits = None
            if segment.want == "last" and segment.into is not None:
                logits = segment.into.reshape(1, vocab)
            elif segment.want != "nothing":
                logits = np.empty((count if every else 1, vocab), np.float32)
            nll = None if segment.targets is None else np.full(count, np.nan, np.float32)
            if plan.refeed:
                segment.cache.clear()
            requests.append(
                (
                    segment.cache,
                    segment.tokens,
                    plan.indices,
                    plan.slots,
                    plan.first_seen,
                    plan.anchors_seen,
                    plan.num_anchors,
                    plan.evict_before,
                    plan.bias,
                    0 if plan.bias is None else max(int(plan.first_cached[0]), plan.num_anchors),
                    logits,
                    every,
                    segment.targets,
                    nll,
                    segment.attention,
                )
            )
            outputs.append(Output(logits if logits is None or every else logits[0], nll))
        try:
            self._model.forward(requests)
        except ValueError as error:
            raise InputError(str(error)) from error
        return outputs

    @property
    def bytes_per_token(self) -> int:
        """Bytes of weights that a pass over one token reads."""
        return int(self._model.bytes_per_token)

    def describe(self) -> dict[str, object]:
        return {
            "engine": "swift",
            "instruction_set": self._model.isa,
            "threads": self._model.threads,
            "compute": self._compute,
            "weight_bytes": self._model.weight_bytes,
            "weight_bytes_per_token": self._model.bytes_per_token,
        }


class _Loader:
    """Hands a file's tensors to the core, one by one, and lets go of each mapped page once it is repacked."""

    def __init__(self, model: Any, file: ModelFile, *, as_f32: bool) -> None:
        self._model = model
        self._file = file
        self._as_f32 = as_f32

    def load(self) -> None:
        spec = self._file.spec
        self._matrix("embedding", 0, "token_embd.weight", spec.vocab_size, spec.hidden_size)
        if not spec.tied_head:
            self._matrix("head", 0, "output.weight", spec.vocab_size, spec.hidden_size)
        self._vector("final_norm", 0, "output_norm.weight")
        attention, kv = spec.num_heads * spec.head_size, spec.num_kv_heads * spec.head_size
        q_order = k_order = None
        if spec.rope.interleaved:
            q_order = half_split_order(spec.num_heads, spec.head_size, spec.rope.dim)
            k_order = half_split_order(spec.num_kv_heads, spec.head_size, spec.rope.dim)
        for layer in range(spec.num_layers):
            at = f"blk.{layer}."
            self._vector("attention_norm", layer, at + "attn_norm.weight")
            self._vector("ffn_norm", layer, at + "ffn_norm.weight")
            for name, rows, order in (("attn_q", attention, q_order), ("attn_k", kv, k_order), ("attn_v", kv, None)):
                self._matrix("qkv", layer, f"{at}{name}.weight", rows, spec.hidden_size, order)
                if spec.attention_bias:
                    self._vector("qkv_bias", layer, f"{at}{name}.bias", order)
            self._matrix("out", layer, at + "attn_output.weight", spec.hidden_size, attention)
            self._matrix("gate", layer, at + "ffn_gate.weight", spec.ffn_size, spec.hidden_size)
            self._matrix("up", layer, at + "ffn_up.weight", spec.ffn_size, spec.hidden_size)
            self._matrix("down", layer, at + "ffn_down.weight", spec.hidden_size, spec.ffn_size)
        try:
            self._model.seal()
        except ValueError as error:
            raise UnsupportedModelError(f"{self._file.path}: {error}") from error

    def _tensor(self, name: str) -> RawTensor:
        try:
            return self._file.tensors[name]
        except KeyError:
            raise UnsupportedModelError(f"{self._file.path} has no tensor {name!r}") from None

    def _matrix(
        self, role: str, layer: int, name: str, rows: int, columns: int, order: np.ndarray | None = None
    ) -> None:
        tensor = self._tensor(name)
        if tensor.shape != (rows, columns):
            raise UnsupportedModelError(f"{name} must have shape ({rows}, {columns}), the file says {tensor.shape}")
        try:
            self._model.add_matrix(role, layer, tensor.dtype, rows, columns, tensor.data, order, self._as_f32)
        except ValueError as error:
            raise UnsupportedModelError(f"{self._file.path}: {name}: {error}") from error
        _let_go(tensor.data)

    def _vector(self, role: str, layer: int, name: str, order: np.ndarray | None = None) -> None:
        tensor = self._tensor(name)
        values = _as_floats(tensor)
        self._model.add_vector(role, layer, np.ascontiguousarray(values if order is None else values[order]))


def _as_floats(tensor: RawTensor) -> np.ndarray:
    """A vector of a float type as float32 (n,)."""
    if tensor.dtype == "F32":
        return tensor.data.view(np.float32)
    if tensor.dtype == "F16":
        return tensor.data.view(np.float16).astype(np.float32)
    if tensor.dtype == "BF16":
        return (tensor.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    raise UnsupportedModelError(f"{tensor.name} is a vector of type {tensor.dtype}; F32, F16 or BF16 would be right")


def _let_go(data: np.ndarray) -> None:
    """Tell the system that the pages under `data` are not needed any more, if it is a view of a mapped file."""
    base: object = data
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    if isinstance(base, memoryview):
        base = base.obj
    if not isinstance(base, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
        return
    whole = np.frombuffer(base, np.uint8)
    start = data.ctypes.data - whole.ctypes.data
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    base.madvise(mmap.MADV_DONTNEED, first, start + data.nbytes - first)
