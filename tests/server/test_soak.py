"""Half an hour of clients that come, go and break: no leak, and no error but those they caused.

ANCHORSTREAM_SOAK_SECONDS makes it shorter.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from helpers.served_process import ServedProcess

pytestmark = [pytest.mark.soak, pytest.mark.timeout(3600)]
SECONDS = float(os.environ.get("ANCHORSTREAM_SOAK_SECONDS", "1800"))
CLIENTS = 12


class Guest:
    """One client, with habits drawn at random."""

    def __init__(self, url: str, seed: int, end: float) -> None:
        self.random = random.Random(seed)
        self.end = end
        self.answers: Counter[int] = Counter()
        self.http = httpx.Client(base_url=url, timeout=120)
        self.messages: list[dict[str, str]] = []

    def run(self) -> None:
        habits = [self.talk] * 8 + [self.leave] * 3 + [self.regenerate, self.nonsense, self.long, self.named, self.look]
        while time.monotonic() < self.end:
            self.random.choice(habits)()

    def post(self, **body: Any) -> httpx.Response:
        answer = self.http.post("/v1/chat/completions", json={"max_tokens": self.random.randint(1, 60), **body})
        self.answers[answer.status_code] += 1
        return answer

    def talk(self) -> None:
        if not self.messages or self.random.random() < 0.05:
            self.messages = [{"role": "system", "content": f"You are {self.random.random()}."}]
        asked = [*self.messages, {"role": "user", "content": f"Say {self.random.random()}"}]
        answer = self.post(messages=asked)
        if answer.status_code == 200:
            self.messages = [*asked, answer.json()["choices"][0]["message"]]

    def regenerate(self) -> None:
        if len(self.messages) > 2:
            self.post(messages=self.messages[:-1], temperature=1.2, n=self.random.randint(1, 3))

    def leave(self) -> None:
        asked = [*self.messages, {"role": "user", "content": "Tell me all." * self.random.choice([1, 1, 300])}]
        body = {"messages": asked, "max_tokens": 5000, "stream": self.random.random() < 0.7}
        try:
            patience = self.random.uniform(0.01, 1.0)
            with self.http.stream("POST", "/v1/chat/completions", json=body, timeout=patience) as answer:
                self.answers[answer.status_code] += 1
                for _ in answer.iter_bytes():
                    if self.random.random() < 0.1:
                        return
        except httpx.TimeoutException:
            pass

    def nonsense(self) -> None:
        for content in (b"{", b"[]", b'{"messages": 3}', b'{"messages": [{"role": "x", "content": 1}]}'):
            self.answers[self.http.post("/v1/chat/completions", content=content).status_code] += 1

    def long(self) -> None:
        self.post(messages=[{"role": "user", "content": f"word {self.random.random()} " * 150}], max_tokens=3)

    def named(self) -> None:
        self.post(messages=[{"role": "user", "content": "And?"}], session=f"shared-{self.random.randint(0, 3)}")

    def look(self) -> None:
        listed = self.http.get("/v1/sessions").json()["data"]
        if listed:
            one = self.random.choice(listed)["id"]
            self.answers[self.http.get(f"/v1/sessions/{one}").status_code] += 1
            if self.random.random() < 0.3:
                self.answers[self.http.delete(f"/v1/sessions/{one}").status_code] += 1
        self.http.get("/metrics")


def test_half_an_hour(default_model_path: Path, tmp_path: Path) -> None:
    server = ServedProcess(default_model_path, tmp_path / "s", "--cache-mb", "1500", "--max-sessions", "60")
    try:
        process = psutil.Process(server.process.pid)
        end = time.monotonic() + SECONDS
        guests = [Guest(server.url, seed, end) for seed in range(CLIENTS)]
        threads = [threading.Thread(target=guest.run) for guest in guests]
        for thread in threads:
            thread.start()
        memory, files = [], []
        while time.monotonic() < end:
            time.sleep(SECONDS / 60)
            memory.append(process.memory_info().rss)
            files.append(process.num_fds())
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()
        answers = sum((guest.answers for guest in guests), Counter())
        print(f"{sum(answers.values())} answers: {dict(answers)}; memory {memory[20] >> 20} to {memory[-1] >> 20} MB")
        assert set(answers) <= {200, 400, 404, 409, 429}, answers
        assert answers[200] > 3 * SECONDS / 60
        time.sleep(1)
        health = httpx.get(f"{server.url}/health").json()
        assert health == {"status": "ok", "waiting": 0, "reading": 0, "replying": 0}
        assert 'replies_total{reason="error"} 0.0' in httpx.get(f"{server.url}/metrics").text
        # flat once the pool is full: the last third holds no more than the middle third
        third = len(memory) // 3
        assert max(memory[-third:]) < max(memory[third:-third]) + (100 << 20)
        assert max(files[-third:]) <= max(files[third:-third]) + 20
        assert server.terminate() < 5
        assert server.process.returncode == 0
    finally:
        server.close()
