"""The default model's logits as transformers gave them in float32, kept in a small file (tests/torch writes it)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import anchorstream

GOLDEN = Path(__file__).parent.parent / "data" / "golden_logits.npz"


@pytest.mark.parametrize("engine", ["swift", "reference"])
def test_golden_logits(engine: str, default_model_path: Path) -> None:
    stream = anchorstream.load(default_model_path, engine=engine, compute="f32").stream(method="dense")
    with np.load(GOLDEN) as golden:
        done, worst = 0, 0.0
        for place, row in zip(golden["places"], golden["logits"], strict=True):
            stream.feed(golden["ids"][done : place + 1])
            done = place + 1
            worst = max(worst, float(np.abs(stream.logits[golden["columns"]] - row).max()))
    assert worst <= 1e-3


def test_integer_arithmetic_is_close(llm: anchorstream.LLM) -> None:
    """int8 activations change the logits a little and the likeliest tokens hardly ever."""
    stream = llm.stream(method="dense")
    with np.load(GOLDEN) as golden:
        ids, columns = golden["ids"], golden["columns"]
        stream.feed(ids[: golden["places"][-1] + 1])
        assert np.corrcoef(stream.logits[columns], golden["logits"][-1])[0, 1] > 0.998
