"""Reading GGUF: what another's writer wrote, and what no one should have written."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anchorstream
from anchorstream.errors import AnchorstreamError, ModelFileError, ModelNotFoundError, UnsupportedModelError
from anchorstream.formats.gguf import open_gguf
from helpers.tiny_model import TinyModel

Tiny = Callable[[TinyModel], Path]


def test_reads_what_the_gguf_package_reads(tiny: Tiny) -> None:
    path = tiny(TinyModel(dtype="Q4_1", bias=True, tied=False))
    file, truth = open_gguf(path), gguf.GGUFReader(path)
    assert set(file.tensors) == {tensor.name for tensor in truth.tensors}
    for tensor in truth.tensors:
        ours = file.tensors[tensor.name]
        assert ours.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert ours.dtype == tensor.tensor_type.name
        assert np.array_equal(ours.data, np.asarray(tensor.data).view(np.uint8).reshape(-1))
    spec = file.spec
    assert (spec.num_layers, spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_size) == (2, 64, 4, 2, 32)
    assert not spec.tied_head
    assert spec.attention_bias
    assert file.vocabulary.tokens[1] == "<|im_start|>"
    assert file.vocabulary.eos == 2


def test_the_default_model(default_model_path: Path) -> None:
    file = open_gguf(default_model_path)
    spec = file.spec
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_size, spec.vocab_size) == (
        30,
        9,
        3,
        64,
        49152,
    )
    assert (spec.rope.base, spec.trained_context, spec.tied_head) == (100000.0, 8192, True)
    assert file.quantization == "Q4_1"


@pytest.mark.parametrize(
    ("extra", "kind", "factor"),
    [
        ({}, "none", 1.0),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}, "linear", 4.0),
        ({"llama.rope.scale_linear": 2.0}, "linear", 2.0),
        (
            {
                "llama.rope.scaling.type": "yarn",
                "llama.rope.scaling.factor": 8.0,
                "llama.rope.scaling.original_context_length": 128,
            },
            "yarn",
            8.0,
        ),
    ],
)
def test_rope_scaling(tiny: Tiny, extra: dict[str, object], kind: str, factor: float) -> None:
    rope = open_gguf(tiny(TinyModel(extra=extra))).spec.rope
    assert (rope.scaling, rope.factor) == (kind, factor)


def test_rope_factors_of_llama3(tiny: Tiny) -> None:
    factors = np.linspace(1, 8, 16).tolist()
    rope = open_gguf(tiny(TinyModel(rope_factors=factors))).spec.rope
    plain = open_gguf(tiny(TinyModel())).spec.rope
    assert np.allclose(rope.inverse_frequencies() * np.array(factors), plain.inverse_frequencies())


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"llama.expert_count": 8}, "expert_count"),
        ({"llama.rope.scaling.type": "longrope"}, "longrope"),
        ({"llama.attention.sliding_window": 4096}, "sliding_window"),
    ],
)
def test_what_cannot_be_run_is_named(tiny: Tiny, extra: dict[str, object], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        open_gguf(tiny(TinyModel(extra=extra)))


def test_an_unknown_pre_tokenizer_is_named(tiny: Tiny) -> None:
    with pytest.raises(UnsupportedModelError, match="klingon"):
        anchorstream.load(tiny(TinyModel(pre="klingon")))


# ---- files by hand ----


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, payload: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + payload


def header(*keys: bytes, tensors: int = 0, version: int = 3, num_keys: int | None = None) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, len(keys) if num_keys is None else num_keys) + b"".join(keys)


def tensor(
    name: str = "a", shape: tuple[int, ...] = (32,), kind: int = 0, offset: int = 0, dimensions: int | None = None
) -> bytes:
    count = len(shape) if dimensions is None else dimensions
    return (
        text(name)
        + struct.pack("<I", count)
        + struct.pack(f"<{len(shape)}Q", *shape)
        + struct.pack("<IQ", kind, offset)
    )


ARCH = key("general.architecture", 8, text("llama"))
BAD = {
    "empty": (b"", "empty"),
    "not gguf": (b"PK\x03\x04" + bytes(60), "not a GGUF"),
    "short": (b"GGUF\x03\x00", "ends within"),
    "version 1": (header(version=1), "version 1"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "too many keys": (header(num_keys=1 << 60), "metadata keys"),
    "too many tensors": (header(tensors=1 << 62), "tensors"),
    "string past the end": (header(struct.pack("<Q", 1 << 40) + b"abc" + bytes(20)), "characters"),
    "a key twice": (header(ARCH, ARCH), "twice"),
    "key not UTF-8": (header(key("a", 4, bytes(4)).replace(b"a", b"\xff") + bytes(8)), "UTF-8"),
    "unknown value type": (header(key("a", 99, bytes(8))), "unknown type 99"),
    "array of arrays": (header(key("a", 9, struct.pack("<IQ", 9, 1) + bytes(16))), "array of type 9"),
    "endless array": (header(key("a", 9, struct.pack("<IQ", 8, 1 << 50))), "strings"),
    "endless numbers": (header(key("a", 9, struct.pack("<IQ", 12, 1 << 61))), "numbers"),
    "string of an array past the end": (
        header(key("a", 9, struct.pack("<IQQ", 8, 1, 1 << 63))),
        "past the end|strings",
    ),
    "alignment 0": (header(key("general.alignment", 4, struct.pack("<I", 0))), "alignment"),
    "alignment 12": (header(key("general.alignment", 4, struct.pack("<I", 12))), "alignment"),
    "alignment text": (header(key("general.alignment", 8, text("x"))), "alignment"),
    "no dimensions": (header(ARCH, tensors=1) + tensor(shape=(), dimensions=0) + bytes(256), "dimensions"),
    "many dimensions": (header(ARCH, tensors=1) + tensor(shape=(1,) * 9) + bytes(256), "9 dimensions"),
    "no elements": (header(ARCH, tensors=1) + tensor(shape=(0,)) + bytes(256), "shape"),
    "broken block": (header(ARCH, tensors=1) + tensor(shape=(33,), kind=3) + bytes(256), "blocks of 32"),
    "unknown tensor type": (header(ARCH, tensors=1) + tensor(kind=77) + bytes(256), "type 77"),
    "known but unsupported": (header(ARCH, tensors=1) + tensor(kind=23) + bytes(256), "IQ4_XS"),
    "offset not aligned": (header(ARCH, tensors=1) + tensor(offset=4) + bytes(256), "alignment"),
    "tensor past the end": (header(ARCH, tensors=1) + tensor(offset=32) + bytes(64), "truncated"),
    "absurd shape": (header(ARCH, tensors=1) + tensor(shape=(1 << 62, 1 << 62)) + bytes(256), "truncated"),
    "a tensor twice": (header(ARCH, tensors=2) + tensor() + tensor() + bytes(512), "twice"),
    "no tokenizer": (header(ARCH), "tokenizer"),
    "no vocabulary": (header(ARCH, key("tokenizer.ggml.model", 8, text("gpt2"))), "vocabulary"),
    "other tokenizer": (header(ARCH, key("tokenizer.ggml.model", 8, text("rwkv"))), "rwkv"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name: str, tmp_path: Path) -> None:
    data, says = BAD[name]
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelFileError, match=says):
        open_gguf(path)


def test_other_architectures_are_named(tiny: Tiny, tmp_path: Path) -> None:
    data = tiny(TinyModel()).read_bytes().replace(text("llama"), text("lhama"), 1)
    (tmp_path / "other.gguf").write_bytes(data)
    with pytest.raises(UnsupportedModelError, match="lhama"):
        open_gguf(tmp_path / "other.gguf")


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        open_gguf(tmp_path / "nothing.gguf")
    with pytest.raises(ModelFileError):
        open_gguf(tmp_path)


@pytest.fixture(scope="module")
def sound(tiny: Tiny) -> bytes:
    return tiny(TinyModel(layers=1, hidden=32, ffn=32, heads=2, kv_heads=1, dtype="Q4_0")).read_bytes()


def opens_or_refuses(data: bytes, path: Path) -> None:
    """A damaged file is refused by one of our errors, or is still sound enough to run."""
    path.write_bytes(data)
    try:
        llm = anchorstream.load(path, threads=1)
        with llm.stream(cache_size=8) as stream:
            stream.feed("ab")
            list(stream.generate(2, temperature=0))
    except AnchorstreamError:
        pass


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1))
def test_truncated_anywhere(sound: bytes, cut: float, tmp_path: Path) -> None:
    opens_or_refuses(sound[: int(len(sound) * cut)], tmp_path / "cut.gguf")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damaged_anywhere(sound: bytes, data: st.DataObject, tmp_path: Path) -> None:
    """Some bytes of the header changed: single bits, and the values at which counts and lengths break."""
    damaged = bytearray(sound)
    end = sound.index(b"blk.0.ffn_down.weight") + 200  # metadata and most of the tensor table
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, end - 8))
        value = data.draw(
            st.sampled_from([0, 1, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]) | st.integers(0, 255)
        )
        width = data.draw(st.sampled_from([1, 4, 8]))
        damaged[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    opens_or_refuses(bytes(damaged), tmp_path / "damaged.gguf")
