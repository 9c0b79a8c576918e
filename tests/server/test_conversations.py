"""Conversations whose beginning is gone: recognised by what was said, continued, taken back, kept."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anchorstream
from anchorstream.config import StreamConfig
from helpers.live_server import LiveServer, Talk, cached, text_of, until

Start = Callable[..., LiveServer]
SYSTEM = "Be brief."


def told(llm: anchorstream.LLM, messages: list[dict[str, str]], replies: list[list[int]]) -> np.ndarray:
    """The oracle: logits of one fresh stream that is fed the whole conversation, with the replies' own tokens."""
    config = StreamConfig(cache_size=128, whole_turns=True)
    head = [m for m in messages if m["role"] == "system"]
    pinned = llm.tokenize(llm.chat_template.render(head)) if head else []
    stream = llm.open(config.with_(num_pinned=len(pinned)))
    if pinned:
        stream.feed(pinned)
    at = 0
    for message in messages[len(head) :]:
        if message["role"] == "user":
            stream.begin_turn()
            stream.feed(llm.tokenize(f"<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"))
        else:
            stream.feed(replies[at])
            at += 1
            if message is not messages[-1]:
                stream.feed(llm.tokenize("<|im_end|>\n"))
    return stream.logits


def test_a_turn_costs_its_new_tokens_for_ever(small: LiveServer) -> None:
    talk = Talk(small, SYSTEM)
    costs, lost = [], []
    for turn in range(60):
        talk.say(f"Number {turn % 10}?")
        usage = talk.last["usage"]
        costs.append(usage["prompt_tokens"] - cached(talk.last))
        lost.append(talk.last["streaming"]["evicted_tokens"])
        assert talk.last["timings"]["prompt_n"] == costs[-1]
    assert len(set(costs[1:])) == 1  # the same number of tokens each time
    assert lost[0] == 0
    assert lost[-1] > 500
    streaming = talk.last["streaming"]
    assert streaming["anchors"] + streaming["window"] <= 128
    assert 0 < streaming["evicted_turns"] < 60
    assert streaming["tokens_consumed"] == lost[-1] + streaming["anchors"] + streaming["window"]


def test_what_was_recognised_is_what_a_fresh_stream_would_hold(start: Start, tiny_llm: anchorstream.LLM) -> None:
    server = start()
    talk = Talk(server, SYSTEM, max_tokens=9)
    for turn in range(12):
        talk.say(f"Tell me {turn}")
    session = server.ready.keeper.sessions.get(talk.last["streaming"]["session"])
    assert session is not None
    assert session.record is None
    replies = [turn.record.reply.tolist() for turn in session.turns]
    assert len(replies) == 4  # only the last turns are remembered: the oracle needs all, so make them again
    again = Talk(server, SYSTEM, max_tokens=9)
    made = []
    for turn in range(12):
        again.say(f"Tell me {turn}")
        made.append(
            server.ready.keeper.sessions.get(again.last["streaming"]["session"]).turns[-1].record.reply.tolist()
        )
    assert again.messages == talk.messages
    assert np.array_equal(session.stream.logits, told(tiny_llm, talk.messages, made))


def test_regenerating_costs_nothing_and_leaves_the_other_alone(small: LiveServer) -> None:
    talk = Talk(small, SYSTEM)
    for turn in range(10):
        reply = talk.say(f"Regenerate {turn}")
    again = small.chat(talk.messages[:-1])
    assert text_of(again) == reply
    assert again["timings"]["prompt_n"] == 0
    assert cached(again) == again["usage"]["prompt_tokens"] == talk.last["usage"]["prompt_tokens"]
    other = small.chat(talk.messages[:-1], temperature=1.5, seed=3)
    assert other["timings"]["prompt_n"] == 0
    talk.say("And go on")
    assert talk.last["timings"]["prompt_n"] < 60


def test_an_edited_message_goes_back_to_where_it_was(small: LiveServer) -> None:
    talk = Talk(small, SYSTEM)
    for turn in range(8):
        talk.say(f"Edit {turn}")
    edited = [*talk.messages[:-2], {"role": "user", "content": "Something else"}]
    changed = small.chat(edited)
    assert 0 < changed["timings"]["prompt_n"] < 60
    fresh = Talk(small, SYSTEM)
    for message in edited[1:]:
        if message["role"] == "user":
            fresh.say(message["content"])
    assert text_of(changed) == fresh.messages[-1]["content"]


