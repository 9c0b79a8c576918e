"""The whole of it on a book: perplexities that were measured in float32 before anything was built."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest

import anchorstream

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

TOKENS = 20_480
EXPECTED = {"streaming": 46.52, "window": 77.93, "dense": 156.24}
OPTIONS = {
    "streaming": {"cache_size": 1024, "num_sinks": 4},
    "window": {"method": "window", "cache_size": 1024},
    "dense": {"method": "dense"},
}


@functools.cache
def perplexity(path: Path, book: str, method: str, compute: str) -> float:
    """Of the first tokens of the book, the first left out."""
    llm = anchorstream.load(path, compute=compute)
    ids = np.array(llm.tokenize(book)[:TOKENS], np.int32)
    with llm.stream(**OPTIONS[method]) as stream:
        return float(np.exp(stream.score(ids)[1:].astype(np.float64).mean()))


@pytest.mark.parametrize("method", EXPECTED)
def test_perplexity_in_f32(method: str, default_model_path: Path, book: str) -> None:
    found = perplexity(default_model_path, book, method, "f32")
    print(f"{method}: {found:.3f}")
    assert found == pytest.approx(EXPECTED[method], abs=0.1)


@pytest.mark.parametrize("method", EXPECTED)
def test_integer_arithmetic_costs_less_than_one_percent(method: str, default_model_path: Path, book: str) -> None:
    found = perplexity(default_model_path, book, method, "int8")
    print(f"{method}: {found:.3f}")
    assert found == pytest.approx(perplexity(default_model_path, book, method, "f32"), rel=0.01)
