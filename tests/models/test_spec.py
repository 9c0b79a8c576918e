"""Specs and rotary frequencies against their published formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from anchorstream.errors import UnsupportedModelError
from anchorstream.models.rope_rows import half_split_order
from anchorstream.models.spec import ModelSpec, RopeSpec

SPEC = ModelSpec(
    architecture="llama",
    name="x",
    num_layers=1,
    hidden_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_size=16,
    ffn_size=64,
    vocab_size=10,
    norm_epsilon=1e-5,
    trained_context=100,
    rope=RopeSpec(dim=16),
    tied_head=True,
)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"num_heads": 3}, "multiple of num_kv_heads"),
        ({"head_size": 20}, "multiple of 16"),
        ({"head_size": 512}, "256"),
        ({"rope": RopeSpec(dim=15)}, "even"),
        ({"rope": RopeSpec(dim=18)}, "head_size"),
    ],
)
def test_impossible_models(changes: dict[str, object], says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=says):
        replace(SPEC, **changes)


def test_bytes_of_a_cached_token() -> None:
    assert SPEC.kv_bytes_per_token(2) == 2 * 1 * 2 * 16 * 2


def test_llama3_scaling() -> None:
    """Llama 3.1: waves longer than original/low are slowed by the factor, shorter than original/high kept."""
    rope = RopeSpec(dim=128, base=500000.0, scaling="llama3", factor=8.0, original_context=8192)
    plain = RopeSpec(dim=128, base=500000.0).inverse_frequencies()
    found = rope.inverse_frequencies()
    for wave, before, after in zip(2 * math.pi / plain, plain, found, strict=True):
        if wave < 8192 / 4:
            assert after == pytest.approx(before)
        elif wave > 8192:
            assert after == pytest.approx(before / 8)
        else:
            assert before / 8 < after < before


def test_yarn_scaling() -> None:
    rope = RopeSpec(dim=64, base=10000.0, scaling="yarn", factor=4.0, original_context=4096)
    plain, found = RopeSpec(dim=64).inverse_frequencies(), rope.inverse_frequencies()
    assert found[0] == pytest.approx(plain[0])
    assert found[-1] == pytest.approx(plain[-1] / 4)
    assert rope.magnitude == pytest.approx(0.1 * math.log(4) + 1)
    assert replace(rope, attention_factor=1.5).magnitude == 1.5
    assert RopeSpec(dim=64).magnitude == 1.0


def test_rows_are_reordered_so_that_scores_stay() -> None:
    """Interleaved rotation of interleaved rows is half-split rotation of reordered rows."""
    random = np.random.default_rng(0)
    x, angle = random.standard_normal(24), random.uniform(0, 6, 8)
    interleaved = x.copy()
    interleaved[0:16:2] = x[0:16:2] * np.cos(angle) - x[1:16:2] * np.sin(angle)
    interleaved[1:16:2] = x[0:16:2] * np.sin(angle) + x[1:16:2] * np.cos(angle)
    order = half_split_order(1, 24, 16)
    y = x[order]
    split = y.copy()
    split[:8] = y[:8] * np.cos(angle) - y[8:16] * np.sin(angle)
    split[8:16] = y[8:16] * np.cos(angle) + y[:8] * np.sin(angle)
    assert np.allclose(split, interleaved[order])
