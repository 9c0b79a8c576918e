"""A real server on a real socket, in a thread of the test's process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import uvicorn

import anchorstream
from anchorstream.server.app import make_app
from anchorstream.server.settings import ServerConfig
from anchorstream.server.state import Ready, State

NAME = "test-model"


class LiveServer:
    """Started when made."""

    def __init__(self, load: Callable[[], anchorstream.LLM], *, listen: int = 0, **options: Any) -> None:
        self.state = State(ServerConfig(port=listen, **options), load, NAME)
        config = uvicorn.Config(make_app(self.state), port=listen, log_config=None, timeout_graceful_shutdown=1)
        self._server = uvicorn.Server(config)
        socket = config.bind_socket()
        self.url = f"http://127.0.0.1:{socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [socket]}, daemon=True)
        self._thread.start()
        key = options.get("api_key")
        self.http = httpx.Client(
            base_url=self.url, timeout=60, headers={"Authorization": f"Bearer {key}"} if key else {}
        )
        until(lambda: self._server.started and (self.state.is_ready or self.state.failure), 20)
        if self.state.failure:
            raise self.state.failure

    @property
    def ready(self) -> Ready:
        return self.state.ready

    def chat(self, messages: list[dict[str, str]] | str, **options: Any) -> dict[str, Any]:
        """A reply as JSON; greedy and short unless said otherwise."""
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        body = {"messages": messages, "temperature": 0, "max_tokens": 12, **options}
        response = self.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    @property
    def load(self) -> dict[str, int]:
        return self.ready.scheduler.load

    @property
    def is_idle(self) -> bool:
        return not any(self.load.values())

    def stop(self) -> None:
        self.http.close()
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()


def until(holds: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to hold"
        time.sleep(0.005)


def text_of(reply: dict[str, Any], choice: int = 0) -> str:
    return reply["choices"][choice]["message"]["content"]


def cached(reply: dict[str, Any]) -> int:
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"]


class Talk:
    """A client that sends its whole history each time."""

    def __init__(self, server: LiveServer, system: str | None = None, **options: Any) -> None:
        self.server = server
        self.options = options
        self.messages: list[dict[str, str]] = [] if system is None else [{"role": "system", "content": system}]
        self.last: dict[str, Any] = {}

    def say(self, text: str, **options: Any) -> str:
        self.messages.append({"role": "user", "content": text})
        self.last = self.server.chat(self.messages, **{**self.options, **options})
        reply = text_of(self.last)
        self.messages.append({"role": "assistant", "content": reply})
        return reply
