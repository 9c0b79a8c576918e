"""What a client is told at the end: usage, timings as llama.cpp gives them, and what streaming did."""

from __future__ import annotations

from typing import Any

from anchorstream.server.job import Job
from anchorstream.stream.stream import Stream


def of(job: Job) -> dict[str, Any]:
    """The blocks `usage`, `timings` and `streaming` of a reply."""
    stream = job.stream
    assert stream is not None
    made = sum(len(choice.tokens) for choice in job.choices)
    read, asked = len(job.prompt), job.start_length + len(job.prompt)
    read_ms, made_ms = (job.read - job.started) * 1e3, (job.ended - job.read) * 1e3
    held = stream.held
    streaming: dict[str, Any] = {
        "tokens_consumed": stream.length,
        "cache_size": stream.config.cache_size,
        "anchors": held.anchors,
        "window": held.window,
        "window_first": held.window_first,
        "evicted_tokens": held.evicted,
        "evicted_by_request": held.evicted - job.start_evicted,
        "request_in_window": held.window_first <= max(job.request_index, held.anchors),
    }
    if job.session is not None:
        gone = evicted_turns(stream, turns_begun(job))
        streaming |= {
            "session": job.session.id,
            "evicted_turns": gone,
            "evicted_turns_by_request": max(0, gone - job.start_evicted_turns),
            "restored_tokens": job.refed,
        }
    return {
        "usage": {
            "prompt_tokens": asked,
            "completion_tokens": made,
            "total_tokens": asked + made,
            "prompt_tokens_details": {"cached_tokens": job.start_length},
        },
        "timings": {
            "cache_n": job.start_length,
            "prompt_n": read,
            "prompt_ms": round(read_ms, 3),
            "prompt_per_token_ms": round(read_ms / max(1, read), 4),
            "prompt_per_second": round(read / max(read_ms, 1e-3) * 1e3, 2),
            "predicted_n": made,
            "predicted_ms": round(made_ms, 3),
            "predicted_per_token_ms": round(made_ms / max(1, made), 4),
            "predicted_per_second": round(made / max(made_ms, 1e-3) * 1e3, 2),
        },
        "streaming": streaming,
    }


def turns_begun(job: Job) -> int:
    """Turns of a user that the job's stream has seen begin."""
    assert job.session is not None
    before = job.draft.begun if job.draft is not None else job.session.turns_begun
    return before + sum(begin >= job.first_new for begin in job.begins)


def evicted_turns(stream: Stream, begun: int) -> int:
    """Turns whose beginning has left a stream's window, of `begun` that it has seen begin."""
    first = stream.held.window_first
    return max(0, begun - sum(turn >= first for turn in stream.turns))
