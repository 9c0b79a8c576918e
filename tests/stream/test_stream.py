"""Streams: what they consume, hold and make, and that nothing is ever lost."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import anchorstream
from anchorstream.errors import ClosedError, ConfigError, InputError, OutOfMemoryError
from anchorstream.kernels import native
from anchorstream.stream.history import TokenHistory

IDS = np.random.default_rng(5).integers(3, 260, 4000).astype(np.int32)
OPTIONS = {
    "streaming": {"cache_size": 20, "num_sinks": 3},
    "window": {"method": "window", "cache_size": 20},
    "dense": {"method": "dense"},
    "recompute": {"method": "recompute", "cache_size": 20},
}


@pytest.mark.parametrize("method", OPTIONS)
def test_score_is_what_the_logits_said(tiny_llm: anchorstream.LLM, method: str) -> None:
    ids = IDS[:60]
    scored, fed = tiny_llm.stream(**OPTIONS[method]), tiny_llm.stream(**OPTIONS[method])
    scores = np.concatenate([scored.score(ids[:25]), scored.score(ids[25:])])
    assert np.isnan(scores[0])
    for i, token in enumerate(ids):
        if i:
            wide = fed.logits.astype(np.float64)
            assert abs(scores[i] - (np.log(np.exp(wide).sum()) - wide[token])) < 1e-3
        fed.feed([token])
    assert np.abs(scored.logits - fed.logits).max() < 1e-3


@pytest.mark.parametrize("chunk", [1, 7, 64, 511, 512, 2000])
def test_any_chunk_gives_the_same_logits_and_text(tiny_llm: anchorstream.LLM, chunk: int) -> None:
    def run(size: int) -> tuple[np.ndarray, str]:
        stream = tiny_llm.stream(cache_size=100)
        for begin in range(0, 2000, size):
            stream.feed(IDS[begin : min(begin + size, 2000)])
        return stream.logits.copy(), "".join(stream.generate(30, temperature=0))

    logits, text = run(chunk)
    truth, same = run(333)
    assert np.array_equal(logits, truth)
    assert text == same


def test_what_is_cached(tiny_llm: anchorstream.LLM) -> None:
    stream = tiny_llm.stream(cache_size=10, num_sinks=2)
    stream.feed(IDS[:6])
    assert stream.cached_indices.tolist() == [0, 1, 2, 3, 4, 5]
    stream.feed(IDS[:94])
    assert stream.length == 100
    assert stream.cached_indices.tolist() == [0, 1, *range(92, 100)]


def test_memory_stays_while_the_stream_grows(tiny_llm: anchorstream.LLM) -> None:
    stream = tiny_llm.stream(cache_size=100)
    stream.feed(IDS[:1000])
    held = stream.nbytes
    for _ in range(5):
        stream.feed(IDS)
    assert stream.nbytes <= held + 64 * tiny_llm.engine.kv_bytes_per_token()


@pytest.mark.parametrize("method", OPTIONS)
def test_a_fork_goes_its_own_way(tiny_llm: anchorstream.LLM, method: str) -> None:
    stream = tiny_llm.stream(**OPTIONS[method])
    stream.feed(IDS[:50])
    fork, witness = stream.fork(), tiny_llm.stream(**OPTIONS[method])
    witness.feed(IDS[:50])
    fork.feed(IDS[100:140])
    assert stream.length == 50
    stream.feed(IDS[50:80])
    witness.feed(IDS[50:80])
    assert np.abs(stream.logits - witness.logits).max() < 1e-4
    other = tiny_llm.stream(**OPTIONS[method])
    other.feed(np.concatenate([IDS[:50], IDS[100:140]]))
    assert np.abs(fork.logits - other.logits).max() < 1e-4


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_random_lives_of_streams(tiny_llm: anchorstream.LLM, data: st.DataObject) -> None:
    """Feed, fork and close in any order: each stream is like a fresh one that was fed the same at once."""
    options = OPTIONS[data.draw(st.sampled_from([m for m in OPTIONS if m != "recompute"]))]
    streams = [(tiny_llm.stream(**options), [])]
    for _ in range(data.draw(st.integers(1, 8))):
        place = data.draw(st.integers(0, len(streams) - 1))
        stream, told = streams[place]
        action = data.draw(st.sampled_from(["feed", "feed", "fork", "close"]))
        if action == "feed":
            piece = IDS[(begin := data.draw(st.integers(0, 3000))) : begin + data.draw(st.integers(1, 150))]
            stream.feed(piece)
            told.extend(piece)
        elif action == "fork":
            streams.append((stream.fork(), list(told)))
        elif len(streams) > 1:
            stream.close()
            streams.pop(place)
    for stream, told in streams:
        if told:
            fresh = tiny_llm.stream(**options)
            fresh.feed(told)
            assert np.abs(stream.logits - fresh.logits).max() < 1e-3
            assert stream.cached_indices.tolist() == fresh.cached_indices.tolist()


def test_generate_counts_tokens_and_consumes_them(tiny_llm: anchorstream.LLM) -> None:
    stream = tiny_llm.stream(cache_size=30)
    stream.feed(IDS[:100])
    generation = stream.generation(25, temperature=0.8, seed=1, ignore_end=True)
    text = "".join(stream.run(generation))
    assert generation.count == 25
    assert stream.length == 125
    again = tiny_llm.stream(cache_size=30)
    again.feed(IDS[:100])
    assert "".join(again.generate(25, temperature=0.8, seed=1, ignore_end=True)) == text


def test_breaking_off_loses_nothing(tiny_llm: anchorstream.LLM) -> None:
    stream = tiny_llm.stream(cache_size=30)
    stream.feed(IDS[:50])
    pieces = stream.generate(None, temperature=0, ignore_end=True)
    for _ in range(5):
        next(pieces)
    pieces.close()
    length = stream.length
    stream.feed(IDS[:5])
    assert stream.length == length + 5


def test_a_keyboard_interrupt_after_a_pass_is_made_good(
    tiny_llm: anchorstream.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, witness = tiny_llm.stream(cache_size=30), tiny_llm.stream(cache_size=30)
    for each in (stream, witness):
        each.feed(IDS[:50])
    witness.feed(IDS[50:57])

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(stream), "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.feed(IDS[50:57])
    assert stream.length == 57
    assert np.array_equal(stream.logits, witness.logits)
    for each in (stream, witness):
        each.feed(IDS[60:70])
    assert np.array_equal(stream.logits, witness.logits)


def test_progress_can_stop_a_long_feed(tiny_llm: anchorstream.LLM) -> None:
    stream = tiny_llm.stream(cache_size=30)
    seen = []

    class EnoughError(Exception):
        pass

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 600:
            raise EnoughError

    with pytest.raises(EnoughError):
        stream.feed(IDS, progress=progress)
    assert stream.length == seen[-1][0]
    assert all(total == len(IDS) for _, total in seen)
    fresh = tiny_llm.stream(cache_size=30)
    fresh.feed(IDS[: stream.length + 1])
    stream.feed(IDS[stream.length : stream.length + 1])
    assert np.abs(stream.logits - fresh.logits).max() < 1e-3


def test_text_and_ids_are_the_same(llm: anchorstream.LLM) -> None:
    one, two = llm.stream(), llm.stream()
    assert one.feed("Call me Ishmael. ") == two.feed(llm.tokenize("Call me Ishmael. "))
    assert np.array_equal(one.logits, two.logits)


@pytest.mark.parametrize("bad", ["", [], np.empty(0)])
def test_an_empty_stream_needs_something(tiny_llm: anchorstream.LLM, bad: object) -> None:
    stream = tiny_llm.stream()
    with pytest.raises(InputError, match="nothing to feed"):
        stream.feed(bad)
    with pytest.raises(InputError, match="empty"):
        _ = stream.logits
    with pytest.raises(InputError, match="empty"):
        stream.generate(1)
    stream.feed("a")
    assert stream.feed(bad) == 0


@pytest.mark.parametrize("bad", [[1, 2, 9999], [-1], [[1]], [0.5], "\ud800"])
def test_bad_input_changes_nothing(tiny_llm: anchorstream.LLM, bad: object) -> None:
    stream = tiny_llm.stream(cache_size=20)
    stream.feed(IDS[:30])
    before = stream.logits.copy()
    for call in (stream.feed, stream.score):
        with pytest.raises(InputError):
            call(bad)
    assert stream.length == 30
    assert np.array_equal(stream.logits, before)


@pytest.mark.parametrize(
    "options",
    [
        {"cache_size": 4},
        {"cache_size": 0, "method": "window"},
        {"num_sinks": -1},
        {"method": "magic"},
        {"kv_dtype": "q3"},
        {"cache_sise": 10},
        {"num_pinned": 5, "method": "dense"},
        {"cache_size": 10.5},
        {"cache_size": True},
    ],
)
def test_impossible_options(tiny_llm: anchorstream.LLM, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        tiny_llm.stream(**options)


def test_a_typing_error_is_guessed(tiny_llm: anchorstream.LLM) -> None:
    with pytest.raises(ConfigError, match="did you mean 'cache_size'"):
        tiny_llm.stream(cache_sise=10)
    stream = tiny_llm.stream()
    stream.feed("a")
    with pytest.raises(ConfigError, match="did you mean 'temperature'"):
        stream.generate(1, temprature=1)


def test_a_closed_stream_says_so(tiny_llm: anchorstream.LLM) -> None:
    with tiny_llm.stream() as stream:
        stream.feed("a")
    stream.close()
    for call in (lambda: stream.feed("a"), lambda: stream.nbytes, stream.fork):
        with pytest.raises(ClosedError):
            call()


def test_too_large_a_cache_is_refused_before_it_is_made(
    tiny_llm: anchorstream.LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(OutOfMemoryError, match="MB are free"):
        tiny_llm.stream(cache_size=10**12)
    stream = tiny_llm.stream(method="dense")
    stream.feed(IDS[:10])
    monkeypatch.setattr(native, "available_memory", lambda: 65 << 20)
    with pytest.raises(OutOfMemoryError, match="'dense' grows"):
        stream.feed(IDS)
    assert stream.length == 10


@given(keep=st.integers(1, 50), sizes=st.lists(st.integers(0, 120), max_size=12))
def test_history_keeps_the_tail(keep: int, sizes: list[int]) -> None:
    history, told = TokenHistory(keep), []
    everything = TokenHistory(None)
    for size in sizes:
        piece = np.arange(len(told), len(told) + size, dtype=np.int32)
        history.append(piece)
        everything.append(piece)
        told.extend(piece.tolist())
        for count in (0, 1, keep):
            assert history.last(count).tolist() == (told[-count:] if count else [])
    assert everything.last(10**6).tolist() == told


def test_perplexity_of_a_uniform_guess(tiny_llm: anchorstream.LLM) -> None:
    """A sanity check of units: random tokens cost a random model at least the logarithm of the vocabulary."""
    scores = tiny_llm.stream().score(IDS[:500])[1:]
    assert scores.mean() > math.log(tiny_llm.spec.vocab_size) - 0.5
