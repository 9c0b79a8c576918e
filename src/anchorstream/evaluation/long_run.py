"""A stream of millions of tokens, with a checkpoint every minute: it resumes after a kill with the same result.

A checkpoint is the saved stream and, beside it, the sums of each finished block. The stream is restored to the bit, so
a run that was killed gives the very numbers of one that was not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anchorstream.errors import SnapshotError
from anchorstream.evaluation import machine, results
from anchorstream.stream.stream import Stream

_STEP = 10_000  # tokens between two looks at the clock; checkpoints fall on multiples of it
_STREAM, _STATE = "checkpoint.stream", "checkpoint"


@dataclass
class LongRun:
    """What has been measured so far.

    Attributes:
        tokens: how many in all.
        block: tokens of a block.
        done: tokens gone through.
        nll: sum of -log p in the unfinished block, in nats; scored: how many tokens it holds.
        perplexities: of the finished blocks.
        speeds: tokens per second while each finished block was scored.
        memory: resident bytes at the end of each finished block.
    """

    tokens: int
    block: int = 100_000
    done: int = 0
    nll: float = 0.0
    scored: int = 0
    seconds: float = 0.0
    perplexities: list[float] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


Progress = Callable[[LongRun], None]


def run(
    llm: Any,
    ids: np.ndarray,
    long_run: LongRun,
    folder: Path,
    options: dict[str, Any],
    *,
    every: float = 60.0,
    progress: Progress | None = None,
) -> LongRun:
    """Go on from the checkpoint in `folder`, if there is one, to the end.

    Args:
        llm: the model.
        ids: the text, int32 (n,); it begins again where it ends.
        folder: for checkpoints.
        options: of the stream.
        every: seconds between checkpoints.
        progress: called after each step; what it raises ends the run after a last checkpoint.

    Raises:
        SnapshotError: the checkpoint belongs to another model, text or setting.
        StorageError: a checkpoint cannot be written.
    """
    long_run, stream = _resume(llm, long_run, folder, options, len(ids))
    saved = begun = time.monotonic()
    try:
        while long_run.done < long_run.tokens:
            count = min(_STEP, long_run.tokens - long_run.done, long_run.block - long_run.done % long_run.block)
            piece = ids[np.arange(long_run.done, long_run.done + count) % len(ids)]
            scores = stream.score(piece).astype(np.float64)
            long_run.nll += float(np.nansum(scores))
            long_run.scored += int(np.isfinite(scores).sum())
            long_run.done += count
            now = time.monotonic()
            long_run.seconds += now - begun
            begun = now
            if long_run.done % long_run.block == 0 or long_run.done == long_run.tokens:
                _finish_block(long_run)
            if now - saved >= every:
                _save(long_run, stream, folder, options, len(ids))
                saved = begun = time.monotonic()
            if progress:
                progress(long_run)
    finally:
        _save(long_run, stream, folder, options, len(ids))
        stream.close()
    return long_run


def _finish_block(long_run: LongRun) -> None:
    long_run.perplexities.append(float(np.exp(long_run.nll / max(1, long_run.scored))))
    long_run.speeds.append(long_run.scored / long_run.seconds if long_run.seconds else 0.0)
    machine.trim()  # a checkpoint's copy of the cache has just been freed
    long_run.memory.append(machine.memory())
    long_run.nll, long_run.scored, long_run.seconds = 0.0, 0, 0.0


def _settings(long_run: LongRun, options: dict[str, Any], text: int) -> dict[str, Any]:
    """What a checkpoint must share with the run that goes on from it."""
    return {"block": long_run.block, "options": options, "text_tokens": text}


def _save(long_run: LongRun, stream: Stream, folder: Path, options: dict[str, Any], text: int) -> None:
    """The stream first: its file holds its own length, and the state names the length that it belongs to."""
    state = {"settings": _settings(long_run, options, text), "run": asdict(long_run)}
    name = f"{long_run.done}-{_STREAM}"  # the file of the state before is left alone until the new state is written
    folder.mkdir(parents=True, exist_ok=True)
    stream.save(folder / name)
    results.write(folder, _STATE, {**state, "stream": name})
    for other in folder.glob(f"*-{_STREAM}"):
        if other.name != name:
            other.unlink(missing_ok=True)


def _resume(llm: Any, long_run: LongRun, folder: Path, options: dict[str, Any], text: int) -> tuple[LongRun, Stream]:
    path = folder / f"{_STATE}.json"
    if not path.exists():
        return long_run, llm.stream(**options)
    try:
        state = json.loads(path.read_text())
        before = LongRun(**state["run"])
        same = state["settings"] == _settings(long_run, options, text)
        stream_path = folder / state["stream"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path} is no checkpoint ({error}); delete {folder} to begin anew") from None
    if not same:
        raise SnapshotError(
            f"the checkpoint in {folder} is of another text or setting; delete the folder to begin anew"
        )
    stream: Stream = llm.restore(stream_path)
    if stream.length != before.done:
        raise SnapshotError(
            f"{stream_path} holds {stream.length:,} tokens, its checkpoint {before.done:,}; delete {folder} to begin anew"
        )
    before.tokens = max(long_run.tokens, before.done)
    return before, stream
