"""The OpenAI API, by the official client and by plain requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest

import anchorstream
from anchorstream.server.settings import ServerConfig
from helpers.live_server import NAME, LiveServer, text_of, until

Start = Callable[..., LiveServer]
ASK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def client(real: LiveServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real.url}/v1", api_key="any", max_retries=0) as made:
        yield made


# ---- chat ----


def test_a_reply_is_what_the_library_says(client: openai.OpenAI, llm: anchorstream.LLM) -> None:
    reply = client.chat.completions.create(model=NAME, messages=ASK, temperature=0, max_tokens=40)
    expected = "".join(llm.chat().send(ASK[0]["content"], temperature=0, max_tokens=40))
    choice = reply.choices[0]
    assert choice.message.content == expected
    assert choice.finish_reason == ("length" if reply.usage.completion_tokens == 40 else "stop")
    assert choice.message.role == "assistant"
    assert reply.usage is not None
    assert reply.usage.completion_tokens == len(llm.tokenize(expected))
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    extra = reply.model_extra or {}
    assert extra["timings"]["predicted_n"] == reply.usage.completion_tokens
    assert extra["streaming"]["evicted_tokens"] == 0


def test_streaming_gives_the_same_text_in_the_right_order(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=NAME, messages=ASK, temperature=0, max_tokens=40)
    chunks = list(
        client.chat.completions.create(
            model=NAME, messages=ASK, temperature=0, max_tokens=40, stream=True, stream_options={"include_usage": True}
        )
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage.model_copy(
        update={"prompt_tokens_details": chunks[-1].usage.prompt_tokens_details}
    )
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None] * (len(chunks) - 2) + [
        whole.choices[0].finish_reason
    ]
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert len({c.id for c in chunks}) == 1


def test_events_end_with_done_and_the_session_is_told(real: LiveServer) -> None:
    with real.http.stream(
        "POST", "/v1/chat/completions", json={"messages": ASK, "stream": True, "max_tokens": 5, "ignore_eos": True}
    ) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in reply.iter_lines() if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    last = json.loads(lines[-2][6:])
    assert last["streaming"]["session"].startswith("conv-")
    assert last["timings"]["predicted_n"] == 5


def test_stop_strings_are_held_back_and_never_shown(real: LiveServer) -> None:
    """TGI 1254: a stop string that is split over tokens."""
    full = text_of(real.chat(ASK, max_tokens=40))
    stop = full[5:12]
    for stream in (False, True):
        body = {"messages": ASK, "temperature": 0, "max_tokens": 40, "stop": ["never", stop], "stream": stream}
        answer = real.http.post("/v1/chat/completions", json=body)
        if stream:
            data = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
            shown = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in data)
            reason = data[-1]["choices"][0]["finish_reason"]
        else:
            shown, reason = text_of(answer.json()), answer.json()["choices"][0]["finish_reason"]
        assert shown == full[: full.index(stop)]
        assert reason == "stop"


def test_seeds_repeat_and_choices_differ(real: LiveServer) -> None:
    options = {"temperature": 1.2, "seed": 7, "max_tokens": 20}
    one, two = (text_of(real.chat(ASK, **options)) for _ in range(2))
    assert one == two
    many = real.chat(ASK, n=3, **options)
    texts = [text_of(many, i) for i in range(3)]
    assert texts[0] == one
    assert len(set(texts)) == 3
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2]
    assert many["usage"]["completion_tokens"] <= 60
    alone = text_of(real.chat(ASK, **{**options, "seed": 8}))
    assert texts[1] == alone


def test_streamed_choices_are_each_whole(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"model": NAME, "messages": ASK, "n": 2, "seed": 3, "temperature": 1.0, "max_tokens": 15}
    whole = client.chat.completions.create(**options)
    texts, reasons = ["", ""], [None, None]
    for chunk in client.chat.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]


def test_logprobs_are_those_of_the_model(client: openai.OpenAI, llm: anchorstream.LLM) -> None:
    reply = client.chat.completions.create(
        model=NAME, messages=ASK, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    prompt = llm.chat_template.render(ASK, add_generation_prompt=True)
    stream = llm.stream(num_sinks=4, num_pinned=llm.chat().num_pinned)
    stream.feed(prompt)
    assert reply.choices[0].logprobs is not None
    told = reply.choices[0].logprobs.content
    assert told is not None
    assert len(told) == 6
    for each in told:
        wide = stream.logits.astype(np.float64)
        truth = wide - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
        best = np.argsort(-truth)[:3]
        assert each.logprob == pytest.approx(truth[best[0]], abs=1e-5)
        assert [top.logprob for top in each.top_logprobs] == pytest.approx(truth[best].tolist(), abs=1e-5)
        assert bytes(each.bytes or []) == llm.tokenizer.token_bytes(int(best[0]))
        stream.feed([int(best[0])])


def test_penalties_and_bias_change_the_reply(real: LiveServer, llm: anchorstream.LLM) -> None:
    plain = text_of(real.chat(ASK, max_tokens=40))
    for options in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"repetition_penalty": 1.5}):
        assert text_of(real.chat(ASK, max_tokens=40, **options)) != plain
    first = llm.tokenize(plain)[0]
    barred = text_of(real.chat(ASK, max_tokens=40, logit_bias={str(first): -100}))
    assert llm.tokenize(barred)[0] != first


SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 200},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def test_replies_follow_a_schema(real: LiveServer) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
    for seed in range(3):
        reply = real.chat("Invent a person.", response_format=wanted, temperature=1.0, seed=seed, max_tokens=100)
        person = json.loads(text_of(reply))
        assert set(person) == {"name", "age"}
        assert isinstance(person["age"], int)
        assert reply["choices"][0]["finish_reason"] == "stop"
    anything = real.chat("Give me JSON.", response_format={"type": "json_object"}, max_tokens=300)
    if anything["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(text_of(anything)), dict)


def test_text_parts_and_developer_messages(real: LiveServer) -> None:
    pieces = [{"type": "text", "text": "Hi"}, {"type": "text", "text": "!"}]
    parts = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": pieces}]
    plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
    assert text_of(real.chat(parts)) == text_of(real.chat(plain))  # type: ignore[arg-type]


def test_a_reply_can_be_begun_by_the_client(real: LiveServer) -> None:
    begun = [*ASK, {"role": "assistant", "content": "The capital of France is"}]
    assert text_of(real.chat(begun)).lstrip().startswith("Paris")


# ---- texts ----


def test_completions_continue_a_text(client: openai.OpenAI, llm: anchorstream.LLM) -> None:
    reply = client.completions.create(model=NAME, prompt="Once upon a time", max_tokens=12, temperature=0)
    stream = llm.stream()
    stream.feed("Once upon a time")
    assert reply.choices[0].text == "".join(stream.generate(12, temperature=0))
    several = client.completions.create(model=NAME, prompt=["Once upon a time", "A"], max_tokens=12, temperature=0)
    assert [choice.index for choice in several.choices] == [0, 1]
    assert several.choices[0].text == reply.choices[0].text
    ids = client.completions.create(model=NAME, prompt=llm.tokenize("Once upon a time"), max_tokens=12, temperature=0)
    assert ids.choices[0].text == reply.choices[0].text
    streamed = client.completions.create(
        model=NAME, prompt="Once upon a time", max_tokens=12, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in streamed) == reply.choices[0].text


@pytest.mark.parametrize("logprobs", [0, 2])
def test_echo_tells_the_likelihood_of_the_prompt(client: openai.OpenAI, llm: anchorstream.LLM, logprobs: int) -> None:
    """What lm-eval asks for: a context and its continuation, scored."""
    text = "The cat sat on the mat. The dog sat on the" + " mat." * 200
    reply = client.completions.create(
        model=NAME, prompt=text, max_tokens=1, echo=True, logprobs=logprobs, temperature=0
    )
    ids = llm.tokenize(text)
    scores = llm.stream().score(ids)
    choice = reply.choices[0]
    told = choice.logprobs
    assert told is not None
    assert told.token_logprobs is not None
    assert told.token_logprobs[0] is None
    assert np.allclose(told.token_logprobs[1 : len(ids)], -scores[1:], atol=1e-4)
    assert len(told.tokens or []) == len(ids) + 1
    assert choice.text.startswith(text)
    assert (told.text_offset or [])[1] == len((told.tokens or [""])[0])
    if logprobs:
        assert told.top_logprobs is not None
        greedy = [max(top.values()) == p for top, p in zip(told.top_logprobs[1:], told.token_logprobs[1:], strict=True)]
        assert greedy[-1]
        assert not all(greedy)
    only = client.completions.create(model=NAME, prompt=text, max_tokens=0, echo=True, logprobs=1)
    assert only.choices[0].text == text


def test_tokens_there_and_back(real: LiveServer, llm: anchorstream.LLM) -> None:
    text = "Grüße, 世界 <|im_end|>"
    told = real.http.post("/tokenize", json={"content": text}).json()
    assert told["tokens"] == llm.tokenize(text)
    assert real.http.post("/detokenize", json={"tokens": told["tokens"]}).json()["content"] == text
    assert real.http.post("/detokenize", json={"tokens": [10**9]}).status_code == 400


# ---- what is refused ----

BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({}, "messages"),
    ({"messages": ASK, "tools": [{"type": "function"}]}, "tools"),
    ({"messages": ASK, "tool_choice": "required"}, "tool_choice"),
    ({"messages": ASK, "reasoning_effort": "high"}, "reasoning_effort"),
    ({"messages": ASK, "temperture": 1}, "temperture"),
    ({"messages": ASK, "temperature": 3}, "temperature"),
    ({"messages": ASK, "temperature": "hot"}, "temperature"),
    ({"messages": ASK, "top_p": -0.1}, "top_p"),
    ({"messages": ASK, "max_tokens": -5}, "max_tokens"),
    ({"messages": ASK, "max_completion_tokens": 1.5}, "max_completion_tokens"),
    ({"messages": ASK, "n": 0}, "n"),
    ({"messages": ASK, "n": 1000}, "n"),
    ({"messages": ASK, "stop": [""]}, None),
    ({"messages": ASK, "logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"messages": ASK, "logit_bias": {"x": 1}}, "logit_bias"),
    ({"messages": ASK, "top_logprobs": 3}, "top_logprobs"),
    ({"messages": ASK, "overflow": "maybe"}, "overflow"),
    ({"messages": ASK, "session": "../../etc/passwd"}, "session"),
    ({"messages": ASK, "response_format": {"type": "xml"}}, "response_format.type"),
    ({"messages": ASK, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    (
        {"messages": ASK, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": 7}}}},
        "response_format",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": "  "}]}, "messages[0].content"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": "Hi"}]}, "messages"),
    ({"messages": [{"role": "system", "content": "Hi"}]}, "messages"),
    ({"messages": [{"role": "assistant", "content": "x", "tool_calls": [1]}]}, "messages[0].tool_calls"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages.0.content",
    ),
    ({"messages": [{"role": "user", "content": "\ud800"}]}, None),
]


@pytest.mark.parametrize(("body", "param"), BAD, ids=lambda value: str(value)[:60])
def test_bad_requests_are_told_what_is_wrong(small: LiveServer, body: dict[str, Any], param: str | None) -> None:
    for stream in (False, True):
        sent = json.dumps({**body, "stream": stream})
        answer = small.http.post("/v1/chat/completions", content=sent, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert len(error["message"]) > 5
        if param is not None:
            assert error["param"] == param
    assert small.is_idle


def test_the_client_library_raises_the_right_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no model 'gpt-9'"):
        client.chat.completions.create(model="gpt-9", messages=ASK)  # type: ignore[arg-type]
    with pytest.raises(openai.BadRequestError, match="tools"):
        client.chat.completions.create(
            model=NAME, messages=ASK, tools=[{"type": "function", "function": {"name": "f"}}]
        )  # type: ignore[arg-type]
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).id == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b'{"messages": 1}', b"\xff\xfe", b"[" * 100_000])
def test_bodies_that_are_no_request(small: LiveServer, body: bytes) -> None:
    for path in ("/v1/chat/completions", "/v1/completions", "/tokenize"):
        answer = small.http.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == 400, answer.text
        assert "error" in answer.json()


def test_unknown_addresses_and_methods(small: LiveServer) -> None:
    assert small.http.get("/v1/nothing").status_code == 404
    assert small.http.get("/v1/nothing").json()["error"]["code"] == "not_found"
    assert small.http.get("/v1/chat/completions").status_code == 405
    assert small.http.get("/page/../../../pyproject.toml").status_code == 404
    assert small.http.get("/page/%2e%2e/%2e%2e/errors.py").status_code == 404


# ---- safety ----


def test_a_key_is_wanted_everywhere_but_for_health(start: Start) -> None:
    server = start(api_key="s3cret")
    with httpx.Client(base_url=server.url) as stranger:
        for path in ("/v1/models", "/metrics", "/v1/sessions"):
            assert stranger.get(path).status_code == 401
            assert (
                stranger.get(path, headers={"Authorization": "Bearer wrong"}).json()["error"]["code"]
                == "invalid_api_key"
            )
            assert stranger.get(path, headers={"Authorization": "Basic s3cret"}).status_code == 401
            assert stranger.get(path, headers={"Authorization": "Bearer s3cret"}).status_code == 200
        assert stranger.post("/v1/chat/completions", json={"messages": ASK}).status_code == 401
        assert stranger.get("/health").status_code == 200
        assert stranger.get("/").status_code == 200
    assert "s3cret" not in repr(ServerConfig(api_key="s3cret"))


def test_large_bodies_and_many_messages_are_refused(start: Start) -> None:
    server = start(max_body_bytes=20_000, max_messages=50)
    big = json.dumps({"messages": [{"role": "user", "content": "x" * 30_000}]}).encode()
    assert server.http.post("/v1/chat/completions", content=big).status_code == 413

    def pieces() -> Iterator[bytes]:
        for begin in range(0, len(big), 1000):
            yield big[begin : begin + 1000]

    try:
        answer = server.http.post("/v1/chat/completions", content=pieces())  # no content-length
        assert answer.status_code == 413
    except httpx.WriteError:
        pass  # the server has hung up while we were still sending
    many = [{"role": "user", "content": "x"}] * 60
    assert server.http.post("/v1/chat/completions", json={"messages": many}).status_code == 400
    assert text_of(server.chat("still there")) is not None


def test_other_pages_may_not_use_it_unless_told(start: Start) -> None:
    closed, opened = start(), start(cors_origins=("https://example.org",))
    headers = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert "access-control-allow-origin" not in closed.http.options("/v1/chat/completions", headers=headers).headers
    answer = opened.http.options("/v1/chat/completions", headers=headers)
    assert answer.headers["access-control-allow-origin"] == "https://example.org"


def test_health_says_that_the_model_is_being_loaded(start: Start, tiny: Any) -> None:
    import threading

    from helpers.tiny_model import TinyModel

    gate, path = threading.Event(), tiny(TinyModel())

    def load() -> anchorstream.LLM:
        gate.wait(10)
        return anchorstream.load(path, compute="f32", threads=1)

    server = LiveServer.__new__(LiveServer)
    thread = threading.Thread(target=lambda: server.__init__(load))  # type: ignore[misc]
    thread.start()
    until(lambda: getattr(server, "http", None) is not None and server._server.started)
    assert server.http.get("/health").status_code == 503
    refused = server.http.post("/v1/chat/completions", json={"messages": ASK})
    assert refused.status_code == 503
    assert refused.headers["retry-after"] == "1"
    gate.set()
    thread.join()
    assert server.http.get("/health").json()["status"] == "ok"
    server.stop()


def test_logs_never_hold_what_was_said(small: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    small.chat("the secret word is xylophone")
    small.http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "xylophone"}], "n": 0})
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert not any("xylophone" in message for message in ours)
