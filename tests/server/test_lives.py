"""Whole lives of conversations: a server with little memory that is stopped now and then says what one says that has all it wants."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import anchorstream
from helpers.live_server import LiveServer, text_of, until

Start = Callable[..., LiveServer]


@pytest.mark.parametrize("seed", range(3))
def test_memory_disk_and_restarts_change_nothing(
    start: Start, tiny_llm: anchorstream.LLM, tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    per_stream = (128 + 256 + 128) * tiny_llm.engine.kv_bytes_per_token()

    def poor() -> LiveServer:
        server = start(folder=tmp_path / "s")
        server.ready.llm.pool._limit = int(3.2 * per_stream)
        return server

    rich, server = start(), poor()
    talks: list[list[dict[str, str]]] = [[{"role": "system", "content": f"You are {n % 2}."}] for n in range(5)]
    happened: set[str] = set()
    for step in range(90):
        messages = draw.choice(talks)
        what = draw.choice(["go on"] * 5 + ["regenerate", "edit", "stop", "choices", "restart"])
        options: dict[str, Any] = {"max_tokens": draw.randint(1, 40)}
        if what == "restart":
            until(lambda s=server: s.is_idle)
            server.stop()
            server = poor()
        elif what == "regenerate" and len(messages) > 2:
            messages.pop()
        elif what == "edit" and len(messages) > 2:
            del messages[-2:]
            messages.append({"role": "user", "content": f"Else {step}"})
        elif what == "stop" and len(messages) > 2:
            messages[-1] = {"role": "assistant", "content": messages[-1]["content"][: draw.randint(0, 9)]}
        elif what == "choices":
            options |= {"n": 2, "temperature": 1.3, "seed": step}
        if messages[-1]["role"] != "user":
            messages.append({"role": "user", "content": f"Say {step}" + " and on" * draw.randint(0, 12)})
        happened.add(what)
        one, other = (each.chat(messages, **options) for each in (rich, server))
        chosen = draw.randrange(options.get("n", 1))
        assert text_of(one, chosen) == text_of(other, chosen), (step, what)
        for fact in ("tokens_consumed", "evicted_tokens", "evicted_turns", "request_in_window"):
            if not (what == "regenerate" and fact == "request_in_window"):
                assert one["streaming"][fact] == other["streaming"][fact], (step, what, fact)
        if what == "choices" and text_of(one, 0) == text_of(one, 1):  # which of them is meant cannot be told from text
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": text_of(one, chosen)})
    assert len(happened) == 6
    metrics = server.http.get("/metrics").text
    assert 'restores_total{result="failed"} 0.0' in metrics
    assert 'replies_total{reason="error"} 0.0' in metrics


def test_nothing_is_left_behind(start: Start, tmp_path: Path) -> None:
    """Conversations come and go, are regenerated and forgotten: what the process holds stays the same."""
    server = start(folder=tmp_path / "s", max_sessions=6)

    def round_of(number: int) -> tuple[int, int]:
        for talk in range(8):
            messages = [{"role": "system", "content": "Be brief."}]
            for turn in range(3):
                messages.append({"role": "user", "content": f"{number} {talk} {turn}"})
                messages.append({"role": "assistant", "content": text_of(server.chat(messages, max_tokens=8))})
            server.chat(messages[:-1], n=2, temperature=1.0, max_tokens=3)
        until(lambda: server.is_idle and len(server.ready.keeper.sessions) == 6)
        gc.collect()
        return len(gc.get_objects()), server.ready.llm.pool.reserved

    for number in range(3):
        objects, reserved = round_of(number)
    for number in range(3, 8):
        after, held = round_of(number)
    assert after < objects + 500
    assert held == reserved
