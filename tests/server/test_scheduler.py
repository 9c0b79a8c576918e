"""Many at once: order, limits, clients that go away, and prompts that come in beside replies."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import anchorstream
from anchorstream.server.pacing import Pacing
from helpers.live_server import LiveServer, cached, text_of, until

Start = Callable[..., LiveServer]
ENDLESS = {"max_tokens": 1_000_000, "ignore_eos": True, "temperature": 0}


@pytest.fixture(scope="module")
def endless(default_model_path: Path) -> Iterator[LiveServer]:
    """The default model, two conversations at a time."""
    server = LiveServer(lambda: anchorstream.load(default_model_path), parallel=2, queue=2)
    yield server
    server.stop()


class Guest:
    """A client on a bare socket, who may leave at any time."""

    def __init__(self, server: LiveServer, text: str, **options: Any) -> None:
        body = httpx.Request(
            "POST", server.url, json={"messages": [{"role": "user", "content": text}], **options}
        ).content
        host, port = server.url.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)

    def read(self, size: int = 65536) -> bytes:
        return self._socket.recv(size)

    def leave(self) -> None:
        self._socket.close()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_its_reply_frees_it(endless: LiveServer, stream: bool) -> None:
    guest = Guest(endless, "Count for ever.", stream=stream, **ENDLESS)
    until(lambda: endless.load["replying"] == 1)
    guest.leave()
    until(lambda: endless.is_idle, 1.0)
    assert 'replies_total{reason="cancelled"}' in endless.http.get("/metrics").text


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_its_prompt_frees_it(endless: LiveServer, book: str, stream: bool) -> None:
    guest = Guest(endless, book[:400_000], stream=stream, max_tokens=5)
    until(lambda: endless.load["reading"] == 1, 10)
    before = len(endless.ready.keeper.sessions)
    guest.leave()
    until(lambda: endless.is_idle, 1.0)
    assert len(endless.ready.keeper.sessions) == before
    assert text_of(endless.chat("Still there?"))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_the_queue_is_never_computed(endless: LiveServer, stream: bool) -> None:
    running = [Guest(endless, f"Count {n}", **ENDLESS) for n in range(2)]
    until(lambda: endless.load["replying"] == 2)
    queued = Guest(endless, "Wait", stream=stream, max_tokens=5)
    until(lambda: endless.load["waiting"] == 1)
    made = endless.ready.scheduler._metrics.turns._value.get()
    queued.leave()
    until(lambda: endless.load["waiting"] == 0, 1.0)
    for guest in running:
        guest.leave()
    until(lambda: endless.is_idle, 1.0)
    assert endless.ready.scheduler._metrics.turns._value.get() - made <= 2


def test_a_full_queue_says_when_to_come_back(endless: LiveServer) -> None:
    guests = [Guest(endless, f"Count {n}", **ENDLESS) for n in range(4)]
    until(lambda: endless.load["replying"] == 2 and endless.load["waiting"] == 2)
    refused = endless.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error"
    for guest in guests:
        guest.leave()
    until(lambda: endless.is_idle, 1.0)
    assert text_of(endless.chat("Now?"))


def test_a_turn_that_was_broken_off_can_be_continued(endless: LiveServer) -> None:
    guest = Guest(endless, "Count to a thousand.", stream=True, session="broken", **ENDLESS)
    until(lambda: endless.load["replying"] == 1)
    time.sleep(0.2)
    guest.leave()
    until(lambda: endless.is_idle, 1.0)
    shown = endless.http.get("/v1/sessions/broken").json()
    assert shown["turns"] == 1
    assert shown["tokens"] > 40
    reply = endless.chat("Thank you.", session="broken")
    assert cached(reply) == shown["tokens"]


def test_a_slow_client_does_not_hold_the_others(endless: LiveServer) -> None:
    guest = Guest(endless, "Count for ever.", stream=True, **ENDLESS)  # and never reads
    until(lambda: endless.load["replying"] == 1)
    begin = time.monotonic()
    assert text_of(endless.chat("Quick", max_tokens=20))
    assert time.monotonic() - begin < 3
    guest.leave()
    until(lambda: endless.is_idle, 1.0)


def test_heartbeats_while_a_prompt_is_read(start: Start) -> None:
    server = start(heartbeat=0.1)
    text = "word " * 40_000
    with server.http.stream(
        "POST",
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": text}], "stream": True, "max_tokens": 2},
    ) as reply:
        lines = list(reply.iter_lines())
    beats = [line for line in lines if line.startswith(": ")]
    assert len(beats) >= 2
    assert any("tokens read" in beat for beat in beats)
    assert lines[-2] == "data: [DONE]"


def test_a_short_prompt_does_not_wait_for_a_long_one(endless: LiveServer, book: str) -> None:
    guest = Guest(endless, book[:400_000], max_tokens=5)
    until(lambda: endless.load["reading"] == 1, 10)
    begin = time.monotonic()
    assert text_of(endless.chat("Short", max_tokens=5))
    assert time.monotonic() - begin < 5
    assert endless.load["reading"] == 1
    guest.leave()
    until(lambda: endless.is_idle, 1.0)


def test_a_failure_in_mid_stream_is_an_event(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    server = start()
    forward, calls = server.ready.llm.engine.forward, []

    def failing(segments: Any) -> Any:
        calls.append(len(segments))
        if len(calls) > 3:
            raise MemoryError
        return forward(segments)

    monkeypatch.setattr(server.ready.llm.engine, "forward", failing)
    body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True, **ENDLESS}
    with server.http.stream("POST", "/v1/chat/completions", json=body) as reply:
        lines = [line for line in reply.iter_lines() if line]
    assert '"error"' in lines[-2]
    assert lines[-1] == "data: [DONE]"
    until(lambda: server.is_idle)
    calls.clear()
    monkeypatch.undo()
    assert server.chat("Hi")["usage"]["completion_tokens"] > 0
    assert len(server.ready.keeper.sessions) == 1  # what failed has left nothing


def test_stopping_ends_what_runs_within_seconds(start: Start, tmp_path: Path) -> None:
    server = start(folder=tmp_path / "s")
    threads = [
        threading.Thread(
            target=lambda n=n: server.http.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": f"{n}"}], **ENDLESS}
            )
        )
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    until(lambda: server.load["replying"] == 3)
    begin = time.monotonic()
    server._server.should_exit = True
    server._thread.join(10)
    assert time.monotonic() - begin < 5
    for thread in threads:
        thread.join(5)
    again = start(folder=tmp_path / "s")
    assert again.http.get("/v1/sessions").json()["total"] == 3  # broken off, and kept


def test_pacing_holds_steps_below_twice_their_length() -> None:
    pacing = Pacing(256)
    assert pacing.slice(0) == 256
    worst = 0.0
    for step in range(2000):
        size = pacing.slice(1)
        seconds = 0.002 + 0.0005 * size + (0.02 if step % 97 == 0 else 0)  # and a disturbance now and then
        if size and step > 20 and step % 97:
            worst = max(worst, seconds)
        pacing.took(seconds, 1, size)
    assert 0.0025 < worst <= 0.004
