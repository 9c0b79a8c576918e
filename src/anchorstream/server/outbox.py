"""What a request's maker is told by the engine's thread, and how it gets into the event loop without waking it for each token."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

_INTERVAL = 0.05  # seconds between two wakings: a reader sees no more, and each takes time from the engine
_MOST = 200_000  # events that may wait for a client which does not read


@dataclass(frozen=True, slots=True)
class Chosen:
    """How likely a token was: its text's bytes, its -log p, and the likeliest with theirs."""

    token: int
    logprob: float
    top: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request can be carried out, and its prompt is being read."""


@dataclass(frozen=True, slots=True)
class Began:
    """The prompt has been read, and the first token is coming."""


@dataclass(frozen=True, slots=True)
class Text:
    """More of a reply."""

    choice: int
    text: str
    chosen: Chosen | None = None
    token: int | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """A reply has ended."""

    choice: int
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """All replies have ended, and what they leave is kept."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Failed:
    """It came to nothing."""

    error: BaseException


Event = Admitted | Began | Text | Ended | Done | Failed


class Outbox:
    """A queue from the engine's thread to one task of the event loop. Putting never waits."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event] = deque()
        self._ready = asyncio.Event()
        self._woken = 0.0

    @property
    def full(self) -> bool:
        """Whether whoever should read this does not."""
        return len(self._events) > _MOST

    def put(self, event: Event) -> None:
        """Called by the engine's thread; texts are gathered for a moment, all else is told at once."""
        self._events.append(event)
        now = time.monotonic()
        if isinstance(event, Text) and now - self._woken < _INTERVAL:
            return
        self._woken = now
        with suppress(RuntimeError):  # the loop has been closed: no one listens
            self._loop.call_soon_threadsafe(self._ready.set)

    async def take(self, timeout: float | None = None) -> list[Event]:
        """All events so far, at least one; none after `timeout` seconds."""
        if not self._events or not self._ready.is_set():
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._ready.wait(), timeout)
        self._ready.clear()
        taken: list[Event] = []
        while self._events:
            taken.append(self._events.popleft())
        return taken
