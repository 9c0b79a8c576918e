"""Each instruction set against the numpy reference, on shapes that fill no vector too. One test, every kernel."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anchorstream.errors import ConfigError
from anchorstream.kernels import native, reference

core = native.core
ISAS = native.instruction_sets()
TYPES = {
    "F32": 1,
    "F16": 1,
    "BF16": 1,
    "Q4_0": 32,
    "Q4_1": 32,
    "Q5_0": 32,
    "Q5_1": 32,
    "Q8_0": 32,
    "Q4_K": 256,
    "Q5_K": 256,
    "Q6_K": 256,
}
K_BYTES = {"Q4_K": (144, 2), "Q5_K": (176, 2), "Q6_K": (210, 1)}


def blocks_of(dtype: str, rows: int, columns: int, seed: int = 0) -> np.ndarray:
    """Weights of a type as a file has them, uint8 (bytes,)."""
    random = np.random.default_rng(seed)
    if dtype in K_BYTES:  # the gguf package cannot quantise these: any bits are weights, if the scales are sane
        size, scales = K_BYTES[dtype]
        blocks = random.integers(0, 256, (rows * columns // 256, size), np.uint8)
        d = random.uniform(0.001, 0.01, (len(blocks), scales)).astype(np.float16).view(np.uint8)
        if dtype == "Q6_K":
            blocks[:, 208:210] = d
        else:
            blocks[:, :4] = d
        return blocks.reshape(-1)
    weights = random.standard_normal((rows, columns)).astype(np.float32)
    if dtype == "F32":
        return weights.view(np.uint8).reshape(-1)
    kind = gguf.GGMLQuantizationType[dtype]
    return np.ascontiguousarray(gguf.quants.quantize(weights, kind)).view(np.uint8).reshape(-1)


@pytest.mark.parametrize("dtype", TYPES)
def test_dequantising_agrees_with_the_gguf_package(dtype: str) -> None:
    rows, columns = 21, 512
    data = blocks_of(dtype, rows, columns)
    kind = gguf.GGMLQuantizationType[dtype]
    truth = gguf.quants.dequantize(data.reshape(rows, -1), kind) if dtype != "F32" else data.view(np.float32)
    truth = np.asarray(truth, np.float32).reshape(rows, columns)
    assert np.allclose(reference.dequantise(dtype, data, rows, columns), truth, rtol=1e-6, atol=1e-7)
    for packed in (False, True):
        assert np.allclose(core.dequantise(dtype, data, rows, columns, packed), truth, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tokens", [1, 2, 3, 7, 8, 16, 33])
def test_matrix_products(isa: str, dtype: str, tokens: int) -> None:
    random = np.random.default_rng(tokens)
    for rows, columns in ((1, 256), (16, 512), (37, 768)):
        data = blocks_of(dtype, rows, columns, tokens)
        x = (random.standard_normal((tokens, columns)) * random.uniform(0.1, 10, (tokens, 1))).astype(np.float32)
        weights = reference.dequantise(dtype, data, rows, columns).astype(np.float64)
        exact = core.gemm(isa, dtype, data, rows, x, True)
        scale = np.abs(x) @ np.abs(weights.T)
        assert np.abs(exact - x @ weights.T).max() <= 1e-5 * scale.max()
        if TYPES[dtype] == 1:
            continue
        # the integer kernels must be exact on the quantised activations, whatever quantising lost
        q, scales, _ = core.quantise("portable", x)
        rounded = (q.reshape(tokens, -1, 32) * scales[:, :, None]).reshape(tokens, columns).astype(np.float64)
        found = core.gemm(isa, dtype, data, rows, x, False)
        assert np.abs(found - rounded @ weights.T).max() <= 2e-5 * scale.max()


@pytest.mark.parametrize("isa", ISAS)
def test_float_products_with_odd_columns(isa: str) -> None:
    random = np.random.default_rng(1)
    for columns in (1, 5, 17, 33, 100):
        x = random.standard_normal((5, columns)).astype(np.float32)
        weights = random.standard_normal((19, columns)).astype(np.float32)
        found = core.gemm(isa, "F32", weights.view(np.uint8).reshape(-1), 19, x, True)
        assert np.allclose(found, x @ weights.T, atol=1e-4)


@pytest.mark.parametrize("isa", ISAS)
def test_quantising_keeps_within_half_a_step(isa: str) -> None:
    x = (np.random.default_rng(0).standard_normal((9, 96)) * 3).astype(np.float32)
    x[2] = 0
    q, scales, sums = core.quantise(isa, x)
    back = q.reshape(9, 3, 32) * scales[:, :, None]
    assert (np.abs(back.reshape(9, 96) - x).reshape(9, 3, 32).max(2) <= scales * 0.5001).all()
    assert np.allclose(sums, back.sum(2), atol=1e-4)
    assert np.abs(q).max() <= 127


def sealed_banks(keys: np.ndarray, values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Bank by bank; the last one is filled up with its last token."""
    banks = []
    for start in range(0, len(keys), 64):
        pad = ((0, max(0, start + 64 - len(keys))), (0, 0))
        banks.append(reference.sealed(*(np.pad(x[start : start + 64], pad, mode="edge") for x in (keys, values)), bits))
    return tuple(np.concatenate(x)[: len(keys)] for x in zip(*banks, strict=True))  # type: ignore[return-value]


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_attention_against_float64(isa: str, data: st.DataObject) -> None:
    rows = data.draw(st.sampled_from([1, 2, 3, 5, 9, 24, 50]), "rows")
    dim = data.draw(st.sampled_from([16, 32, 64, 80, 96, 128]), "dim")
    count = data.draw(st.integers(1, 200), "keys")
    kind = data.draw(st.sampled_from(["f16", "f32", "q8", "q4"]), "kind")
    random = np.random.default_rng(data.draw(st.integers(0, 999), "seed"))
    q = random.standard_normal((rows, dim)).astype(np.float32)
    keys, values = (random.standard_normal((count, dim)).astype(np.float32) for _ in range(2))
    if kind != "f32":
        keys, values = (array.astype(np.float16).astype(np.float32) for array in (keys, values))
    told = keys, values
    if kind in ("q8", "q4"):
        keys, values = sealed_banks(keys, values, int(kind[1]))
    low = random.integers(0, count, rows).astype(np.int32)
    high = np.array([random.integers(start + 1, count + 1) for start in low], np.int32)
    bias = random.normal(0, 2, count).astype(np.float32) if data.draw(st.booleans(), "bias") else None
    found = core.attend(isa, q, *told, low, high, bias, kind)
    for r in range(rows):
        seen = slice(low[r], high[r])
        scores = keys[seen].astype(np.float64) @ q[r].astype(np.float64)
        if bias is not None:
            scores = scores + bias[seen]
        weights = np.exp(scores - scores.max())
        truth = weights @ values[seen].astype(np.float64) / weights.sum()
        # a number that lies between two codes may be rounded either way
        assert np.abs(found[r] - truth).max() <= (1e-4 if kind in ("f16", "f32") else 5e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("length", [1, 15, 16, 17, 64, 576, 1001])
def test_rows(isa: str, length: int) -> None:
    random = np.random.default_rng(length)
    x, weight = (random.standard_normal(length).astype(np.float32) for _ in range(2))
    assert np.allclose(core.rms_norm(isa, x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), atol=1e-5)
    truth = np.log(np.exp(x.astype(np.float64) * 9).sum())
    assert abs(core.log_sum_exp(isa, x * 9) - truth) <= 1e-4
    if length % 16 == 0:
        gate = np.concatenate([x[:-2], [90, -90]]).astype(np.float32)
        assert np.allclose(core.silu_mul(isa, gate, weight), reference.silu_mul(gate, weight), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("dim", "half"), [(16, 8), (64, 32), (80, 40), (96, 24), (128, 64), (32, 5)])
def test_rotary(isa: str, dim: int, half: int) -> None:
    random = np.random.default_rng(dim)
    x = random.standard_normal(dim).astype(np.float32)
    cos, sin = reference.angles(np.array([4_000_003]), 10000.0 ** -np.linspace(0, 1, half), 1.0)
    found = core.rotate(isa, x, cos[0], sin[0], 0.5)
    assert np.allclose(found, reference.rotate(x, cos[0], sin[0]) * 0.5, atol=1e-6)


def test_the_best_instruction_set_is_chosen_and_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.ISA_VARIABLE, raising=False)
    assert native.instruction_set() == ISAS[0]
    for isa in ISAS:
        monkeypatch.setenv(native.ISA_VARIABLE, isa)
        assert native.instruction_set() == isa
    monkeypatch.setenv(native.ISA_VARIABLE, "mmx")
    with pytest.raises(ConfigError, match="mmx"):
        native.instruction_set()


@pytest.mark.parametrize(
    "call",
    [
        lambda: core.gemm("portable", "Q4_1", np.zeros(7, np.uint8), 1, np.zeros((1, 32), np.float32), False),
        lambda: core.gemm("portable", "Q9_9", np.zeros(7, np.uint8), 1, np.zeros((1, 32), np.float32), False),
        lambda: core.dequantise("Q4_1", np.zeros(20, np.uint8), 1, 33, True),
        lambda: core.quantise("portable", np.zeros((1, 31), np.float32)),
        lambda: core.rms_norm("portable", np.zeros(4, np.float32), np.zeros(5, np.float32), 1e-5),
        lambda: core.rms_norm("nothing", np.zeros(4, np.float32), np.zeros(4, np.float32), 1e-5),
    ],
)
def test_shapes_are_checked(call: object) -> None:
    with pytest.raises(ValueError):
        call()  # type: ignore[operator]


def test_the_machine_is_described() -> None:
    assert native.usable_cores() >= 1
    assert native.read_bandwidth(8 << 20, 1, 2) > 1e8
    free = native.available_memory()
    assert free is None or free > 0