def test_a_reply_of_which_the_client_heard_only_a_part(small: LiveServer) -> None:
    talk = Talk(small, SYSTEM)
    for turn in range(5):
        talk.say(f"Part {turn}")
    talk.messages[-1]["content"] = talk.messages[-1]["content"][:3]
    talk.say("Go on")
    assert 0 < talk.last["timings"]["prompt_n"] < 60
    assert cached(talk.last) > 100


def test_a_history_never_seen_streams_in_from_its_beginning(small: LiveServer) -> None:
    """llama.cpp 16693, 17284: a chat that is longer than the cache already is accepted, and says what it lost."""
    messages = [{"role": "system", "content": SYSTEM}]
    for turn in range(40):
        messages += [
            {"role": "user", "content": f"Q{turn}"},
            {"role": "assistant", "content": f"This is answer {turn}."},
        ]
    messages.append({"role": "user", "content": "And now?"})
    reply = small.chat(messages)
    streaming = reply["streaming"]
    assert streaming["evicted_tokens"] > 500
    assert streaming["evicted_by_request"] == streaming["evicted_tokens"]
    assert streaming["evicted_turns"] > 10
    assert streaming["request_in_window"]
    assert streaming["anchors"] == small.ready.keeper.sessions.get(streaming["session"]).pinned.size
    messages += [{"role": "assistant", "content": text_of(reply)}, {"role": "user", "content": "And then?"}]
    assert small.chat(messages)["timings"]["prompt_n"] < 60


def test_a_request_that_leaves_the_window_is_visible(small: LiveServer) -> None:
    """llama.cpp 8251: a long answer in a small cache. The system prompt stays; that the request does not is said."""
    reply = small.chat("Count for ever.", max_tokens=300, ignore_eos=True)
    assert reply["usage"]["completion_tokens"] == 300  # streaming-llm 48: replies are not capped
    assert not reply["streaming"]["request_in_window"]
    assert small.chat("Count.", max_tokens=20)["streaming"]["request_in_window"]


def test_a_system_prompt_is_never_dropped(small: LiveServer) -> None:
    """ollama 6176, 8531: a prompt that cannot be pinned is refused, not cut."""
    body = {"messages": [{"role": "system", "content": "word " * 200}, {"role": "user", "content": "Hi"}]}
    refused = small.http.post("/v1/chat/completions", json=body)
    assert refused.status_code == 400
    assert "system prompt takes" in refused.json()["error"]["message"]
    body["messages"] = [{"role": "user", "content": "Hi"}, {"role": "system", "content": "Late"}]
    assert small.http.post("/v1/chat/completions", json=body).status_code == 400


