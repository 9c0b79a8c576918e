"""What users of other local servers ran into, where no other test of the server names it already.

Elsewhere: llama.cpp 16693, 17284, 8251, 25913, 27068, 4902, ollama 6176, 8531, koboldcpp 523, ik_llama.cpp 960, mlx-lm 1042, streaming-llm 48
(test_conversations.py); llama.cpp 24496, 13262 (test_scheduler.py); TGI 1254 (test_api.py); CVE-2024-34359 (text/test_chat_template.py).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import anchorstream
from anchorstream.config import StreamConfig
from helpers.live_server import LiveServer, Talk, cached

Start = Callable[..., LiveServer]


@pytest.mark.parametrize("kv_dtype", ["q8", "q4"])
def test_quantised_keys_and_a_full_context(start: Start, kv_dtype: str) -> None:
    """llama.cpp 9383, 7230: crashed in the shift. A quantised window is never rotated again."""
    server = start(stream=StreamConfig(cache_size=160, kv_dtype=kv_dtype, whole_turns=True))
    talk = Talk(server, "Be brief.", max_tokens=40, ignore_eos=True)
    for turn in range(12):
        talk.say(f"Turn {turn}")
    assert talk.last["streaming"]["evicted_tokens"] > 400
    banks = server.http.get(f"/v1/sessions/{talk.last['streaming']['session']}").json()["cache"]["banks"]
    assert kv_dtype in {bank["precision"] for bank in banks}


def test_only_what_is_too_much_leaves(small: LiveServer) -> None:
    """ollama 17427: a prompt a few tokens over the limit lost half of itself."""
    reply = small.chat("x" * 140, max_tokens=1)
    consumed = reply["streaming"]["tokens_consumed"]
    assert 128 < consumed < 180
    assert reply["streaming"]["evicted_tokens"] == consumed - 128


def test_a_prompt_longer_than_the_cache_streams_through(real: LiveServer, book: str) -> None:
    """streaming-llm 2, attention_sinks 22: gave garbage. The last words are answered as a fresh window would be."""
    reply = real.chat(f"{book[:40_000]}\n\nWhat is two and two? Answer with one number.", max_tokens=30)
    assert reply["streaming"]["evicted_tokens"] > 8000
    text = reply["choices"][0]["message"]["content"]
    assert len(text.split()) > 3
    assert len(set(text.split())) > 2  # no loop of one word


def test_after_long_use_it_is_what_a_fresh_stream_would_be(tiny_llm: anchorstream.LLM) -> None:
    """koboldcpp 1084: after long use the model answered turns of long ago. 100,000 tokens, cut in two ways."""
    ids = np.random.default_rng(2).integers(3, 250, 100_000).astype(np.int32)
    used, fresh = (tiny_llm.stream(cache_size=128) for _ in range(2))
    at = 0
    for size in np.random.default_rng(3).integers(1, 900, 1000).tolist():
        used.feed(ids[at : at + size])
        at = min(at + size, len(ids))
        if at == len(ids):
            break
    fresh.feed(ids)
    assert used.length == fresh.length == 100_000
    assert np.array_equal(used.logits, fresh.logits)


def test_the_cost_of_a_turn_does_not_grow(real: LiveServer) -> None:
    """ik_llama.cpp 960, textgen 5337, 7060: once the context was full, every message processed the whole prompt again."""
    talk = Talk(real, "Be brief.", max_tokens=60, ignore_eos=True)
    for turn in range(25):
        talk.say(f"Tell me about number {turn}.")
    assert talk.last["streaming"]["evicted_tokens"] > 700
    assert talk.last["timings"]["prompt_n"] < 25
    assert cached(talk.last) > 1800
