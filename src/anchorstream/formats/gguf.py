"""GGUF: one memory-mapped file with metadata, a vocabulary and quantised tensors.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian). Nothing in a
file is believed before it is checked: each length is held against what is left of the file.
"""

from __future__ import annotations

import hashlib
import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anchorstream.errors import ModelFileError, ModelNotFoundError, UnsupportedModelError
from anchorstream.formats.weights import ModelFile, RawTensor, Vocabulary
from anchorstream.models import registry

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<B", 10: "<Q", 11: "<q", 12: "<d"}

# GGUF's number of each tensor type that we read: name, weights in a block, bytes of a block.
_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    30: ("BF16", 1, 2),
}
_OTHER_TYPES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip
_FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 32: "BF16",
}  # fmt: skip


def open_gguf(path: Path) -> ModelFile:
    """Open and check a GGUF file; its tensors stay on disk until they are touched.

    Raises:
        ModelNotFoundError: there is no such file.
        ModelFileError: it is not GGUF, or truncated, corrupt or hostile.
        UnsupportedModelError: an architecture, quantisation or tokenizer that this version cannot run.
    """
    try:
        with open(path, "rb") as file:
            data: mmap.mmap | bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFoundError(f"there is no file {path}") from None
    except ValueError:
        raise ModelFileError(f"{path} is empty; a GGUF file begins with the letters GGUF") from None
    except OSError as error:
        raise ModelFileError(f"{path} cannot be read: {error.strerror}") from None
    reader = _Reader(data, path)
    metadata, tensors = reader.read()
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    factors = tensors.get(registry.ROPE_FACTORS)
    if factors is not None and factors.dtype == "F32":
        metadata[registry.ROPE_FACTORS] = tuple(factors.data.view(np.float32).tolist())
    vocabulary = _vocabulary(metadata, path)
    try:
        spec = registry.make_spec(metadata, shapes, vocab_size=len(vocabulary.tokens), name=path.stem)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{path}: {error}") from None
    fingerprint = hashlib.sha256(memoryview(data)[: reader.at])
    fingerprint.update(len(data).to_bytes(8, "little"))
    return ModelFile(
        path=path,
        spec=spec,
        tensors=tensors,
        vocabulary=vocabulary,
        fingerprint=fingerprint.hexdigest(),
        quantization=_FILE_TYPES.get(metadata.get("general.file_type", -1), "mixed"),
    )


class _Reader:
    """Walks through a file's header. `at` is where it stands, in bytes from the beginning."""

    def __init__(self, data: mmap.mmap | bytes, path: Path) -> None:
        self._data = data
        self._path = path
        self._size = len(data)
        self.at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, RawTensor]]:
        """Metadata and tensors."""
        if self._take(4, "the magic") != _MAGIC:
            raise ModelFileError(f"{self._path} is not a GGUF file: it begins with {self._data[:4]!r}, not {_MAGIC!r}")
        version = self._scalar("<I")
        if version not in _VERSIONS:
            hint = "; it seems to be big-endian" if version in {v << 24 for v in _VERSIONS} else ""
            raise UnsupportedModelError(f"{self._path} is GGUF version {version}; versions 2 and 3 are read{hint}")
        num_tensors = self._count("tensors", at_least_bytes=24)
        num_keys = self._count("metadata keys", at_least_bytes=13)
        metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in metadata:
                raise self._bad(f"the key {key!r} comes twice")
            metadata[key] = self._value(self._scalar("<I"), key)
        entries = [self._tensor_entry() for _ in range(num_tensors)]
        return metadata, self._place(entries, metadata)

    def _bad(self, what: str) -> ModelFileError:
        return ModelFileError(f"{self._path} is not a sound GGUF file: {what} (at byte {self.at} of {self._size})")

    def _need(self, count: int, what: str) -> None:
        if count > self._size - self.at:
            raise self._bad(f"it ends within {what}: {count} bytes are needed, {self._size - self.at} are left")

    def _take(self, count: int, what: str) -> bytes:
        self._need(count, what)
        self.at += count
        return self._data[self.at - count : self.at]

    def _scalar(self, code: str) -> Any:
        size = struct.calcsize(code)
        self._need(size, "a number")
        (value,) = struct.unpack_from(code, self._data, self.at)
        self.at += size
        return value

    def _count(self, what: str, *, at_least_bytes: int) -> int:
        """A number of things that take at least so many bytes each."""
        count = int(self._scalar("<Q"))
        if count * at_least_bytes > self._size - self.at:
            raise self._bad(
                f"it claims {count} {what}, more than fit in the {self._size - self.at} bytes that are left"
            )
        return count

    def _string(self) -> str:
        raw = self._take(self._count("characters", at_least_bytes=1), "a string")
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._bad(f"a string is not UTF-8: {raw[:40]!r}") from None

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self._bad(f"the key {key!r} has a value of unknown type {kind}")
        value = self._scalar(_SCALARS[kind])
        return bool(value) if kind == _BOOL else value

    def _array(self, key: str) -> Any:
        """A list of strings, or a numpy array of numbers."""
        kind = self._scalar("<I")
        if kind == _STRING:
            return self._strings(self._count("strings", at_least_bytes=8))
        if kind not in _SCALARS:
            raise self._bad(f"the key {key!r} is an array of type {kind}; strings and numbers are read")
        dtype = np.dtype(_SCALARS[kind].replace("B", "u1").replace("b", "i1"))
        count = self._count("numbers", at_least_bytes=dtype.itemsize)
        return np.frombuffer(self._take(count * dtype.itemsize, "an array"), dtype)

    def _strings(self, count: int) -> list[str]:
        """Many strings: the vocabulary, hence written for speed."""
        data, at, size = self._data, self.at, self._size
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        try:
            for _ in range(count):
                end = at + 8 + unpack(data, at)[0]
                if end > size:
                    raise self._bad("a string of an array reaches past the end")
                strings.append(data[at + 8 : end].decode())
                at = end
        except (struct.error, UnicodeDecodeError) as error:
            self.at = at
            raise self._bad(f"a string of an array cannot be read: {error}") from None
        self.at = at
        return strings

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape (outermost first), type and offset of a tensor."""
        name = self._string()
        dimensions = self._scalar("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._bad(f"the tensor {name!r} has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} would be right")
        shape = tuple(int(self._scalar("<Q")) for _ in range(dimensions))[::-1]
        return name, shape, int(self._scalar("<I")), int(self._scalar("<Q"))

    def _place(
        self, entries: list[tuple[str, tuple[int, ...], int, int]], metadata: Mapping[str, Any]
    ) -> dict[str, RawTensor]:
        """Find the bytes of each tensor."""
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
            raise self._bad(f"general.alignment is {alignment!r}; a power of two of at least 8 would be right")
        base = -(-self.at // alignment) * alignment
        everything = np.frombuffer(self._data, np.uint8)
        tensors: dict[str, RawTensor] = {}
        for name, shape, kind, offset in entries:
            if kind not in _TYPES:
                known = ", ".join(known for known, _, _ in _TYPES.values())
                raise UnsupportedModelError(
                    f"{self._path}: the tensor {name!r} is of type {_OTHER_TYPES.get(kind, kind)}; supported are {known}"
                )
            dtype, block, block_bytes = _TYPES[kind]
            count = 1
            for extent in shape:
                count *= extent
            if count == 0 or shape[-1] % block:
                raise self._bad(
                    f"the tensor {name!r} has shape {shape}, which is no whole number of {dtype} blocks of {block}"
                )
            nbytes = count // block * block_bytes
            if offset % alignment:
                raise self._bad(
                    f"the tensor {name!r} begins at {offset}, which is no multiple of the alignment {alignment}"
                )
            if base + offset + nbytes > self._size:
                raise self._bad(
                    f"the tensor {name!r} needs {nbytes} bytes from {base + offset}, past the end; is it truncated?"
                )
            if name in tensors:
                raise self._bad(f"the tensor {name!r} comes twice")
            tensors[name] = RawTensor(name, dtype, shape, everything[base + offset : base + offset + nbytes])
        return tensors


def _vocabulary(metadata: Mapping[str, Any], path: Path) -> Vocabulary:
    """The keys `tokenizer.*`."""

    def get(key: str, kind: type | tuple[type, ...], default: Any) -> Any:
        value = metadata.get(f"tokenizer.ggml.{key}", default)
        if value is not default and (not isinstance(value, kind) or (isinstance(value, bool) and kind is int)):
            raise ModelFileError(f"{path}: tokenizer.ggml.{key} has a value of the wrong type, {type(value).__name__}")
        return value

    model = get("model", str, "")
    kinds = {"gpt2": "bpe", "llama": "spm"}
    if model not in kinds:
        raise UnsupportedModelError(
            f"{path} has a tokenizer of kind {model or 'none'!r}; supported are gpt2 (byte-level BPE) and llama (SentencePiece)"
        )
    tokens = get("tokens", list, [])
    if not tokens:
        raise ModelFileError(f"{path} has no vocabulary (tokenizer.ggml.tokens)")
    types = np.asarray(get("token_type", np.ndarray, np.ones(len(tokens))), np.int32)
    scores = np.asarray(get("scores", np.ndarray, np.zeros(len(tokens) if kinds[model] == "spm" else 0)), np.float32)
    for name, length in (("token_type", len(types)), ("scores", len(scores))):
        if length and length != len(tokens):
            raise ModelFileError(f"{path}: tokenizer.ggml.{name} has {length} entries for {len(tokens)} tokens")

    def token_id(key: str) -> int | None:
        value = get(key, int, None)
        if value is not None and not 0 <= value < len(tokens):
            raise ModelFileError(f"{path}: tokenizer.ggml.{key} is {value}, but there are {len(tokens)} tokens")
        return value

    template = metadata.get("tokenizer.chat_template")
    is_spm = kinds[model] == "spm"
    return Vocabulary(
        kind=kinds[model],
        pre=get("pre", str, "" if is_spm else "gpt-2"),
        tokens=tokens,
        types=types,
        scores=scores,
        merges=get("merges", list, []),
        bos=token_id("bos_token_id"),
        eos=token_id("eos_token_id"),
        unk=token_id("unknown_token_id"),
        pad=token_id("padding_token_id"),
        eot=token_id("eot_token_id"),
        add_bos=get("add_bos_token", bool, is_spm),
        add_eos=get("add_eos_token", bool, False),
        add_space_prefix=get("add_space_prefix", bool, is_spm),
        chat_template=template if isinstance(template, str) else None,
    )
