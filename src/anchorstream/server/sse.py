"""Server-sent events, and clients that go away while they are served."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or a proxy in front would gather the events
]
END = "data: [DONE]\n\n"


def event(data: dict[str, Any]) -> str:
    """One event."""
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


def comment(text: str) -> str:
    """What keeps a connection alive, and clients do not show."""
    return f": {text}\n\n"


class Gone(Exception):  # noqa: N818 - it is no error
    """The client has gone away."""


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """An ASGI response. As soon as the client goes away, the events' generator is closed.

    Starlette's own would notice it only when it next has something to send.
    """

    def __init__(self, events: AsyncIterator[str]) -> None:
        super().__init__()
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the server is going down, and has waited long enough
        finally:
            for task in (gone, sending):
                if not task.done():
                    task.cancel()
                with suppress(asyncio.CancelledError, OSError):
                    await task
            await self._events.aclose()  # type: ignore[attr-defined]

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for text in self._events:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def unless_gone(request: Request, work: Awaitable[T]) -> T:
    """What `work` gives, unless the client goes away before.

    Raises:
        Gone: it has; `work` has been cancelled.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Gone
        return task.result()
    finally:
        for each in (gone, task):
            if not each.done():
                each.cancel()
                with suppress(asyncio.CancelledError):
                    await each
