"""The server killed in the middle of many conversations: each goes on from its last finished turn."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.live_server import LiveServer, Talk
from helpers.served_process import ServedProcess
from helpers.tiny_model import TinyModel

CONVERSATIONS, TURNS = 50, 12


class Client:
    """Talks until the server is gone, and knows what it has been told."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages: list[dict[str, str]] = [{"role": "system", "content": f"You are {number}."}]
        self.facts: dict[str, Any] = {}

    def turn(self, url: str) -> bool:
        asked = [*self.messages, {"role": "user", "content": f"Turn {len(self.messages) // 2} of {self.number}"}]
        body = {"messages": asked, "temperature": 0, "max_tokens": 16}
        try:
            answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)
        except httpx.HTTPError:
            return False
        assert answer.status_code == 200, answer.text
        self.facts = answer.json()
        self.messages = [*asked, self.facts["choices"][0]["message"]]
        return True

    def talk(self, url: str) -> None:
        while len(self.messages) < 2 * TURNS and self.turn(url):
            pass


def crash(model: Path, folder: Path, seed: int, expected: dict[int, list[str]]) -> None:
    options = ("--compute", "f32", "--cache-size", "128", "--queue", "100")
    server = ServedProcess(model, folder, *options)
    clients = [Client(number) for number in range(CONVERSATIONS)]
    threads = [threading.Thread(target=client.talk, args=(server.url,)) for client in clients]
    for thread in threads:
        thread.start()
    time.sleep(random.Random(seed).uniform(0.3, 2.5))
    server.kill()
    for thread in threads:
        thread.join()
    again = ServedProcess(model, folder, *options)
    try:
        known = httpx.get(f"{again.url}/v1/sessions").json()["data"]
        assert len(known) >= sum(len(client.messages) > 1 for client in clients)
        for client in clients:
            finished = len(client.messages) // 2
            assert client.turn(again.url)
            told = client.facts["streaming"]
            if finished:
                reused = client.facts["usage"]["prompt_tokens_details"]["cached_tokens"] + told["restored_tokens"]
                assert client.facts["usage"]["prompt_tokens"] - reused < 80  # only the new message is new
            replies = [m["content"] for m in client.messages if m["role"] == "assistant"]
            assert replies == expected[client.number][: len(replies)]
    finally:
        again.kill()


@pytest.fixture(scope="module")
def expected(tiny: Callable[[TinyModel], Path]) -> dict[int, list[str]]:
    """What each conversation says where nothing happens."""
    import anchorstream
    from anchorstream.config import StreamConfig

    path = tiny(TinyModel())
    stream = StreamConfig(cache_size=128, whole_turns=True)
    server = LiveServer(lambda: anchorstream.load(path, compute="f32", threads=1), stream=stream)
    found = {}
    for number in range(CONVERSATIONS):
        talk = Talk(server, f"You are {number}.", max_tokens=16)
        found[number] = [talk.say(f"Turn {turn} of {number}") for turn in range(TURNS + 1)]
    server.stop()
    return found


def test_killed_in_the_middle_of_fifty_conversations(
    tiny: Callable[[TinyModel], Path], tmp_path: Path, expected: dict[int, list[str]]
) -> None:
    crash(tiny(TinyModel()), tmp_path / "sessions", 0, expected)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 21))
def test_killed_twenty_times(
    tiny: Callable[[TinyModel], Path], tmp_path: Path, expected: dict[int, list[str]], seed: int
) -> None:
    crash(tiny(TinyModel()), tmp_path / "sessions", seed, expected)


def test_told_to_stop_it_exits_with_success(tiny: Callable[[TinyModel], Path], tmp_path: Path) -> None:
    server = ServedProcess(tiny(TinyModel()), tmp_path / "s")
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10_000_000, "ignore_eos": True}
    thread = threading.Thread(target=lambda: httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=30))
    thread.start()
    time.sleep(0.5)
    assert server.terminate() < 5
    assert server.process.returncode == 0
    thread.join()


def test_one_folder_serves_one_server(tiny: Callable[[TinyModel], Path], tmp_path: Path) -> None:
    model, folder = tiny(TinyModel()), tmp_path / "s"
    server = ServedProcess(model, folder)
    try:
        command = [sys.executable, "-m", "anchorstream", "serve", str(model), "--port", "0", "--sessions", str(folder)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert second.returncode == 10
        assert "another server keeps its sessions" in second.stderr
        assert "Traceback" not in second.stderr
    finally:
        server.kill()
