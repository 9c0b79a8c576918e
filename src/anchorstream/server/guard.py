"""What every request must pass: the key, and a limit on its size. Plain ASGI, so that nothing hides a client's going away."""

from __future__ import annotations

import hmac
import json

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from anchorstream.server.errors import ApiError

_OPEN = ("/", "/health", "/openapi.json", "/favicon.ico")  # and the page's own files


class Guard:
    """Middleware.

    Args:
        app: what is guarded.
        key: what clients must send; None: nothing.
        max_body: bytes of a request.
    """

    def __init__(self, app: ASGIApp, *, key: str | None, max_body: int) -> None:
        self._app = app
        self._key = key.encode() if key is not None else None
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if error := self._refusal(scope, headers):
            await _answer(send, error)
            return
        too_large = ApiError(
            413, f"the request is larger than {self._max_body:,} bytes", code="request_too_large", retry_after=None
        )
        length = headers.get("content-length", "")
        if length.isdigit() and int(length) > self._max_body:
            await _answer(send, too_large)
            return
        received, answered = 0, False

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > self._max_body:
                    raise too_large
            return message

        async def noted(message: Message) -> None:
            # the framework turns an error in the middle of a body into an answer of its own
            nonlocal answered
            if received <= self._max_body:
                await send(message)
            elif not answered:
                answered = True
                await _answer(send, too_large)

        await self._app(scope, counted, noted)

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        path: str = scope["path"]
        if self._key is None or path in _OPEN or path.startswith("/page/") or scope["method"] == "OPTIONS":
            return None
        kind, _, sent = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer" or not sent:
            return ApiError(401, "this server wants an API key, as bearer token", code="missing_api_key")
        if not hmac.compare_digest(sent.strip().encode(), self._key):
            return ApiError(401, "the API key is not the server's", code="invalid_api_key")
        return None


async def _answer(send: Send, error: ApiError) -> None:
    body = json.dumps(error.body).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers += [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    headers.append((b"connection", b"close"))  # what is left of the request is not read
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
