"""What every file format is read into: a spec, raw tensors and a vocabulary. Knows no format itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anchorstream.models.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class RawTensor:
    """A weight as it lies in its file.

    Attributes:
        name: as GGUF names it, whatever the format (`blk.0.attn_q.weight`).
        dtype: GGUF's type name: F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K.
        shape: (rows, columns) for a matrix, (columns,) for a vector; a matrix maps columns to rows: y = W x.
        data: uint8 (bytes,), contiguous, memory-mapped, read-only.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: np.ndarray


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A file's vocabulary and how text is cut into it.

    Attributes:
        kind: `bpe` (byte-level) or `spm` (SentencePiece-style with scores and byte fallback).
        pre: the pre-tokenizer's name for `bpe` (smollm, llama-bpe, qwen2, gpt-2).
        tokens: each id's piece, as the file spells it.
        types: int32 (vocab,), GGUF's token types: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte.
        scores: float32 (vocab,) for `spm`, else empty.
        merges: "left right" pairs in order of priority for `bpe`, else empty.
        bos, eos, unk, pad: ids, or None. eot: the end-of-turn id if the file names one apart from eos.
        add_bos, add_eos: whether text is framed by them by default.
        add_space_prefix: SentencePiece's dummy prefix.
        chat_template: jinja2 source, or None.
    """

    kind: str
    pre: str
    tokens: list[str]
    types: np.ndarray
    scores: np.ndarray
    merges: list[str]
    bos: int | None
    eos: int | None
    unk: int | None
    pad: int | None
    eot: int | None
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    chat_template: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """An opened model file.

    Attributes:
        path: where it lies.
        spec: the architecture.
        tensors: by GGUF's names.
        vocabulary: the vocabulary and its rules.
        fingerprint: hex digest of the header (metadata and tensor table) and the file's size: names the weights
            without reading them all.
        quantization: for people, as the file says (`Q4_1`).
    """

    path: Path
    spec: ModelSpec
    tensors: Mapping[str, RawTensor]
    vocabulary: Vocabulary
    fingerprint: str
    quantization: str
