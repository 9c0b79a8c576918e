"""Fixtures that many tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import anchorstream
from anchorstream.formats import hub
from helpers.tiny_model import TinyModel

BOOK = Path(__file__).resolve().parent.parent.parent / "shared" / "texts" / "mobydick.txt"


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file: ANCHORSTREAM_MODEL, or what has been pulled."""
    path = Path(os.environ.get("ANCHORSTREAM_MODEL") or hub.pulled().get(hub.DEFAULT_MODEL, ""))
    if not path.is_file():
        pytest.skip(f"the default model is not here: run `anchorstream pull {hub.DEFAULT_MODEL}`")
    return path


@pytest.fixture(scope="session")
def llm(default_model_path: Path) -> anchorstream.LLM:
    """The default model with integer arithmetic."""
    return anchorstream.load(default_model_path)


@pytest.fixture(scope="session")
def book() -> str:
    """A long English text."""
    path = Path(os.environ.get("ANCHORSTREAM_BOOK") or BOOK)
    if not path.is_file():
        pytest.skip("there is no book: name a long text in ANCHORSTREAM_BOOK")
    return path.read_text(encoding="utf-8-sig")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyModel], Path]:
    """Writes a tiny model once, and gives its file."""
    folder, written = tmp_path_factory.mktemp("tiny"), {}

    def write(model: TinyModel) -> Path:
        key = repr(model)
        if key not in written:
            written[key] = model.write(folder / f"{len(written)}.gguf")
        return written[key]

    return write


@pytest.fixture(scope="session")
def tiny_llm(tiny: Callable[[TinyModel], Path]) -> anchorstream.LLM:
    """A tiny model in f32 on the compiled core."""
    return anchorstream.load(tiny(TinyModel()), compute="f32")


@pytest.fixture
def random() -> np.random.Generator:
    """The same numbers each time."""
    return np.random.default_rng(7)
