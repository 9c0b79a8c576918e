"""The text that benchmarks read."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from anchorstream.errors import AnchorstreamError
from anchorstream.evaluation import texts
from anchorstream.text.tokenizer import TextTokenizer

PATH = Path(__file__).resolve().parent.parent.parent / "shared" / "texts" / "mobydick.txt"


def token_ids(tokenizer: TextTokenizer, path: Path, count: int) -> np.ndarray:
    """The first `count` ids of a text, int32; exits with a message where it cannot be read or is too short."""
    try:
        return texts.token_ids(tokenizer, texts.read_files([path]), count)
    except AnchorstreamError as error:
        sys.exit(f"{error} (--text names another text)")
