"""Chats: the system prompt is pinned, turns are fed once, nothing stops a chat."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import anchorstream
from anchorstream.errors import ConfigError, InputError, TemplateError
from helpers.tiny_model import TinyModel

SYSTEM = "You are a patient teacher."


def test_the_stream_holds_what_the_template_renders(llm: anchorstream.LLM) -> None:
    chat = llm.chat(SYSTEM)
    messages = [{"role": "system", "content": SYSTEM}]
    fed: list[int] = []
    feed = chat.stream.feed

    def spy(ids: list[int], **options: object) -> int:
        fed.extend(ids)
        return feed(ids, **options)

    chat.stream.feed = spy  # type: ignore[method-assign]
    for message in ("Hello!", "What is two and two?"):
        reply = "".join(chat.send(message, temperature=0, max_tokens=20))
        fed.extend(llm.tokenize("<reply>"))
        messages += [{"role": "user", "content": message}, {"role": "assistant", "content": "<reply>"}]
        assert reply
    whole = llm.chat_template.render(messages)
    assert whole == llm.chat_template.render(messages[:1]) + llm.detokenize(fed) + "<|im_end|>\n"


def test_the_system_prompt_is_never_evicted(llm: anchorstream.LLM) -> None:
    chat = llm.chat(SYSTEM, cache_size=128)
    for number in range(8):
        "".join(chat.send(f"Tell me about number {number}.", max_tokens=40, temperature=0.5, seed=number))
    held = chat.stream.cached_indices
    assert held[: chat.num_pinned].tolist() == list(range(chat.num_pinned))
    assert chat.stream.length > 300
    assert len(held) <= 128
    # the window begins where a turn begins
    assert held[chat.num_pinned] in chat.stream.turns


def test_windows_of_whole_turns_do_not_depend_on_chunks(tiny_llm: anchorstream.LLM) -> None:
    ids = np.random.default_rng(0).integers(3, 250, 400)
    turns = [5, 30, 47, 80, 150, 151, 190, 260, 330]
    for chunk in (1, 13, 400):
        stream = tiny_llm.stream(cache_size=64, num_sinks=2, num_pinned=5, whole_turns=True)
        begin = 0
        for end in [*turns, 400]:
            for at in range(begin, end, chunk):
                stream.feed(ids[at : min(at + chunk, end)])
            stream.begin_turn()
            begin = end
        if chunk == 1:
            truth, held = stream.logits.copy(), stream.cached_indices.tolist()
        assert np.abs(stream.logits - truth).max() < 1e-3
        assert stream.cached_indices.tolist() == held


def test_a_reply_broken_off_closes_its_turn(llm: anchorstream.LLM) -> None:
    chat = llm.chat(SYSTEM)
    pieces = chat.send("Count to a hundred.", max_tokens=None, temperature=0)
    next(pieces)
    pieces.close()
    broken = chat.stream.length
    assert "".join(chat.send("Thank you.", temperature=0, max_tokens=10))
    assert chat.stream.length > broken
    assert chat.num_turns == 2


def test_clear_keeps_the_system_prompt(llm: anchorstream.LLM) -> None:
    chat = llm.chat(SYSTEM)
    first = "".join(chat.send("Hello!", temperature=0, max_tokens=15))
    "".join(chat.send("And now?", temperature=0, max_tokens=15))
    chat.clear()
    assert chat.stream.length == chat.num_pinned
    assert "".join(chat.send("Hello!", temperature=0, max_tokens=15)) == first


def test_too_long_a_system_prompt_is_refused_with_the_numbers(llm: anchorstream.LLM) -> None:
    with pytest.raises(ConfigError, match=r"takes \d+ tokens, more than half of the cache of 64"):
        llm.chat("word " * 60, cache_size=64)


@pytest.mark.parametrize("message", ["", "  \n"])
def test_an_empty_message(llm: anchorstream.LLM, message: str) -> None:
    chat = llm.chat(SYSTEM)
    with pytest.raises(InputError, match="empty"):
        chat.send(message)
    assert chat.num_turns == 0


def test_a_bad_setting_loses_nothing(llm: anchorstream.LLM) -> None:
    chat = llm.chat(SYSTEM)
    with pytest.raises(ConfigError):
        chat.send("Hi", temperature=-1)
    assert (chat.num_turns, chat.stream.length) == (0, chat.num_pinned)


def test_a_message_longer_than_the_cache_streams_through(llm: anchorstream.LLM) -> None:
    chat = llm.chat(SYSTEM, cache_size=128)
    assert "".join(chat.send("word " * 1000 + "What was the word?", temperature=0, max_tokens=10))
    assert chat.stream.length > 1000


def test_a_model_without_a_template_is_no_chat_model(tiny: Callable[[TinyModel], Path]) -> None:
    model = anchorstream.load(tiny(TinyModel(template="{% if %}")))
    with pytest.raises(TemplateError, match="parse"):
        model.chat()
    # without one the control tokens tell that it speaks ChatML
    assert anchorstream.load(tiny(TinyModel(template=None))).chat("x", cache_size=256).num_pinned > 3