def test_reasoning_that_a_client_does_not_send_back(small: LiveServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """mlx-lm 1042: matched by message, with or without what the model thought."""
    from anchorstream.server import turn_record

    monkeypatch.setattr(turn_record, "without_reasoning", lambda text: text[:2])
    talk = Talk(small, SYSTEM)
    for turn in range(4):
        talk.say(f"Think {turn}")
        talk.messages[-1]["content"] = talk.messages[-1]["content"][:2]
    assert cached(talk.last) > 60
    assert talk.last["timings"]["prompt_n"] < 60


def test_overflow_error_says_both_numbers(small: LiveServer) -> None:
    talk = Talk(small, overflow="error", max_tokens=1000)
    reply = talk.say("Hello")
    assert talk.last["choices"][0]["finish_reason"] in ("length", "stop")
    assert talk.last["usage"]["total_tokens"] <= 128
    messages = [*talk.messages, {"role": "user", "content": "word " * 100}]
    refused = small.http.post("/v1/chat/completions", json={"messages": messages, "overflow": "error"})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert "128" in error["message"]
    assert "tokens" in error["message"]
    # nothing was lost by that
    assert reply == text_of(small.chat("Hello", overflow="error", max_tokens=1000))


def test_a_named_session_takes_only_what_is_new(small: LiveServer) -> None:
    whole = Talk(small, SYSTEM)
    for text in ("One", "Two", "Three"):
        whole.say(text)
    head = {"role": "system", "content": SYSTEM}
    replies = []
    for number, text in enumerate(("One", "Two", "Three")):
        user = {"role": "user", "content": text}
        reply = small.chat([head, user] if number != 1 else [user], session="client-7")
        assert reply["streaming"]["session"] == "client-7"
        replies.append(text_of(reply))
    assert replies == [m["content"] for m in whole.messages if m["role"] == "assistant"]
    # in the header too
    body = {"messages": [{"role": "user", "content": "Four"}], "max_tokens": 5}
    answer = small.http.post("/v1/chat/completions", json=body, headers={"Anchorstream-Session": "client-7"})
    assert answer.headers["Anchorstream-Session"] == "client-7"
    assert cached(answer.json()) > 50
    # another system prompt cannot be pinned in the middle
    body = {
        "messages": [{"role": "system", "content": "Else."}, {"role": "user", "content": "x"}],
        "session": "client-7",
    }
    assert small.http.post("/v1/chat/completions", json=body).status_code == 400
    # a whole history goes back within it
    history = [*whole.messages[:3], {"role": "user", "content": "Other"}]
    reply = small.chat(history, session="client-7")
    assert cached(reply) > 20
    assert reply["timings"]["prompt_n"] < 60
    shown = small.http.get("/v1/sessions/client-7").json()
    assert shown["turns"] == 2


def test_two_requests_to_one_session_are_put_in_order(small: LiveServer) -> None:
    results: list[dict[str, Any]] = []
    threads = [
        threading.Thread(
            target=lambda n=n: results.append(small.chat(f"Message {n}", session="ordered", max_tokens=20))
        )
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lengths = sorted(
        (r["usage"]["prompt_tokens"] - r["timings"]["prompt_n"], r["streaming"]["tokens_consumed"]) for r in results
    )
    assert [before for before, _ in lengths[1:]] == [after for _, after in lengths[:-1]]


def test_conversations_alone_and_eight_at_once_say_the_same(start: Start) -> None:
    def run(server: LiveServer, number: int) -> list[str]:
        talk = Talk(server, f"You are number {number}.", max_tokens=15)
        return [talk.say(f"Turn {turn} of {number}") for turn in range(8)]

    alone = start()
    expected = [run(alone, number) for number in range(8)]
    together = start()
    found: dict[int, list[str]] = {}
    threads = [threading.Thread(target=lambda n=n: found.__setitem__(n, run(together, n))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(8)] == expected
    # llama.cpp 4902: nor does it matter what was cached before
    assert run(together, 3) == expected[3]


def test_every_choice_can_be_continued(small: LiveServer) -> None:
    asked = [{"role": "user", "content": "Choose"}]
    reply = small.chat(asked, n=3, temperature=1.3, seed=5)
    texts = [text_of(reply, i) for i in range(3)]
    assert len(set(texts)) > 1
    for text in texts:
        more = small.chat([*asked, {"role": "assistant", "content": text}, {"role": "user", "content": "Next"}])
        assert more["timings"]["prompt_n"] < 60


@pytest.mark.parametrize("turns", [1, 3, 30])
def test_a_restart_loses_nothing(start: Start, tmp_path: Path, turns: int) -> None:
    folder = tmp_path / "sessions"
    whole = Talk(start(), SYSTEM, max_tokens=20)
    first = start(folder=folder)
    talk = Talk(first, SYSTEM, max_tokens=20)
    for turn in range(turns):
        assert talk.say(f"Keep {turn}") == whole.say(f"Keep {turn}")
    first.stop()
    second = start(folder=folder)
    (described,) = second.http.get("/v1/sessions").json()["data"]
    assert described["place"] == "disk"
    assert described["turns"] == turns
    # the last reply made anew, before anything else
    again = second.chat(talk.messages[:-1], max_tokens=20)
    assert text_of(again) == talk.messages[-1]["content"]
    talk.server = second
    for turn in range(3):
        assert talk.say(f"After {turn}") == whole.say(f"After {turn}")
        consumed = talk.last["streaming"]
        assert consumed["tokens_consumed"] == whole.last["streaming"]["tokens_consumed"]
        assert consumed["evicted_turns"] == whole.last["streaming"]["evicted_turns"]
        if turn == 0:  # llama.cpp 25913: what was restored is told
            assert cached(talk.last) + consumed["restored_tokens"] >= consumed["tokens_consumed"] - 60
            assert cached(talk.last) > 300 or turns < 30
    second.stop()


def test_conversations_go_to_disk_when_memory_is_short(
    start: Start, tiny_llm: anchorstream.LLM, tmp_path: Path
) -> None:
    per_stream = (128 + 256 + 128) * tiny_llm.engine.kv_bytes_per_token()

    server = start(folder=tmp_path / "s")
    server.ready.llm.pool._limit = int(3.5 * per_stream)
    talks = [Talk(server, max_tokens=5) for _ in range(8)]
    for turn in range(3):
        for number, talk in enumerate(talks):
            talk.say(f"Turn {turn} of {number}")
            if turn:
                assert cached(talk.last) + talk.last["streaming"]["restored_tokens"] > 10
    places = [each["place"] for each in server.http.get("/v1/sessions").json()["data"]]
    assert places.count("memory") <= 3
    assert len(places) == 8


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "missing", "foreign"])
def test_a_damaged_file_is_refused_and_harms_nothing(start: Start, tmp_path: Path, damage: str) -> None:
    """llama.cpp 27068: checked apart, before anything live is touched; the history is then read anew."""
    folder = tmp_path / "s"
    first = start(folder=folder)
    talk = Talk(first, SYSTEM, max_tokens=20)
    expected = Talk(start(), SYSTEM, max_tokens=20)
    for turn in range(30):
        talk.say(f"Keep {turn}")
        expected.say(f"Keep {turn}")
    first.stop()
    (file,) = folder.glob("*/*.stream")
    data = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {"empty": b"", "cut": data[: len(data) // 2], "foreign": b"GGUF" * 100}.get(
                damage, data[:5000] + b"!" + data[5001:]
            )
        )
    second = start(folder=folder)
    talk.server = second
    reply = talk.say("After", max_tokens=20)
    assert cached(talk.last) <= 20  # the system prompt at most
    # the same conversation as text; its tokens may be cut otherwise than the model had made them
    assert talk.last["streaming"]["tokens_consumed"] > 500
    assert isinstance(reply, str)
    assert second.http.get("/metrics").text.count('restores_total{result="failed"} 1.0') == (damage != "missing")
    second.stop()


def test_sessions_can_be_listed_shown_forked_and_deleted(small: LiveServer) -> None:
    small.chat("Hello", session="origin")
    listed = small.http.get("/v1/sessions", params={"limit": 1}).json()
    assert [each["id"] for each in listed["data"]] == ["origin"]
    shown = small.http.get("/v1/sessions/origin").json()
    assert shown["cache"]["length"] == shown["tokens"]
    assert sum(bank["tokens"] for bank in shown["cache"]["banks"]) == shown["tokens"]
    copy = small.http.post("/v1/sessions/origin/fork", json={"id": "copy"}).json()
    assert copy["id"] == "copy"
    one = small.chat("Next", session="origin")
    two = small.chat("Next", session="copy")
    assert text_of(one) == text_of(two)
    assert small.http.post("/v1/sessions/origin/fork", json={"id": "copy"}).status_code == 409
    assert small.http.delete("/v1/sessions/copy").json()["deleted"]
    assert small.http.get("/v1/sessions/copy").status_code == 404
    assert small.http.delete("/v1/sessions/copy").status_code == 404
    for name in ("../etc", "a/b", "x" * 200, "é"):
        assert small.http.get(f"/v1/sessions/{name}").status_code in (400, 404)


def test_old_sessions_leave_when_there_are_too_many(start: Start, tmp_path: Path) -> None:
    server = start(folder=tmp_path / "s", max_sessions=5)
    for number in range(12):
        server.chat(f"Conversation {number}")
    until(lambda: server.http.get("/v1/sessions").json()["total"] == 5)


def test_a_full_disk_is_told_and_made_good(start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anchorstream.errors import StorageError

    folder = tmp_path / "s"
    server = start(folder=folder)
    talk = Talk(server, SYSTEM)
    talk.say("One")
    store = server.ready.keeper.store
    assert store is not None

    def full(*_: object) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(store, "add_turn", full)
    talk.say("Two")
    assert talk.last["streaming"]["kept"] is False
    monkeypatch.undo()
    talk.say("Three")
    assert "kept" not in talk.last["streaming"]
    server.stop()
    again = start(folder=folder)
    assert [each["turns"] for each in again.http.get("/v1/sessions").json()["data"]] == [3]
    talk.server = again
    talk.say("Four")
    assert talk.last["usage"]["prompt_tokens"] - cached(talk.last) - talk.last["streaming"]["restored_tokens"] < 60


def test_a_copy_is_not_made_of_what_has_just_left_memory(
    start: Start, tiny_llm: anchorstream.LLM, tmp_path: Path
) -> None:
    per_stream = (128 + 256 + 128) * tiny_llm.engine.kv_bytes_per_token()
    server = start(folder=tmp_path / "s")
    server.ready.llm.pool._limit = int(2.5 * per_stream)
    talk = Talk(server, SYSTEM)
    talk.say("One")
    for _ in range(3):
        assert text_of(server.chat(talk.messages[:-1])) == talk.messages[-1]["content"]
        assert server.http.post(f"/v1/sessions/{talk.last['streaming']['session']}/fork").status_code == 200
