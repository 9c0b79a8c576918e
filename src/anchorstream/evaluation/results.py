"""Results on disk: JSON that says where it was measured, and per-token values in a compressed array beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from anchorstream.errors import StorageError
from anchorstream.evaluation import machine


def describe(llm: Any, name: str, **facts: Any) -> dict[str, Any]:
    """What every result begins with: the measurement's name, machine, model and engine."""
    model = {"name": llm.spec.name, "quantization": llm.quantization, "trained_context": llm.spec.trained_context}
    return {"benchmark": name, **machine.describe(), "model": model, "engine": llm.engine.describe(), **facts}


def write(folder: Path, name: str, result: Mapping[str, Any], arrays: Mapping[str, np.ndarray] | None = None) -> Path:
    """Write `name`.json, and `name`.npz if there are arrays, into a folder that is made if need be.

    Raises:
        StorageError: a full disk, or a folder that cannot be written; files that were there are still there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if arrays:
            _replace(folder / f"{name}.npz", lambda part: _save_arrays(part, arrays))
        path = folder / f"{name}.json"
        _replace(path, lambda part: part.write_text(json.dumps(result, indent=2) + "\n"))
    except OSError as error:
        raise StorageError(f"the results cannot be written to {folder}: {error.strerror or error}") from None
    return path


def _save_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    with open(path, "wb") as file:  # numpy would put a suffix behind a name
        np.savez_compressed(file, **dict(arrays))  # type: ignore[arg-type]


def _replace(path: Path, write_to: Any) -> None:
    """Write beside the place and rename, so that a break leaves the old file or the new one."""
    part = path.with_name(path.name + ".part")
    try:
        write_to(part)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise
