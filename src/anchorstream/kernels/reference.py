"""The core's functions in plain numpy, float32: the oracle that the compiled ones are tested against."""

from __future__ import annotations

import numpy as np


def rms_norm(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    """`x / sqrt(mean(x^2) + epsilon) * weight` over the last axis (Zhang and Sennrich, arXiv 1910.07467)."""
    scale = 1 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True, dtype=np.float32) + np.float32(epsilon))
    return (x * scale * weight).astype(np.float32)


def silu_mul(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """`gate * sigmoid(gate) * up` (Shazeer, arXiv 2002.05202)."""
    with np.errstate(over="ignore"):  # exp(90) is infinity in float32, and 1 / infinity is the right 0
        return gate / (1 + np.exp(-gate)) * up


def angles(positions: np.ndarray, inverse_frequencies: np.ndarray, magnitude: float) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin, float32 (positions, dim / 2), computed in float64: float32 loses the high frequencies early."""
    turns = np.asarray(positions, np.float64)[:, None] * inverse_frequencies
    return (np.cos(turns) * magnitude).astype(np.float32), (np.sin(turns) * magnitude).astype(np.float32)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Rotary embedding of `x` (..., head_size), pairing dimensions (i, i + dim/2); the rest stays (arXiv 2104.09864)."""
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """Softmax attention of one query over the keys given, scores divided by the root of the head size.

    Args:
        q: (head_size,). keys, values: (n, head_size). bias: (n,) added to the scores.

    Returns:
        (head_size,).
    """
    return attention_weights(q, keys, bias) @ values


def attention_weights(q: np.ndarray, keys: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """How much of its attention a query gives to each key, (n,); see `attend`."""
    scores = keys @ q / np.sqrt(np.float32(len(q)))
    if bias is not None:
        scores = scores + bias
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def sealed(keys: np.ndarray, values: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values of a full bank after they were quantised: what attention then sees.

    Keys per channel within the bank, values per token (KIVI, arXiv 2402.02750), each group of numbers with an f16 scale and
    an f16 minimum.

    Args:
        keys, values: float32 (64, dim), representable in f16.
        bits: 8 or 4.

    Returns:
        The same shapes.
    """

    def rounded(x: np.ndarray) -> np.ndarray:
        levels, lowest = 2**bits - 1, -128 if bits == 8 else 0
        least = x.min(axis=-1, keepdims=True)
        scale = ((x.max(axis=-1, keepdims=True) - least) / np.float32(levels)).astype(np.float16).astype(np.float32)
        minimum = (least - np.float32(lowest) * scale).astype(np.float16).astype(np.float32)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        return np.clip(np.rint((x - minimum) * inverse), lowest, lowest + levels) * scale + minimum

    return rounded(keys.T).T.astype(np.float32), rounded(values).astype(np.float32)


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    wide = logits.astype(np.float64)
    top = wide.max(axis=-1, keepdims=True)
    return wide - top - np.log(np.exp(wide - top).sum(axis=-1, keepdims=True))


def half_to_float(bits: np.ndarray) -> np.ndarray:
    """f16 bytes as float32; uint8 (..., 2 n) to (..., n)."""
    return np.ascontiguousarray(bits).view(np.float16).astype(np.float32)


def dequantise(dtype: str, data: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The weights of a GGUF tensor, float32 (rows, columns), exactly as ggml's formats define them.

    Args:
        dtype: GGUF's type name.
        data: uint8 (bytes,).
    """
    if dtype == "F32":
        return data.view(np.float32).reshape(rows, columns).copy()
    if dtype == "F16":
        return half_to_float(data).reshape(rows, columns)
    if dtype == "BF16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32).reshape(rows, columns)
    block_bytes, unpack = _BLOCKS[dtype]
    return unpack(data.reshape(-1, block_bytes)).reshape(rows, columns)


def _nibbles(bytes_: np.ndarray) -> np.ndarray:
    """Low nibbles, then high ones; uint8 (blocks, n) to float32 (blocks, 2 n)."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1).astype(np.float32)


def _fifth_bits(bytes_: np.ndarray) -> np.ndarray:
    """16 times each of 32 bits; uint8 (blocks, 4) to float32 (blocks, 32)."""
    return np.unpackbits(bytes_, axis=-1, bitorder="little").astype(np.float32) * 16


def _q4_0(b: np.ndarray) -> np.ndarray:
    return half_to_float(b[:, :2]) * (_nibbles(b[:, 2:]) - 8)


def _q4_1(b: np.ndarray) -> np.ndarray:
    return half_to_float(b[:, :2]) * _nibbles(b[:, 4:]) + half_to_float(b[:, 2:4])


def _q5_0(b: np.ndarray) -> np.ndarray:
    return half_to_float(b[:, :2]) * (_nibbles(b[:, 6:]) + _fifth_bits(b[:, 2:6]) - 16)


def _q5_1(b: np.ndarray) -> np.ndarray:
    return half_to_float(b[:, :2]) * (_nibbles(b[:, 8:]) + _fifth_bits(b[:, 4:8])) + half_to_float(b[:, 2:4])


def _q8_0(b: np.ndarray) -> np.ndarray:
    return half_to_float(b[:, :2]) * b[:, 2:].view(np.int8).astype(np.float32)


def _k_scales(b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight 6-bit scales and minimums from 12 bytes; float32 (blocks, 8) each."""
    low, middle, high = b[:, :4], b[:, 4:8], b[:, 8:]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=-1)
    minimums = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=-1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _k_values(b: np.ndarray, q: np.ndarray) -> np.ndarray:
    """`d * scale * q - dmin * minimum`; q float32 (blocks, 8, 32)."""
    scales, minimums = _k_scales(b[:, 4:16])
    d, dmin = half_to_float(b[:, :2]), half_to_float(b[:, 2:4])
    return (d * scales)[:, :, None] * q - (dmin * minimums)[:, :, None]


def _k_nibbles(bytes_: np.ndarray) -> np.ndarray:
    """Four groups of 32 bytes, each first the low and then the high nibbles; to float32 (blocks, 8, 32)."""
    groups = bytes_.reshape(-1, 4, 32)
    return np.stack([groups & 15, groups >> 4], axis=2).reshape(-1, 8, 32).astype(np.float32)


def _q4_k(b: np.ndarray) -> np.ndarray:
    return _k_values(b, _k_nibbles(b[:, 16:]))


def _q5_k(b: np.ndarray) -> np.ndarray:
    fifth = (b[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None]) & 1
    return _k_values(b, _k_nibbles(b[:, 48:]) + fifth.astype(np.float32) * 16)


def _q6_k(b: np.ndarray) -> np.ndarray:
    low = b[:, :128].reshape(-1, 2, 64)
    both = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    high = (b[:, 128:192].reshape(-1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[None, None, :, None]) & 3
    q = (both | (high << 4)).astype(np.float32) - 32
    scales = b[:, 192:208].view(np.int8).astype(np.float32)
    return half_to_float(b[:, 208:])[:, :, None] * scales[:, :, None] * q.reshape(-1, 16, 16)


_BLOCKS = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q8_0": (34, _q8_0),
    "Q4_K": (144, _q4_k),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
}
