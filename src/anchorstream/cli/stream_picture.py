"""A saved stream as a picture on a terminal: anchors, window bank by bank, and what has left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_MARKS = {"f16": "█", "f32": "█", "q8": "▓", "q4": "▒"}


def show(path: Path, *, as_json: bool) -> None:
    """Print what a saved stream holds.

    Raises:
        StorageError, SnapshotError: it cannot be read, or is no saved stream.
    """
    from anchorstream.cache import snapshot

    saved = snapshot.read(path, None)
    description = saved.facts.get("description", {})
    if as_json:
        print(json.dumps({"fingerprint": saved.fingerprint, **description}))
        return
    print("\n".join(lines(description)))


def lines(stream: dict[str, Any]) -> list[str]:
    """The picture of what `Stream.describe` says."""
    banks = stream["banks"]
    anchors = "".join("█" for bank in banks if bank["anchors"])
    window = "".join(_MARKS.get(bank["precision"], "█") for bank in banks if not bank["anchors"])
    gone = f" ░░ {stream['evicted']:,} evicted ░░ " if stream["evicted"] else " "
    kinds = sorted({bank["precision"] for bank in banks})
    counts = ", ".join(f"{sum(bank['precision'] == kind for bank in banks)} {kind}" for kind in kinds) or "none"
    size = "grows" if stream["cache_size"] is None else f"{stream['cache_size']:,} tokens"
    return [
        f"{anchors}{gone}{window}",
        "█ f16, f32   ▓ q8   ▒ q4   one mark a bank of 64 tokens; the first are anchors",
        f"{'method':<16} {stream['method']}, cache {size}",
        f"{'length':<16} {stream['length']:,} tokens consumed, {stream['evicted']:,} of them evicted",
        f"{'anchors':<16} {stream['anchors']:,} tokens",
        f"{'window':<16} {stream['window']:,} tokens, from index {stream['window_first']:,}",
        f"{'banks':<16} {len(banks)}: {counts}; {stream['nbytes'] / 1e6:.1f} MB",
    ]
