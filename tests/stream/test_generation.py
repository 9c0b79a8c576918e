"""One reply: limits, stop texts, what may be shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorstream
from anchorstream.config import SamplingConfig
from anchorstream.errors import ConfigError
from anchorstream.stream.generation import Generation, Limits
from anchorstream.stream.sampling import Sampler
from anchorstream.text.tokenizer import TextTokenizer

NOTHING = np.empty(0, np.int32)


def reply(tokenizer: TextTokenizer, ids: list[int], **limits: object) -> tuple[str, Generation, list[str]]:
    """Play a reply in which the model makes `ids` and then ends its turn."""
    generation = Generation(tokenizer, Sampler(SamplingConfig(temperature=0), tokenizer.size), Limits.make(**limits))
    pieces, queue = [], [*ids, *tokenizer.end_ids]
    while not generation.finished:
        logits = np.zeros(tokenizer.size, np.float32)
        logits[queue.pop(0)] = 1
        pieces.append(generation.push(generation.choose(logits, NOTHING)))
    return "".join(pieces), generation, pieces


@settings(max_examples=100, deadline=None)
@given(text=st.text("abc", min_size=1, max_size=30), stops=st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_stop_texts_never_leak(tiny_llm: anchorstream.LLM, text: str, stops: list[str]) -> None:
    shown, generation, pieces = reply(tiny_llm.tokenizer, tiny_llm.tokenize(text), max_tokens=None, stop=stops)
    # the reply ends as soon as any stop text is complete
    ends = [at for at in range(len(text) + 1) if any(text[:at].endswith(stop) for stop in stops)]
    if ends:
        seen = text[: ends[0]]
        truth = seen[: min(seen.find(stop) for stop in stops if stop in seen)]
    else:
        truth = text
    assert shown == truth
    assert generation.finish_reason == "stop"
    for stop in stops:
        assert stop not in "".join(pieces)


def test_a_limit_counts_tokens_and_flushes_what_was_held(tiny_llm: anchorstream.LLM) -> None:
    ids = tiny_llm.tokenize("xxab")
    shown, generation, _ = reply(tiny_llm.tokenizer, ids, max_tokens=len(ids), stop="abc")
    assert (shown, generation.finish_reason, generation.count) == ("xxab", "length", len(ids))


def test_no_tokens_at_all(tiny_llm: anchorstream.LLM) -> None:
    shown, generation, _ = reply(tiny_llm.tokenizer, [], max_tokens=0)
    assert (shown, generation.finish_reason, generation.count) == ("", "length", 0)


def test_the_end_token_is_remembered_and_can_be_ignored(tiny_llm: anchorstream.LLM) -> None:
    _, generation, _ = reply(tiny_llm.tokenizer, [50], max_tokens=None)
    assert generation.end_token in tiny_llm.tokenizer.end_ids
    assert generation.count == 1
    _shown, generation, _ = reply(tiny_llm.tokenizer, [2, 50], max_tokens=2, ignore_end=True)
    assert generation.count == 2


@pytest.mark.parametrize("limit", [-2, 1.5, "3", True])
def test_impossible_limits(limit: object) -> None:
    with pytest.raises(ConfigError, match="max_tokens"):
        Limits.make(limit, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("stop", ["", [""], [1]])
def test_impossible_stop_texts(stop: object) -> None:
    if stop == "":
        stop = ("",)
    with pytest.raises(ConfigError, match="stop"):
        Limits.make(1, stop)  # type: ignore[arg-type]
