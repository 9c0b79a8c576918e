"""Saved streams as files: safetensors with a header that says what they are. Knows arrays and bytes, no streams.

A file is written beside its place, synced and renamed, so that a break leaves the old file or the new one. Its checksum
covers every byte of header and arrays.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anchorstream.errors import SnapshotError, StorageError

FORMAT = "anchorstream-stream"
VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a file holds.

    Attributes:
        fingerprint: of the model.
        facts: what JSON can say: config, length, turns.
        arrays: by name.
    """

    fingerprint: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, np.ndarray]


def write(path: Path, snapshot: Snapshot) -> None:
    """Write a file in one step.

    Raises:
        StorageError: a full disk, a missing folder, no permission; what was there before is still there.
    """
    from safetensors.numpy import save

    facts = json.dumps(snapshot.facts, sort_keys=True)
    arrays = {name: np.ascontiguousarray(array) for name, array in snapshot.arrays.items()}
    header = {"format": FORMAT, "version": str(VERSION), "fingerprint": snapshot.fingerprint, "facts": facts}
    data = save(arrays, metadata={**header, "checksum": _checksum(header, arrays)})
    temporary: str | None = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _sync_folder(path.parent)
    except OSError as error:
        if temporary:
            with suppress(OSError):
                os.unlink(temporary)
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from None


def read(path: Path, fingerprint: str | None) -> Snapshot:
    """Read and check a file.

    Args:
        fingerprint: of the model that it must belong to; None: any.

    Raises:
        StorageError: there is no such file, or it cannot be read.
        SnapshotError: no saved stream, another version, another model, or damaged; the message says which.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with open(path, "rb"):
            pass
        with safe_open(path, framework="numpy") as file:
            header = dict(file.metadata() or {})
            if header.get("format") != FORMAT:
                raise SnapshotError(f"{path} is not a saved stream")
            if header.get("version") != str(VERSION):
                raise SnapshotError(
                    f"{path} is of version {header.get('version')}; this program reads version {VERSION}"
                )
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
        checksum = header.pop("checksum", "")
        if checksum != _checksum(header, arrays):
            raise SnapshotError(f"{path} is damaged: its checksum does not fit its contents")
        facts = json.loads(header["facts"])
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from None
    except (SafetensorError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, SnapshotError):
            raise
        raise SnapshotError(f"{path} is not a saved stream, or is damaged: {error}") from None
    if fingerprint is not None and header.get("fingerprint") != fingerprint:
        raise SnapshotError(
            f"{path} was saved with another model: {header.get('fingerprint', '')[:12]}..., not {fingerprint[:12]}..."
        )
    return Snapshot(fingerprint=header.get("fingerprint", ""), facts=facts, arrays=arrays)


def _checksum(header: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(dict(header), sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.reshape(-1).view(np.uint8).data if array.size else b"")
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    """Make the new name last."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
