"""Texts to measure on: files, or a dataset of the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anchorstream.errors import InputError, MissingExtraError
from anchorstream.text.utf8 import decode

_DATASETS = {"pg19": ("deepmind/pg19", "test", "text")}  # name: repository, split, column


def read_files(paths: Sequence[Path]) -> str:
    """The files' texts, one after the other.

    Raises:
        InputError: a file that is missing, empty, or no UTF-8 text.
    """
    texts = []
    for path in paths:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        if b"\0" in data[: 1 << 16]:
            raise InputError(f"{path} is a binary file; a text in UTF-8 is needed")
        text = decode(data, str(path))
        if not text.strip():
            raise InputError(f"{path} is empty")
        texts.append(text)
    return "\n".join(texts)


def read_dataset(name: str, characters: int) -> str:
    """At least so many characters of a dataset.

    Raises:
        MissingExtraError: the library `datasets` is not installed.
        InputError: an unknown dataset, or one that cannot be fetched.
    """
    if name not in _DATASETS:
        raise InputError(f"there is no dataset {name!r}; known are: {', '.join(_DATASETS)}")
    try:
        from datasets import load_dataset
    except ImportError:
        raise MissingExtraError(
            "--dataset needs the extra 'eval': pip install 'anchorstream[eval]'; --text needs nothing"
        ) from None
    repository, split, column = _DATASETS[name]
    try:
        rows: Iterable[dict[str, Any]] = load_dataset(repository, split=split, streaming=True)
        texts, total = [], 0
        for row in rows:
            texts.append(row[column])
            total += len(row[column])
            if total >= characters:
                break
    except Exception as error:  # whatever the library meets on its way
        raise InputError(f"the dataset {name!r} cannot be fetched ({error}); give a file with --text") from None
    return "\n".join(texts)


def token_ids(tokenizer: Any, text: str, count: int | None, *, repeat: bool = False) -> np.ndarray:
    """The first `count` ids of a text, int32 (count,); None: all of them.

    Args:
        repeat: begin again where the text ends.

    Raises:
        InputError: a text that is shorter than asked for.
    """
    ids = np.array(tokenizer.tokenize(text), np.int32)
    if count is None:
        return ids
    if len(ids) < count and not repeat:
        raise InputError(
            f"the text has {len(ids):,} tokens, {count:,} were asked for; give more text or ask for fewer tokens"
        )
    return np.resize(ids, count)
